"""The command in a folder of a stranger: nothing of it is imported, in whatever way the command is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

BUGGY = Path(__file__).resolve().parents[1] / "fixtures" / "showcase" / "train_buggy.py"
OTHERS = ("libcst", "rich", "tomli", "yaml", "torch", "numpy", "sitecustomize", "usercustomize", "pygments", "msvcrt")
COMMAND = os.path.join(sysconfig.get_path("scripts"), "validate-ddp")
CALLS = {
    "validate-ddp": [COMMAND],
    "python -m": [sys.executable, "-m", "validate_ddp"],
    "python -c": [sys.executable, "-c", "from validate_ddp.cli import run; run()"],
}


def before_ours(tmp_path: Path) -> set[str]:
    """What Python itself imports before the first line of a package that it is told to run, with ``-m`` or ``-c``."""
    package = tmp_path / "nothing" / "empty"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    code = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    (package / "__main__.py").write_text(code)
    names: set[str] = set()
    for called in (["-m", "empty"], ["-c", code]):
        line = [sys.executable, *called]
        done = subprocess.run(line, capture_output=True, text=True, cwd=package.parent, check=True, timeout=60)
        names.update(done.stdout.split())
    return names


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a script, and beside it a module that tells of its import for each that there is in Python."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    (folder / "train.py").write_bytes(BUGGY.read_bytes())
    (folder / "pyproject.toml").write_text("[tool.validate-ddp]\nignore = ['DDP101']\n")
    python = before_ours(tmp_path)
    for name in {*sys.stdlib_module_names, *OTHERS} - python:
        poison(folder, name)
    return folder


def poison(folder: Path, name: str) -> None:
    """Puts a module there that leaves a mark when it is imported, and fails."""
    mark = f"open({str(folder.parent / 'imported')!r}, 'a').write(__name__ + ' ')\nraise SystemError(__name__)\n"
    if name in ("libcst", "multiprocessing"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(mark)
    else:
        (folder / f"{name}.py").write_text(mark)


def findings(line: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """The codes that a call reports on the script; nothing of the folder must have been imported."""
    before = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*line, "--no-cache", "--output-format", "json", "train.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**before, **(environment or {})},
        timeout=60,
        check=False,
    )
    mark = folder.parent / "imported"
    assert not mark.exists(), f"imported of the folder: {mark.read_text()}"
    assert done.returncode == 1, done.stderr
    return [finding["code"] for finding in json.loads(done.stdout)["findings"]]


@pytest.mark.parametrize("call", CALLS)
def test_nothing_of_the_working_directory_is_imported(hostile: Path, call: str) -> None:
    if call == "python -c":  # what it names itself is imported before a line of ours: `cli` begins with `__future__`
        (hostile / "__future__.py").unlink()
    codes = findings(CALLS[call], hostile)
    assert "DDP201" in codes and "DDP502" in codes and "DDP101" not in codes


def test_not_even_a_package_of_our_name(hostile: Path) -> None:
    poison(hostile, "validate_ddp")
    assert "DDP201" in findings(CALLS["validate-ddp"], hostile)


@pytest.mark.parametrize("entry", [".", *(pytest.param(entry, marks=pytest.mark.slow) for entry in ("", "lib", "{}"))])
def test_an_environment_that_names_the_folder_does_not_change_that(hostile: Path, entry: str) -> None:
    """Python itself, and the script that pip writes, look there first: what they take is not ours to decide."""
    (hostile / "lib").mkdir()
    for folder in (hostile, hostile / "lib"):
        for path in folder.glob("*.py"):
            if path.stem not in ("train", "tomllib", "tomli", "argparse", "json", "yaml", "msvcrt", "_blake2"):
                path.unlink()
    for name in ("libcst", "rich", "tomllib", "argparse"):
        if entry == "lib":
            poison(hostile / "lib", name)
    path = os.pathsep.join((entry.format(hostile), os.path.join(hostile, "nowhere")))
    for call in CALLS.values():
        assert "DDP201" in findings(call, hostile, {"PYTHONPATH": path})


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_are_not_forked_import_nothing_of_it(hostile: Path, method: str) -> None:
    for number in range(48):  # so many are shared among processes
        (hostile / f"train{number}.py").write_bytes(BUGGY.read_bytes())
    code = f"""
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import multiprocessing
if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    from validate_ddp.cli import run
    run()
