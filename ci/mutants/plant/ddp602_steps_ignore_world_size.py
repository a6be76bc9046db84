"""DDP602: the number of steps is that of one process."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import File, Script
from ci.mutants.sites import flow_of


def plant(script: Script) -> Iterator[Mutant]:
    """Counts steps from the data set instead of the loader's length."""
    for file, call in script.calls("len"):
        line = file.statement(call)
        assign = file.enclosing(call, cst.Assign)
        if assign is None or "loader" not in flow_of(script).kinds(file, call.args[0].value):
            continue
        target = file.code(assign.targets[0].target)
        if not re.search(r"step|update|total_it", target):
            continue
        loader = file.code(call.args[0].value)
        expected = (file.place(line), *_uses(file, line, target))
        texts = [f"(len({loader}.dataset) // {loader}.batch_size)"]
        made = [tag.node for tag in flow_of(script).tags(file, call.args[0].value) if tag.kind == "loader"]
        for holder, maker in script.calls("DataLoader"):
            if maker in made and holder is file and file.function(maker) is file.function(call):
                size = maker.args[1].value
                texts.append(f"(len({file.code(maker.args[0].value)}) // {file.code(size)})")
        for text in texts:
            yield Mutant("DDP602", text, (file.replace(call, text),), expected)


def _uses(file: File, line: cst.CSTNode, name: str) -> Iterator[Place]:
    for node in file.inside(file.function(line) or line, cst.Name):
        statement = file.statement(node)
        if node.value == name and isinstance(statement, cst.SimpleStatementLine):
            yield file.place(statement)
