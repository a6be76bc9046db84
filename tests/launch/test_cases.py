"""Every rule on launch files: its own VALID and INVALID files."""

from __future__ import annotations

import re
from typing import Any

import pytest
from validate_ddp.catalogue import Stub, describe, every, launch_trigger
from validate_ddp.findings import INFO

CHECKED = [stub for stub in every() if launch_trigger(stub)]


def _found(read: Any, text: str, code: str) -> set[tuple[int, str]]:
    """Errors, warnings, and what the rule itself says."""
    return {(found.line, found.code) for found in read(text) if found.severity != INFO or found.code == code}


def _expected(text: str, code: str) -> set[tuple[int, str]]:
    return {(number, code) for number, line in enumerate(text.splitlines(), 1) if re.search(r"#\s*expect", line)}


@pytest.mark.parametrize("stub", CHECKED, ids=lambda stub: stub.code)
def test_invalid_files_are_found_on_their_lines(stub: Stub, read: Any) -> None:
    cases = describe(stub).invalid
    assert len(cases) >= 3
    for text in cases:
        assert _expected(text, stub.code), "an INVALID file marks the lines of its findings"
        own = {each for each in _found(read, text, stub.code) if each[1] == stub.code}
        assert own == _expected(text, stub.code), text


@pytest.mark.parametrize("stub", CHECKED, ids=lambda stub: stub.code)
def test_valid_files_are_left_alone(stub: Stub, read: Any) -> None:
    cases = describe(stub).valid
    assert len(cases) >= 3
    for text in cases:
        assert not [each for each in _found(read, text, stub.code) if each[1] == stub.code], text
