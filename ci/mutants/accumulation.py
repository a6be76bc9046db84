"""How scripts accumulate gradients by hand: the block under ``no_sync`` and the statement that chooses it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.script import File, Script


def contexts(script: Script) -> Iterator[tuple[File, cst.With, cst.SimpleStatementLine]]:
    """``with context:``, where ``context = nullcontext() if last else model.no_sync()`` stands before it."""
    for file, block in script.find(cst.With):
        item = block.items[0].item
        if not isinstance(item, cst.Name):
            continue
        for other, assign in script.find(cst.Assign):
            if other is not file or "no_sync()" not in file.code(assign.value):
                continue
            line = file.statement(assign)
            if file.code(assign.targets[0].target) == item.value and isinstance(line, cst.SimpleStatementLine):
                yield file, block, line
