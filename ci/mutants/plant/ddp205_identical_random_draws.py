"""DDP205: every rank draws the same noise."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script


def plant(script: Script) -> Iterator[Mutant]:
    """Takes the rank out of the seed, where noise is drawn in training."""
    draws = [
        file.place(file.statement(call))
        for file, call in script.calls("torch.randn", "torch.randn_like", "torch.rand")
        if file.function(call) is not None
    ]
    for file, call in script.calls(".manual_seed"):
        if call.args and draws and re.search(r"\+ (self\.)?rank$", file.code(call.args[0].value)):
            sum_ = call.args[0].value
            assert isinstance(sum_, cst.BinaryOperation)
            edit = file.replace(sum_, file.code(sum_.left))
            yield Mutant("DDP205", "the seed without the rank", (edit,), (file.place(file.statement(call)), *draws))
