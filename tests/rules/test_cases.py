"""Every rule's own VALID and INVALID scripts: the marked lines are found, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from validate_ddp.catalogue import Stub, describe, every, reads
from validate_ddp.config import Settings
from validate_ddp.findings import INFO
from validate_ddp.lint import check

CHECKED = [stub for stub in every() if stub.code >= "DDP1" and reads(stub)]
_EXPECT = re.compile(r"#\s*expect(?::\s*(DDP\d+))?")


def _found(script: str, folder: Path, code: str) -> set[tuple[int, str]]:
    """Errors, warnings, and what the rule itself says of cost."""
    file = folder / "train.py"
    file.write_text(script)
    outcome = check([str(file)], Settings(cache_dir=None, root=str(folder)))
    assert all(finding.confirmed for finding in outcome.findings)
    return {
        (finding.line, finding.code) for finding in outcome.findings if finding.severity != INFO or finding.code == code
    }


def _expected(script: str, code: str) -> set[tuple[int, str]]:
    return {
        (number, match.group(1) or code)
        for number, line in enumerate(script.splitlines(), 1)
        for match in _EXPECT.finditer(line)
    }


@pytest.mark.parametrize("stub", CHECKED, ids=lambda stub: stub.code)
def test_invalid_scripts_are_found_on_their_lines(stub: Stub, tmp_path: Path) -> None:
    cases = describe(stub).invalid
    assert len(cases) >= 3
    for script in cases:
        assert _expected(script, stub.code), "an INVALID script marks the lines of its findings"
        assert _found(script, tmp_path, stub.code) == _expected(script, stub.code), script


@pytest.mark.parametrize("stub", CHECKED, ids=lambda stub: stub.code)
def test_valid_scripts_are_left_alone(stub: Stub, tmp_path: Path) -> None:
    cases = describe(stub).valid
    assert len(cases) >= 3
    for script in cases:
        assert _found(script, tmp_path, stub.code) == set(), script


@pytest.mark.parametrize("stub", every(), ids=lambda stub: stub.code)
def test_documentation_has_its_sections(stub: Stub) -> None:
    rule = describe(stub)
    for section in ("## What it does", "## Why is this bad?", "## Example", "## Use instead"):
        assert section in rule.documentation, section
    assert ("## Fix safety" in rule.documentation) is (rule.fix != "-")
