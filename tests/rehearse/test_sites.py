"""Where the script called, as ranks tell it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from validate_ddp.rehearse import child


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that a rank imports beside the script."""
    monkeypatch.syspath_prepend(child.__path__[0])
    before = set(sys.modules)
    import validate_ddp_rehearsed.sites as module

    yield module
    for name in set(sys.modules) - before:
        if name.startswith("validate_ddp_rehearsed"):
            del sys.modules[name]


def test_code_that_stands_on_no_line_is_told_with_its_first(sites: Any) -> None:
    """As at the start of what ``dataclass`` generates: Python says no line there, and no log may hold that."""
    code = SimpleNamespace(co_filename="/project/train.py", co_firstlineno=7, co_name="make")
    made = sites.Sites("/torch", "/project", print)
    assert made.entry(SimpleNamespace(f_code=code, f_lineno=None)) == ("/project/train.py", 7, "make", False)
    assert made.entry(SimpleNamespace(f_code=code, f_lineno=9))[1] == 9
