"""Confirms what rules propose on LibCST's concrete syntax: the enclosing statement, never the whole file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

from validate_ddp.edit.nesting import SIZE, fit_for_libcst
from validate_ddp.edit.statements import Piece, cut
from validate_ddp.edit.telling import as_findings
from validate_ddp.findings import Finding, Proposal
from validate_ddp.source.positions import line_starts

if TYPE_CHECKING:
    from validate_ddp.source.text import Cell

_STATEMENTS: dict[str, tuple[type[libcst.CSTNode], ...]] = {
    "for": (libcst.For,),
    "while": (libcst.While,),
    "with": (libcst.With,),
    "if": (libcst.If,),
    "try": (libcst.Try, libcst.TryStar),
    "def": (libcst.FunctionDef,),
    "class": (libcst.ClassDef,),
    "match": (libcst.Match,),
    "reading": (libcst.BaseSmallStatement, libcst.BaseCompoundStatement),
}
"""Kinds of compound statements, of which only the header is at hand, and of any that reads a name: only their start is
compared."""

_NODES: dict[str, tuple[type[libcst.CSTNode], ...]] = {
    "call": (libcst.Call,),
    "name": (libcst.Name,),
    "attribute": (libcst.Attribute,),
    "subscript": (libcst.Subscript,),
    "expression": (libcst.BaseExpression,),
    "compare": (libcst.Comparison,),
    "lambda": (libcst.Lambda,),
    "argument": (libcst.Arg,),
    "assign": (libcst.Assign, libcst.AnnAssign, libcst.AugAssign, libcst.NamedExpr),
    "import": (libcst.Import, libcst.ImportFrom),
    "return": (libcst.Return,),
    "raise": (libcst.Raise,),
    "delete": (libcst.Del,),
    "statement": (libcst.BaseSmallStatement, libcst.BaseCompoundStatement, libcst.SimpleStatementLine),
}


def confirm(text: str, proposals: Sequence[Proposal], cells: tuple[Cell, ...] | None = None) -> list[Finding]:
    """The findings that the proposals on one file become, in their order.

    text: what the spans refer to. cells: of a notebook, to count lines within the cell. A proposal whose node LibCST
    does not find, or whose statement it cannot read, stays as a finding with ``confirmed=False`` and without a fix.
    """
    return as_findings(text, proposals, confirmed(text, proposals), cells)


def confirmed(text: str, proposals: Sequence[Proposal]) -> list[bool]:
    """Of each proposal, whether ``is_confirmed``."""
    starts = line_starts(text)
    return [is_confirmed(text, starts, proposal) for proposal in proposals]


def is_confirmed(text: str, starts: list[int], proposal: Proposal) -> bool:
    """Whether the node that the proposal expects is on the concrete syntax where the proposal says."""
    span = proposal.span
    if proposal.expects[0] == "place":  # no node: it says where, not what
        return True
    if proposal.statement.end_line - proposal.statement.line > SIZE or "\0" in text:
        return False
    for piece in cut(text, starts, proposal.statement, span):
        if not fit_for_libcst(piece.code):
            continue
        try:
            module = libcst.parse_module(piece.code.encode("utf-8"), _CONFIG)
        except (libcst.ParserSyntaxError, UnicodeError):
            continue
        except (libcst.CSTValidationError, RecursionError):
            return False
        try:
            return _find(module, piece, *proposal.expects)
        except RecursionError:
            return False
    return False


_CONFIG = libcst.PartialParserConfig(encoding="utf-8")
"""Said outright, lest a PEP 263 comment in a piece be taken for an encoding."""


def _find(module: libcst.Module, piece: Piece, kind: str, name: str) -> bool:
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    positions = wrapper.resolve(ByteSpanPositionProvider)
    wanted = _STATEMENTS.get(kind) or _NODES.get(kind, (libcst.CSTNode,))
    strings = []
    for node, position in positions.items():
        if isinstance(node, libcst.FormattedString):
            strings.append(node)
        if not isinstance(node, wanted) or position.start != piece.start:
            continue
        if kind in _STATEMENTS or position.start + position.length == piece.end:
            if _named(node, kind, name):
                return True
    # Before Python 3.12 `ast` gives wrong columns inside of f-strings: there the name has to do.
    return bool(name) and sys.version_info < (3, 12) and any(_inside(string, wanted, kind, name) for string in strings)


def _inside(string: libcst.FormattedString, wanted: tuple[type[libcst.CSTNode], ...], kind: str, name: str) -> bool:
    return any(isinstance(node, wanted) and _named(node, kind, name) for node in _within(string))


def _within(whole: libcst.CSTNode) -> Iterator[libcst.CSTNode]:
    todo = [whole]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(node.children)


def _named(node: libcst.CSTNode, kind: str, name: str) -> bool:
    """Whether a node bears the last name that is expected; "" expects none."""
    if not name:
        return True
    if kind == "reading":
        return any(isinstance(each, libcst.Name) and each.value == name for each in _within(node))
    if isinstance(node, libcst.Call):
        return _last_name(node.func) == name
    if isinstance(node, (libcst.FunctionDef, libcst.ClassDef)):
        return node.name.value == name
    if isinstance(node, (libcst.Name, libcst.Attribute)):
        return _last_name(node) == name
    # Of other nodes rules give no name, or one that is for people.
    return kind != "call"


def _last_name(node: libcst.CSTNode) -> str:
    """``save`` of ``torch.save``, of ``save`` and of ``get()[0].save``; "" for a callee without a name."""
    if isinstance(node, libcst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, libcst.Name) else ""
