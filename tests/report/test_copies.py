"""A statement that was pasted into many files is one finding to a reader, with its places; to a machine it is each."""

from __future__ import annotations

from typing import Any

from validate_ddp.config import Settings
from validate_ddp.lint import check
from validate_ddp.report import Options, render

SCRIPT = """
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(1, 1))
model(torch.ones(1)).sum().backward()
torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
"""


def reports(lint: Any, *scripts: str) -> tuple[str, int]:
    """The report for people, and the number of lines of the one for editors."""
    lint.write({f"{number}/train.py": lint.imports + script for number, script in enumerate(scripts)})
    outcome = check((".",), Settings(**lint.settings))
    rows = render(outcome, "concise", Options(summary=False)).splitlines()
    return render(outcome, "text", Options()), len(rows)


def test_copies_are_told_once_with_their_places(lint: Any) -> None:
    text, rows = reports(lint, *[SCRIPT] * 4)
    assert text.count("DDP502") == 1 and "a copy of this in 3 other files: 1/train.py:15:1, 2/train.py:15:1" in text
    assert "4 findings (4 errors)" in text and rows == 4


def test_what_differs_beside_it_is_told_apart(lint: Any) -> None:
    others = [SCRIPT.replace("(1, 1)", f"({number}, 1)") for number in range(4)]
    assert reports(lint, *others)[0].count("DDP502") == 4


def test_a_pair_is_told_twice(lint: Any) -> None:
    assert reports(lint, SCRIPT, SCRIPT)[0].count("DDP502") == 2
