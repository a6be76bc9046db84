"""Adds an import to the ones at the top of a file, unless it is there."""

from __future__ import annotations

import ast
from typing import Any

from validate_ddp.edit.insertion import after_statement
from validate_ddp.edit.layout import Declined, Plan, Splice, Text, line_start_of, rendered_lines, start_of
from validate_ddp.edit.tree import parse
from validate_ddp.findings import Edit

IMPORTS_FIRST = 0


def imported(text: Text, edit: Edit) -> Plan:
    """``add_import``: behind the last import of the file's head; nothing where the name is imported already."""
    parsed = parse(edit.text.strip())
    statement: Any = parsed.body[0] if parsed is not None and len(parsed.body) == 1 else None
    if not isinstance(statement, (ast.Import, ast.ImportFrom)):
        raise Declined("the new code is not an import")
    wanted = _bound(statement)
    module = text.tree.module
    limit = text.first_line or len(text.starts) + 1
    above = [node for node in module.body if (node.end_lineno or node.lineno) < limit]
    there = {row for node in above if isinstance(node, (ast.Import, ast.ImportFrom)) for row in _bound(node)}
    if wanted <= there:
        return Plan((), lambda: None)
    for name, _ in wanted - there:
        if _means_something_else(module, name, wanted):
            raise Declined(f"the name `{name}` means something else in the file")
    anchor = _last_import(above)
    splice = (
        _first(text, module, edit.text)
        if anchor is None
        else after_statement(text, anchor, start_of(text, anchor), edit.text)
    )

    def change() -> None:
        # The first of several at one place comes last here, and so first in the file.
        position = module.body.index(anchor) + 1 if anchor is not None else _documented(module)
        module.body.insert(position, statement)

    return Plan((splice._replace(order=IMPORTS_FIRST),), change, 1)


def _bound(node: ast.Import | ast.ImportFrom) -> frozenset[tuple[str, str]]:
    """The names that an import binds, each with what it stands for."""
    if isinstance(node, ast.ImportFrom):
        origin = "." * node.level + (node.module or "")
        return frozenset((alias.asname or alias.name, f"{origin}:{alias.name}") for alias in node.names)
    return frozenset(
        (alias.asname, _same_thing(alias.name)) if alias.asname else (alias.name.partition(".")[0],) * 2
        for alias in node.names
    )


def _same_thing(dotted: str) -> str:
    """``import a.b as c`` is ``from a import b as c``."""
    package, _, name = dotted.rpartition(".")
    return f"{package}:{name}" if package else dotted


def _means_something_else(module: ast.Module, name: str, wanted: frozenset[tuple[str, str]]) -> bool:
    for node in ast.walk(module):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(bound == name and (bound, origin) not in wanted for bound, origin in _bound(node)):
                return True
        elif isinstance(node, ast.Name):
            if node.id == name and not isinstance(node.ctx, ast.Load):
                return True
        elif getattr(node, "arg" if isinstance(node, ast.arg) else "name", None) == name and not isinstance(
            node, ast.alias
        ):
            return True
    return False


def _last_import(above: list[ast.stmt]) -> ast.stmt | None:
    """The last import before the first definition, else the last one."""
    last = None
    for node in above:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and last is not None:
            break
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            last = node
    return last


def _documented(module: ast.Module) -> int:
    """Index of the first statement behind the docstring."""
    return int(bool(module.body) and ast.get_docstring(module, clean=False) is not None)


def _first(text: Text, module: ast.Module, code: str) -> Splice:
    """Before the first statement, below all comments; behind the docstring of a file that holds no more."""
    index = _documented(module)
    if index == len(module.body):
        if not module.body:
            raise Declined("the file is empty")
        return after_statement(text, module.body[-1], start_of(text, module.body[-1]), code)
    start = start_of(text, module.body[index])
    line_start = line_start_of(text, start)
    if line_start is None:
        raise Declined("the first statement shares its line with another")
    newline = text.newline(start)
    return Splice(line_start, line_start, "".join(line + newline for line in rendered_lines(code, "", newline)))
