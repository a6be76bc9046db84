"""DDP402: rank zero evaluates the wrapped model alone."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Edit, Mutant, Place
from ci.mutants.script import Script
from ci.mutants.sites import forwards, in_evaluation, rank_zero


def plant(script: Script) -> Iterator[Mutant]:
    """Guards the loop over the evaluation data, where its model is under DistributedDataParallel."""
    if not script.mentions("DistributedDataParallel"):
        return
    for file, call in forwards(script):
        loop = file.enclosing(call, cst.For)
        if loop is None or not in_evaluation(file, call):
            continue
        imported = ""
        condition = rank_zero(file)
        if condition is None:
            imported, condition = "import torch.distributed as dist\n", "dist.get_rank() == 0"
        edit = file.under(loop, f"if {condition}:")
        place = Place(edit.path, edit.start, edit.end)
        edits: tuple[Edit, ...] = (edit,)
        if imported:
            top = next(node for node in file.nodes if isinstance(node, cst.Import))
            edits = (edit, file.before(file.statement(top), imported.rstrip()))
        yield Mutant("DDP402", "rank zero evaluates alone", edits, (place,))
