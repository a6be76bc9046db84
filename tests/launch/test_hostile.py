"""Launch files that are broken, binary, huge or hostile: one clear line, or nothing, and never a traceback."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from validate_ddp.catalogue import every
from validate_ddp.launch.kinds import DOCKERFILE, JSON, SHELL, YAML
from validate_ddp.launch.reading import read as read_launch
from validate_ddp.launch.records import Launch
from validate_ddp.launches import proposed
from validate_ddp.source.text import Problem

CODES = frozenset(stub.code for stub in every())


def read_all(text: str, kind: str) -> Launch | Problem:
    launch = read_launch("launch", text, kind)
    if isinstance(launch, Launch):
        list(proposed(launch, CODES - {"DDP107"}))  # which looks round in the folder
    return launch


@pytest.mark.parametrize(
    ("name", "data", "code", "said"),
    [
        ("a.sh", b"torchrun \x00 train.py\n", "DDP001", "NUL byte, so it is no text"),
        ("a.sh", b"torchrun caf\xe9 train.py\n", "DDP001", "is not UTF-8: byte 0xe9 on line 1; save it as UTF-8"),
        ("a.sh", b"\xff\xfet\x00o\x00", "DDP001", "is UTF-16; save it as UTF-8"),
        ("a.yaml", b"a: [1\nb: torchrun\n", "DDP001", "is no YAML that can be read"),
        ("a.json", b"[" * 5000, "DDP001", "nested too deeply"),
        ("a.sh", b"torchrun train.py --name 'x\n", "DDP810", "nothing closes this"),
    ],
)
def test_one_clear_line(read: Any, tmp_path: Any, name: str, data: bytes, code: str, said: str) -> None:
    from validate_ddp.config import Settings
    from validate_ddp.lint import check

    (tmp_path / name).write_bytes(data)
    (found,) = check([name], Settings()).findings
    assert found.code == code and said in found.message and "\n" not in found.message
    assert "Python" not in found.message


@pytest.mark.parametrize(
    "text",
    [
        "{{- if .Values.job }}\nkind: PyTorchJob\n{{- end }}\n",
        "{% for n in nodes %}\ncommand: torchrun {{ n }}\n{% endfor %}\n",
        "a:\n<% if x %>\n  b: [torchrun\n<% end %>\n",
    ],
)
def test_a_template_of_yaml_is_no_broken_file(text: str, tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    from validate_ddp.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(text)
    assert main(["--no-cache", "--output-format", "concise", "job.yaml"]) == 0
    (row,) = capsys.readouterr().out.splitlines()
    assert ": info DDP001 " in row and "is a template, and no YAML before it is filled in: it is not read (" in row


@pytest.mark.parametrize(
    "text",
    [
        "(" * 20_000,
        "torchrun " + "$(" * 5_000,
        "${a:-" * 3_000,
        "A=a\n" + "A=$A$A\n" * 60 + "torchrun $A $A train.py\n",
        "A=(a)\n" + "A+=(${A[@]})\n" * 60 + "torchrun ${A[@]} train.py\n",
        "true && " * 5_000 + "torchrun train.py\n",
        "--x\n" * 5_000,
        'bash -c \'bash -c "bash -c \\"torchrun python a.py\\""\'\n',
        "torchrun --nnodes " + "9" * 5_000 + " --master_port 1e5 train.py\n",
        "torchrun --nnodes=² --master_port=٣ train.py\n",
        "cat <<E > a.sh\n" * 200,
        "\\",
        "'",
        "torchrun --",
        "srun",
        "python -m",
        "env",
    ],
)
def test_hostile_shell(text: str) -> None:
    read_all(text, SHELL)


@pytest.mark.parametrize(
    "text",
    [
        "- " * 5_000,
        "a: &a [1]\n" + "".join(f"b{n}: &b{n} [*a, *a, torchrun]\n" for n in range(50)),
        "a: &x {b: *x}\n",
        "a: &a\n  - torchrun\n  - *a\n",
        "run: !!python/object:os.system torchrun\nresources: 1\n",
        "? {a: torchrun}\n: b\n",
        "command: [[torchrun], 1, null]\n",
        "env: torchrun\nenvs: [a]\nnum_nodes: [1]\nrun: torchrun\n",
        "num_machines: []\nnum_processes: {}\n",
    ],
)
def test_hostile_markup(text: str) -> None:
    read_all(text, YAML)


WORDS = st.sampled_from(
    "torchrun python accelerate launch srun -m --nnodes= 2 train.py $A ${A:-1} ${A[@]} $( ) ( ' \" \\ \n ; && || |"
    " > < <<E E"
    " if then fi for in do done { } case esac export A=1 A=(1 2) shift $@ `"
    " # #SBATCH --nodes=2 bash -c é \t [[ ]] run: |".split(" ")
)


@given(st.lists(WORDS, max_size=40), st.sampled_from([SHELL, YAML, DOCKERFILE, JSON]))
def test_any_words(words: list[str], kind: str) -> None:
    read_all(" ".join(words), kind)


@given(st.text("{}$.0123456789a \n\U0010f009\u6f22", max_size=60))
def test_no_character_in_braces_ends_the_process(text: str) -> None:
    read_all("torchrun {\U0010f009} {1..\U0010f009} " + text, SHELL)


@given(st.text(max_size=200), st.sampled_from([SHELL, YAML, DOCKERFILE, JSON]))
def test_any_text(text: str, kind: str) -> None:
    read_all("torchrun " + text, kind)
