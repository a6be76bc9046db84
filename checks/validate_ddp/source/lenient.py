"""Reads what the parser refuses as a whole, though most of it can be read: newer f-strings, a broken notebook cell."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from validate_ddp.source.parsing import parse
from validate_ddp.source.text import NEWER, PARTIAL, SYNTAX, Cell, Problem, Source, split_lines

if TYPE_CHECKING:
    import ast


def read_anyway(source: Source, problem: Problem) -> tuple[ast.Module | None, Problem | None]:
    """The tree of what can be read of a text that ``parse`` refuses, and the problem that is left.

    Lines and columns are those of ``source.text``. (None, problem) where nothing can be read.
    """
    if problem.cause == NEWER:
        tree = _with_older_strings(source) if sys.version_info < (3, 12) else None
        tree = tree or _with_older_syntax(source)
        if tree is not None:
            return tree, None
    if source.cells:
        return _without_broken_cells(source, problem)
    return None, problem


def _with_older_strings(source: Source) -> ast.Module | None:
    from validate_ddp.source.lexical import for_older_python

    older = for_older_python(source.text)
    tree = None if older is None else parse(source._replace(text=older))
    return None if isinstance(tree, Problem) else tree


def _with_older_syntax(source: Source) -> ast.Module | None:
    from validate_ddp.source.newer import for_this_python  # LibCST, which nobody waits for but such a file

    older = for_this_python(source.text)
    if older is None:
        return None
    tree = parse(source._replace(text=older))
    if isinstance(tree, Problem) and sys.version_info < (3, 12):
        return _with_older_strings(source._replace(text=older))
    return None if isinstance(tree, Problem) else tree


def _without_broken_cells(source: Source, problem: Problem) -> tuple[ast.Module | None, Problem | None]:
    """A notebook runs cell by cell, and one that is half written or an exercise does not keep the others from it."""
    assert source.cells is not None
    lines = split_lines(source.text)
    broken: list[Problem] = []
    for cell in source.cells:
        rows = slice(cell.first_line - 1, cell.first_line - 1 + cell.line_count)
        found = parse(Source(source.path, b"", "".join(lines[rows])))
        if isinstance(found, Problem):
            broken.append(_in_cell(source.path, cell, found))
            lines[rows] = ["#" + line for line in lines[rows]]
    tree = parse(source._replace(text="".join(lines)))
    if isinstance(tree, Problem):
        return None, problem
    if not broken:  # its cells can be read one by one, and together, once more: nothing is wrong
        return tree, None
    more = f", as {len(broken) - 1} more" if len(broken) > 1 else ""
    first = broken[0]
    return tree, first._replace(message=f"{first.message} (this cell is left out{more}; the others are checked)")


def _in_cell(path: str, cell: Cell, problem: Problem) -> Problem:
    line = max(1, min(problem.line, cell.line_count))
    return Problem(path, line, problem.column, problem.message, SYNTAX, cell.number, PARTIAL)
