"""DDP403: who fails in a collective goes on alone."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import Script
from ci.mutants.sites import statement_calls

_OF_DATA = ("distributed.all_reduce", "distributed.reduce", "distributed.all_gather")
"""Collectives whose failure leaves local data; a barrier at the end of the script leaves nothing."""


def plant(script: Script) -> Iterator[Mutant]:
    """``try`` around each collective that is a statement; the handler passes, or says so and goes on."""
    for file, call, line in statement_calls(script, *_OF_DATA):
        function = file.function(call)
        if function is None or function.name.value == "backward":
            continue
        for error, handling in (("RuntimeError", "pass"), ("Exception as error", 'print("not reduced:", error)')):
            edit = file.under(line, "try:", f"except {error}:\n    {handling}")
            place = Place(edit.path, edit.start, edit.end)
            yield Mutant("DDP403", f"except {error.split()[0]} around {file.code(call.func)}", (edit,), (place,))
