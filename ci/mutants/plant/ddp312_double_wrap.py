"""DDP312: wrapped twice, or before the model is what it will be."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import Script
from ci.mutants.sites import assigned_name, wraps


def plant(script: Script) -> Iterator[Mutant]:
    """DDP of DDP; ``.to(device)`` after wrapping; ``convert_sync_batchnorm`` after wrapping."""
    for file, wrap in wraps(script):
        inner, name, line = wrap.args[0].value, assigned_name(file, wrap), file.statement(wrap)
        place = (file.place(line),)
        twice = file.replace(inner, f"{file.code(wrap.func)}({file.code(inner)})")
        yield Mutant("DDP312", "DDP of DDP", (twice,), place, frozenset({"DDP501"}))  # .module is a wrapper still
        if isinstance(inner, cst.Call) and file.code(inner.func).endswith(".to"):
            assert isinstance(inner.func, cst.Attribute)
            device = file.code(inner.args[0].value)
            bare = file.code(inner.func.value)
            moved = file.code(wrap).replace(file.code(inner), bare, 1) + f".to({device})"
            yield Mutant("DDP312", "wrapped before .to()", (file.replace(wrap, moved),), place)
        if script.mentions("BatchNorm") and name is not None:
            added = file.after(line, f"{name} = torch.nn.SyncBatchNorm.convert_sync_batchnorm({name})")
            expected = (*place, Place(added.path, added.start, added.end))
            yield Mutant("DDP312", "wrapped before convert_sync_batchnorm", (added,), expected)
