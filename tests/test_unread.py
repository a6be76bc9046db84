"""What becomes of files that cannot be read or parsed: told by weight, and the others are checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from validate_ddp.commands import exit_code

BUGGY = "import torch.distributed as dist\n\ndist.init_process_group('gloo')\n"
BROKEN = "import torch.distributed\ndef (:\n"
NEWER = "import torch.distributed\nlazy import torch\n"


def told(found: Any) -> set[tuple[str, str, str]]:
    return {(finding.path, finding.code, finding.severity) for finding in found}


def test_a_broken_file_is_an_error_where_it_is_named_and_a_warning_where_it_is_met(lint: Any) -> None:
    lint.write(train=BUGGY)
    lint.write(broken=BROKEN)
    others = ("train.py", "DDP101", "warning")
    assert told(lint.run("train.py", "broken.py")) == {others, ("broken.py", "DDP002", "error")}
    assert told(lint.run(".")) == {others, ("broken.py", "DDP002", "warning")}
    assert told(lint.run(".", "broken.py")) == {others, ("broken.py", "DDP002", "error")}
    assert exit_code(lint.run("."), "error") == 0 and exit_code(lint.run("."), "warning") == 1
    assert exit_code(lint.run("broken.py"), "never") == 2


def test_a_file_that_holds_no_text_is_a_warning_where_it_is_met(lint: Any) -> None:
    lint.write(data=b"torch.distributed \0")
    assert told(lint.run(".")) == {("data.py", "DDP001", "warning")}
    assert told(lint.run("data.py")) == {("data.py", "DDP001", "error")}


def test_a_file_that_may_not_be_opened_is_an_error_wherever_it_is(lint: Any) -> None:
    lint.write(locked=BUGGY)
    os.chmod("locked.py", 0)
    if os.access("locked.py", os.R_OK):
        Path("locked.py").unlink()
        Path("locked.py").symlink_to(Path("locked.py").resolve())  # a loop: cannot be opened by anybody
        assert told(lint.run("locked.py")) == {("locked.py", "DDP001", "error")}
        return
    assert told(lint.run(".")) == {("locked.py", "DDP001", "error")}


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="its syntax")
def test_newer_syntax_is_a_note_with_the_version_also_where_the_file_is_named(lint: Any) -> None:
    lint.write(newer=NEWER)
    for target in ("newer.py", "."):
        (finding,) = lint.run(target)
        assert (finding.code, finding.severity) == ("DDP002", "info")
        assert "needs Python 3.15" in finding.message
        assert exit_code([finding], "error") == 0


@pytest.mark.parametrize(
    "line",
    [
        'print(f"{\', \'.join(["a"])} {group["x"]}")',
        'print(f"{group["x"]:>{group["width"]}} {f"{group}"}")',
        "print(f'{\"\\n\".join([])}')",
    ],
)
def test_f_strings_of_a_newer_python_are_read(lint: Any, line: str) -> None:
    lint.write(train=f"group = {{}}\n{line}\n" + BUGGY)
    (finding,) = lint.run("train.py")
    assert (finding.code, finding.line, finding.column, finding.confirmed) == ("DDP101", 5, 1, True)


def test_a_suppression_holds_beside_newer_f_strings(lint: Any) -> None:
    line = BUGGY.rstrip() + "  # noqa: DDP101\n"
    lint.write(train='group = {}\nprint(f"{group["x"]}")\n' + line)
    assert lint.run("train.py") == []


def test_a_broken_cell_is_left_out_and_the_others_are_checked(lint: Any) -> None:
    lint.write({"a.ipynb": lint.notebook("x = = 1", "y = 2", "z = (", BUGGY)})
    for target in (".", "a.ipynb"):
        problem, defect = lint.run(target)
        assert (problem.code, problem.cell, problem.severity) == ("DDP002", 1, "info")
        assert "1 more" in problem.message and "left out" in problem.message
        assert (defect.code, defect.cell, defect.line) == ("DDP101", 4, 3)


def test_the_cell_that_is_left_out_is_told_again_from_the_cache(lint: Any) -> None:
    lint.write({"a.ipynb": lint.notebook("x = = 1", BUGGY)})
    first = lint.run(".", cache_dir="cache")
    assert [finding.code for finding in first] == ["DDP002", "DDP101"]
    assert lint.run(".", cache_dir="cache") == first


def test_ipython_lines_behind_a_blank_are_no_syntax_error(lint: Any) -> None:
    lint.write({"a.ipynb": lint.notebook(" !tts --text x \\\n   --out y", " %cd x\n ?", BUGGY)})
    assert [(finding.code, finding.cell) for finding in lint.run(".")] == [("DDP101", 3)]


def test_an_empty_notebook_is_a_note(lint: Any) -> None:
    lint.write({"a.ipynb": ""})
    lint.write(train="print(1)\n")
    assert told(lint.run(".")) == {("a.ipynb", "DDP001", "info")}
    assert exit_code(lint.run("."), "error") == 0


def test_a_file_of_another_kind_is_a_note_and_the_others_are_checked(lint: Any) -> None:
    lint.write({"run.fish": "torchrun --nproc_per_node 8 train.py\n"})
    lint.write({"slurm.toml": "a = 1\n"})
    lint.write({"launch.sh": "torchrun --master_port 66666 train.py\n"})
    lint.write({"train": "#!/usr/bin/env python\n" + BUGGY})
    found = {(each.path, each.code): each for each in lint.run("run.fish", "slurm.toml", "launch.sh", "train")}
    notes = {("run.fish", "DDP001"), ("slurm.toml", "DDP001")}
    assert set(found) == {*notes, ("launch.sh", "DDP806"), ("train", "DDP101")}
    assert "shell script" in found["run.fish", "DDP001"].message
    assert all("nor a launch file: it is not read" in found[note].message for note in notes)
    assert exit_code([found[note] for note in notes], "error") == 0


def test_a_launch_file_comes_on_standard_input_too(lint: Any) -> None:
    assert told(lint.run("-", stdin=b"set -e\n", stdin_filename="run.sh")) == set()
    broken = b"torchrun --master_port 66666 train.py\n"
    assert told(lint.run("-", stdin=broken, stdin_filename="run.sh")) == {("run.sh", "DDP806", "error")}


def test_a_file_of_unknown_kind_that_is_no_python_is_a_note_and_broken_python_an_error(lint: Any) -> None:
    lint.write({"job": "FROM x AS y\n"})
    lint.write({"tool": "#!/usr/bin/python3\nFROM x AS y\n"})
    assert told(lint.run("job", "tool")) == {("job", "DDP001", "info"), ("tool", "DDP002", "error")}
