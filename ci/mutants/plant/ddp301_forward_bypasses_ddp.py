"""DDP301: training runs forward past the wrapper."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script
from ci.mutants.sites import assigned_name, training_forwards, wraps


def plant(script: Script) -> Iterator[Mutant]:
    """Every training forward through ``.module``, or by the name from before wrapping."""
    wrapped = list(wraps(script))
    if not wrapped:
        return
    sites = training_forwards(script)
    expected = tuple(file.place(file.statement(call)) for file, call in sites)
    edits = [file.replace(call.func, f"{file.code(call.func)}.module") for file, call in sites]
    if edits:
        yield Mutant("DDP301", "forward of .module", tuple(edits), expected)
    for file, wrap in wrapped:
        inner, outer = wrap.args[0].value, assigned_name(file, wrap)
        if not isinstance(inner, cst.Name) or inner.value == outer:
            continue
        here = [(f, c) for f, c in sites if f is file and f.function(c) is file.function(wrap)]
        edits = [f.replace(c.func, inner.value) for f, c in here if f.code(c.func) == outer]
        if edits and len(edits) == len(sites):
            yield Mutant("DDP301", f"forward of {inner.value}", tuple(edits), expected)
