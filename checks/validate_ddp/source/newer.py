"""Rewrites what only a newer Python accepts, character for character, so that this Python's parser takes it.

LibCST has a grammar of its own, which is newer than that of the Python that runs: it says where such syntax stands.
Lines and columns stay, and what is lost (type parameters, the other exceptions of a handler) is nothing that rules ask
about.
"""

from __future__ import annotations

import sys
from typing import Any

import libcst
from libcst import metadata

from validate_ddp.source.text import split_lines

_BROAD = ("BaseException", "Exception", "RuntimeError")
"""Exceptions that stand for the others in a handler of several."""
_TEMPLATE: type[Any] | None = getattr(libcst, "TemplatedString", None)
_ALIAS: type[Any] | None = getattr(libcst, "TypeAlias", None)

Place = tuple[int, int]
"""Line, from 1, and column, from 0, in characters."""


def for_this_python(text: str) -> str | None:
    """The text as older Python; None where LibCST refuses it too, or where nothing in it is rewritten."""
    try:
        module = metadata.MetadataWrapper(libcst.parse_module(text), unsafe_skip_copy=True)
        rewriting = _Rewriting(text, module.module)
        module.visit(rewriting)
    except (libcst.ParserSyntaxError, RecursionError, ValueError):
        return None
    return "".join("".join(line) for line in rewriting.lines) if rewriting.changed else None


class _Rewriting(libcst.CSTVisitor):
    METADATA_DEPENDENCIES = (metadata.PositionProvider,)

    def __init__(self, text: str, module: libcst.Module) -> None:
        super().__init__()
        self.lines = [list(line) for line in split_lines(text)]
        self.changed = False
        self._module = module

    def on_visit(self, node: libcst.CSTNode) -> bool:
        if type(node).__name__ == "TypeParameters":
            self._blank(*self._extent(node))
            return False
        if _ALIAS is not None and isinstance(node, _ALIAS):
            (line, column), _ = self._extent(node)
            self._put((line, column), "None;")  # as long as `type `
        elif _TEMPLATE is not None and isinstance(node, _TEMPLATE):
            (line, column), _ = self._extent(node)
            prefix = node.start.rstrip("'\"")
            self._put((line, column + prefix.lower().index("t")), "f")
        elif isinstance(node, (libcst.ExceptHandler, libcst.ExceptStarHandler)):
            self._handler(node)
        elif isinstance(node, libcst.Index) and getattr(node, "star", None) and sys.version_info < (3, 11):
            self._put(self._extent(node)[0], " ")
        return True

    def _handler(self, node: libcst.ExceptHandler | libcst.ExceptStarHandler) -> None:
        if isinstance(node, libcst.ExceptStarHandler) and sys.version_info < (3, 11):
            line, column = self._extent(node)[0]
            self._put((line, "".join(self.lines[line - 1]).index("*", column)), " ")
        caught = node.type
        if not isinstance(caught, libcst.Tuple) or caught.lpar:
            return
        start, end = self._extent(caught)
        names = [self._module.code_for_node(element.value) for element in caught.elements]
        broad = [name for name in names if name.rpartition(".")[2] in _BROAD]
        self._blank(start, end)
        self._put(start, (broad or names)[0])

    def _extent(self, node: libcst.CSTNode) -> tuple[Place, Place]:
        found: Any = self.get_metadata(metadata.PositionProvider, node)
        return (found.start.line, found.start.column), (found.end.line, found.end.column)

    def _put(self, place: Place, text: str) -> None:
        line, column = place
        self.lines[line - 1][column : column + len(text)] = text
        self.changed = True

    def _blank(self, start: Place, end: Place) -> None:
        for number in range(start[0], end[0] + 1):
            line = self.lines[number - 1]
            first = start[1] if number == start[0] else 0
            last = end[1] if number == end[0] else len(line)
            line[first:last] = [" " if character not in "\r\n" else character for character in line[first:last]]
            end_of_line = len("".join(line).rstrip("\r\n"))
            if number < end[0] and first < end_of_line:
                line[end_of_line - 1] = "\\"  # brackets are gone that let the line go on
        self.changed = True
