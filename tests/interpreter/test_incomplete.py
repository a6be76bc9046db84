"""What a walk that cannot look at everything says, and what it still finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from validate_ddp.commands import exit_code

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
"""
HANG = "if rank == 0:\n    dist.barrier()\n"
FILLING = "".join(f"x{number} = rank + {number}\n" for number in range(40))
EPOCHS = """\
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, sampler=sampler)
model = DDP(torch.nn.Linear(1, 1))
for epoch in range(10):
    for batch in loader:
        model(batch).backward()
    fill()
    sampler.set_epoch(epoch)
"""
FILL = "def fill():\n" + "".join(f"    x{number} = dist.get_rank() + {number}\n" for number in range(40))


def again(monkeypatch: pytest.MonkeyPatch, statements: int) -> None:
    monkeypatch.setattr("validate_ddp.interpreter.machine.MOST_AGAIN", statements)


def once(monkeypatch: pytest.MonkeyPatch, statements: int) -> None:
    monkeypatch.setattr("validate_ddp.interpreter.machine.MOST_ONCE", statements)


def test_what_a_program_holds_is_looked_at_however_long_it_is(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    again(monkeypatch, 10)
    assert lint(HEAD + FILLING + HANG).but("DDP101").told == [("DDP401", "error")]


def test_what_was_found_before_the_limit_stands_and_the_limit_is_said(
    lint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, 20)
    script = HEAD + HANG + FILLING + "dist.destroy_process_group()\n"
    assert set(lint(script).but("DDP101").told) == {("DDP401", "error"), ("DDP004", "info")}
    (note,) = (finding for finding in lint(script).but("DDP101") if finding.code == "DDP004")
    assert (note.path, note.name, note.confirmed) == ("train.py", "analysis-incomplete", True)
    assert note.line > 9 and note.evidence[0].span.line >= note.line
    assert exit_code([note], "error") == 0


def test_a_script_that_is_looked_at_whole_has_no_such_note(lint: Any) -> None:
    assert "DDP004" not in lint(HEAD + HANG + FILLING).but("DDP101").codes


def test_functions_walked_again_and_again_are_limited_and_it_is_said(
    lint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = HEAD + FILL + "fill()\nif rank == 0:\n    fill()\n" + HANG
    assert [finding.code for finding in lint(script).but("DDP101")] == ["DDP401"]
    again(monkeypatch, 10)
    (note,) = lint(script).but("DDP101")
    assert note.code == "DDP004" and "too many ways" in note.message
    assert note.line == HEAD.count("\n") + 44  # the call in the script; where the walk stopped is its evidence
    assert FILL.split("\n")[note.evidence[0].span.line - HEAD.count("\n") - 1].startswith("    x")


def test_no_error_is_made_of_a_loop_that_was_not_walked_to_its_end(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lint(HEAD + FILL + EPOCHS).but("DDP101") == []
    again(monkeypatch, 10)
    found = lint(HEAD + FILL + "fill()\n" + EPOCHS).but("DDP101")
    assert set(found.severities) == {"info"}
    assert "DDP004" in found.codes
    assert all(finding.fix is None for finding in found)


def test_no_error_is_made_of_a_branch_whose_other_side_was_not_walked(
    lint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = HEAD + FILL + "fill()\nif rank == 0:\n    dist.barrier()\nelse:\n    fill()\n    dist.barrier()\n"
    assert lint(script).but("DDP101") == []
    again(monkeypatch, 10)
    assert set(lint(script).but("DDP101").severities) == {"info"}


def test_calls_that_are_nested_too_deeply_are_said(lint: Any) -> None:
    calls = "".join(
        f"def f{number}(rank):\n    f{number + 1}(rank)\n    print(rank)\n    print(1)\n" for number in range(60)
    )
    script = HEAD + calls + "def f60(rank):\n    dist.barrier()\nif rank == 0:\n    f0(rank)\n"
    (note,) = lint(script).but("DDP101")
    assert note.code == "DDP004" and "40 deep" in note.message


def test_a_program_too_deep_for_pythons_stack_is_said(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(number: int) -> str:
        branches = "".join(f"{'    ' * (depth + 1)}if flag.a{depth}:\n" for depth in range(7))
        inner = "    " * 8 + f"f{number + 1}(flag)\n"
        return f"def f{number}(flag):\n    dist.barrier()\n" + branches + inner

    functions = "".join(function(number) for number in range(34)) + "def f34(flag):\n    pass\n"
    script = "import argparse\n" + HEAD + HANG + functions + "f0(argparse.ArgumentParser().parse_args())\n"
    assert [finding.code for finding in lint(script).but("DDP101")] == ["DDP401"]
    monkeypatch.setattr("validate_ddp.interpreter.trace._DEEPEST", 0)
    found = lint(script).but("DDP101")
    assert found.told == [("DDP401", "error"), ("DDP004", "info")]
    assert "stack" in found[1].message and found[1].line == script.count("\n")
    assert found[1].evidence[0].span.line < found[1].line


def test_a_function_met_in_new_surroundings_is_walked_however_often_it_was_before(lint: Any) -> None:
    save = "def save(model, path):\n    print(path)\n    print(model)\n    print(1)\n    print(2)\n    torch.save(model, path)\n"
    guarded = "if rank == 0:\n" + "".join(f"    save(model, 'a{number}.pt')\n" for number in range(8))
    head = HEAD + "model = torch.nn.Linear(1, 1)\n" + save
    assert lint(head + guarded).but("DDP101") == []
    assert [finding.code for finding in lint(head + guarded + "save(model, 'last.pt')\n").but("DDP101")] == ["DDP502"]


@pytest.mark.parametrize(
    "settings", [{"ignore": ("DDP004",)}, {"ignore": ("analysis-incomplete",)}, {"select": ("DDP4",)}]
)
def test_it_can_be_ignored(lint: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    once(monkeypatch, 20)
    assert [finding.code for finding in lint(HEAD + HANG + FILLING, **settings).but("DDP101")] == ["DDP401"]


def test_it_can_be_suppressed_and_is_remembered(lint: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    once(monkeypatch, 20)
    script = "# validate-ddp: ignore-file[DDP004]\n" + HEAD + HANG + FILLING
    assert [finding.code for finding in lint(script).but("DDP101")] == ["DDP401"]
    cache = str(tmp_path / "cache")
    first = lint(HEAD + HANG + FILLING, cache_dir=cache).but("DDP101")
    assert lint(HEAD + HANG + FILLING, cache_dir=cache).but("DDP101") == first
    assert [finding.code for finding in first] == ["DDP401", "DDP004"]
