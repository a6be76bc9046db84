"""README's table of rules is that of the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

from validate_ddp.catalogue.registry import every, load

README = Path(__file__).resolve().parents[2] / "README.md"


def row(code: str, name: str, trigger: str, module: object) -> str:
    severities = ", ".join(getattr(module, "SEVERITIES", ()))
    only = " (rehearsal)" if trigger == "rehearsal" else ""
    fix = str(getattr(module, "FIX", "-")).strip("-")
    return f"| {code} | {name} | {severities}{only} | {fix} |"


def test_each_rule_has_its_row_and_no_other_has_one() -> None:
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if re.match(r"\| DDP\d+ \|", line)]
    expected = [row(stub.code, stub.name, stub.trigger, load(stub)) for stub in every()]
    assert rows == [each for each in expected if not each.startswith("| DDP00")]
