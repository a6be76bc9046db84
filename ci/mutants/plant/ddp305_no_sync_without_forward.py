"""DDP305: ``no_sync`` without effect, or on the wrong micro-step."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import libcst as cst

from ci.mutants.accumulation import contexts
from ci.mutants.mutant import Edit, Mutant, Place
from ci.mutants.script import File, Script


def plant(script: Script) -> Iterator[Mutant]:
    """The forward taken out of the block; a flag that is never true; one that is true a step too early."""
    for file, block, choice in contexts(script):
        expected = (file.place(block), file.place(choice))
        edit = _forward_outside(file, block)
        if edit is not None:
            yield Mutant("DDP305", "no_sync around backward only", (edit,), (Place(edit.path, edit.start, edit.end),))
        for test, text in _flags(file, choice):
            yield Mutant("DDP305", f"synchronises if {text}", (file.replace(test, text),), expected)


def _forward_outside(file: File, block: cst.With) -> Edit | None:
    assert isinstance(block.body, cst.IndentedBlock)
    backward = [line for line in block.body.body if ".backward()" in file.code(line)]
    if not backward or block.body.body[0] is backward[0]:
        return None
    start, end = file.lines_of(block)
    first, _ = file.lines_of(block.body.body[0])
    last, _ = file.lines_of(backward[0])
    forward = textwrap.indent(textwrap.dedent(file.text[first:last]), file.indent_of(block))
    return Edit(file.path, start, end, forward + file.text[start:first] + file.text[last:end])


def _flags(file: File, choice: cst.SimpleStatementLine) -> Iterator[tuple[cst.CSTNode, str]]:
    """The condition under which the last micro-step is recognised, and wrong ones in its place."""
    function = file.function(choice)
    assert function is not None
    for chosen in file.inside(choice, cst.IfExp):
        for assign in file.inside(function, cst.Assign):
            code = file.code(assign.value)
            if file.code(assign.targets[0].target) == file.code(chosen.test) and " + 1) % " in code:
                divisor = code.partition(" + 1) % ")[2].partition(" == ")[0]
                yield chosen.test, code.replace("== 0", f"== {divisor}")
                yield chosen.test, code.replace("(step + 1)", "step")