"""
    start = hostile.parent / "start.py"
    start.write_text(code)
    codes = findings([sys.executable, str(start), "--jobs", "2", "."], hostile)
    assert codes.count("DDP201") == 49


def test_the_command_works_in_its_own_folders(tmp_path: Path) -> None:
    """Where the working directory is where our package, the standard library or LibCST lies, they are still found."""
    import libcst
    import validate_ddp

    script = tmp_path / "train.py"
    script.write_bytes(BUGGY.read_bytes())
    for module in (validate_ddp, libcst):
        folder = Path(module.__file__ or "").parents[1]
        for line in CALLS.values():
            done = subprocess.run(
                [*line, "--no-cache", "--isolated", "-q", str(script)], capture_output=True, text=True, cwd=folder,
                timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 1 and "DDP201" in done.stdout, done.stderr
    done = subprocess.run(
        [*CALLS["python -m"], "--no-cache", str(script)], capture_output=True, text=True, check=False, timeout=60,
        cwd=os.path.dirname(os.__file__),
    )  # fmt: skip
    assert done.returncode == 1 and "DDP201" in done.stdout, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="pipes in folders")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_bytes(BUGGY.read_bytes())
    for name in ("pyproject.toml", ".gitignore", "helper.py", "run.sh"):
        os.mkfifo(tmp_path / name)
    assert "DDP201" in findings(CALLS["validate-ddp"], tmp_path)
    done = subprocess.run(
        [COMMAND, "--no-cache", "."], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1 and "helper.py:1:1: warning DDP001" in done.stdout and "DDP201" in done.stdout
    named = subprocess.run(
        [COMMAND, "--no-cache", "helper.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert named.returncode == 2 and "helper.py:1:1: error DDP001" in named.stdout


@pytest.mark.skipif(os.name == "nt", reason="a folder in use cannot be removed")
@pytest.mark.parametrize("call", CALLS)
def test_a_working_directory_that_is_gone_is_told(tmp_path: Path, call: str) -> None:
    code = (
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *CALLS[call], "train.py"], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "validate-ddp: error: the working directory is gone: change to one that exists\n"


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_does_not_change_what_is_done(tmp_path: Path, closed: str) -> None:
    (tmp_path / "train.py").write_bytes(BUGGY.read_bytes())
    line = f"'{COMMAND}' --no-cache --fix train.py {closed}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"set_epoch(" in (tmp_path / "train.py").read_bytes()
    assert b"Fixed" not in (tmp_path / "train.py").read_bytes()


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize("call", ["validate-ddp", "python -m"])
def test_a_rehearsal_imports_nothing_of_the_working_directory(hostile: Path, call: str) -> None:
    """Of its own folder a script imports what it asks for; nothing of ours asks for more than torch does."""
    pytest.importorskip("torch")
    script = hostile.parent / "elsewhere" / "train.py"
    script.parent.mkdir()
    # The barrier: a rank that ends while another one still connects to it takes that one down.
    script.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    modules = script.with_name("modules.py")
    modules.write_text("import sys\nfor name in sys.modules:\n    print('module', name)\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    line = [*CALLS[call], "run"]
    done = subprocess.run(
        [*line, str(script)], cwd=hostile, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    mark = hostile.parent / "imported"
    assert not mark.exists(), f"imported of the folder: {mark.read_text()}"
    assert done.returncode == 0, done.stderr
    assert " on 2 ranks" in done.stdout and "never reported" not in done.stdout
    done = subprocess.run(
        [*line, "--nproc-per-node", "1", str(modules)], cwd=hostile, env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    plain = subprocess.run([sys.executable, str(modules)], env=environment, capture_output=True, text=True, check=True)
    rehearsed, alone = (
        {line.split()[1] for line in out.splitlines() if line.startswith("module ")}
        for out in (done.stdout, plain.stdout)
    )
    ours = (rehearsed - alone) & sys.stdlib_module_names - set(sys.builtin_module_names)
    assert ours <= {"__future__", "importlib", "warnings"}


@pytest.mark.runtime
def test_the_process_that_ranks_of_tests_come_from_imports_nothing_of_it(hostile: Path) -> None:
    pytest.importorskip("torch")
    poison(hostile, "validate_ddp")
    start = hostile.parent / "start.py"
    start.write_text(
        "from validate_ddp.testing.server import Forkserver\n"
        "server = Forkserver()\nserver.wait_until_ready()\nserver.close(0)\nprint('ready')\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, str(start)], cwd=hostile, env=environment, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    mark = hostile.parent / "imported"
    assert not mark.exists(), f"imported of the folder: {mark.read_text()}"
    assert done.stdout == "ready\n", done.stderr
