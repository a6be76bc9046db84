"""Every rule's own VALID and INVALID scripts: the marked lines are found, and nothing else is."""

from __future__ import annotations

import re
from typing import Any

import pytest
from validate_ddp.catalogue import Stub, describe, every, launch_trigger, reads
from validate_ddp.findings import INFO

CHECKED = [stub for stub in every() if stub.code >= "DDP1" and reads(stub) and not launch_trigger(stub)]
_EXPECT = re.compile(r"#\s*expect(?::\s*(DDP\d+))?")


def _found(lint: Any, script: str, code: str) -> set[tuple[int, str]]:
    """Errors, warnings, and what the rule itself says of cost."""
    found = lint(script)
    assert all(finding.confirmed for finding in found)
    return {(finding.line, finding.code) for finding in found if finding.severity != INFO or finding.code == code}


def _expected(script: str, code: str) -> set[tuple[int, str]]:
    return {
        (number, match.group(1) or code)
        for number, line in enumerate(script.splitlines(), 1)
        for match in _EXPECT.finditer(line)
    }


@pytest.mark.parametrize("stub", CHECKED, ids=lambda stub: stub.code)
def test_invalid_scripts_are_found_on_their_lines(stub: Stub, lint: Any) -> None:
    cases = describe(stub).invalid
    assert len(cases) >= 3
    for script in cases:
        assert _expected(script, stub.code), "an INVALID script marks the lines of its findings"
        assert _found(lint, script, stub.code) == _expected(script, stub.code), script


@pytest.mark.parametrize("stub", CHECKED, ids=lambda stub: stub.code)
def test_valid_scripts_are_left_alone(stub: Stub, lint: Any) -> None:
    cases = describe(stub).valid
    assert len(cases) >= 3
    for script in cases:
        assert _found(lint, script, stub.code) == set(), script
