"""What the source says about a line that a run has shown: conditions round it, ways out of its loop, its extent."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from validate_ddp.rehearse.run import Frame, Site

_RANK = re.compile(r"rank|is_main|main_process|is_master|master_process|is_first|primary|is_chief", re.IGNORECASE)


@lru_cache(maxsize=256)
def _tree(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None


def enclosing(path: str, line: int) -> list[ast.AST]:
    """The nodes round a line within its function, the outermost first; none where the source is not at hand."""
    tree = _tree(path)
    found: list[ast.AST] = []
    node: ast.AST | None = tree
    while node is not None:
        inner = None
        for child in ast.iter_child_nodes(node):
            first, last = getattr(child, "lineno", 0), getattr(child, "end_lineno", 0)
            if first <= line <= (last or 0):
                inner = child
                break
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.clear()
        if inner is not None:
            found.append(inner)
        node = inner
    return found


def conditional(site: Site) -> Frame | None:
    """The innermost line on the way to the call that lies under a condition on the rank, or in a handler."""
    for frame in site.frames:
        if not frame.library and (_guarded(frame) or _handled(frame)):
            return frame
    return None


def _guarded(frame: Frame) -> bool:
    nodes = enclosing(frame.path, frame.line)
    for node in nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.While) and _RANK.search(ast.unparse(node.test)):
            test = node.test
            if not (test.lineno <= frame.line <= (test.end_lineno or test.lineno)):
                return True
    return False


def is_in_handler(site: Site) -> bool:
    """Whether some line on the way to the call lies in an exception handler."""
    return any(_handled(frame) for frame in site.frames if not frame.library)


def _handled(frame: Frame) -> bool:
    return any(isinstance(node, ast.ExceptHandler) for node in enclosing(frame.path, frame.line))


def departure(path: str, first: int, last: int | None) -> int | None:
    """The line of the one ``continue``, ``break``, ``return`` or exit between two lines of a function, if it is one.

    last: None for the end of the loop that the first line lies in.
    """
    loops = [node for node in enclosing(path, first) if isinstance(node, ast.For | ast.While | ast.AsyncFor)]
    if not loops:
        return None
    loop = loops[-1]
    end = last if last is not None else (loop.end_lineno or first)
    lines = {
        node.lineno
        for statement in loop.body
        for node in ast.walk(statement)
        if isinstance(node, ast.stmt) and first <= node.lineno <= end and _leaves(node)
    }
    return lines.pop() if len(lines) == 1 else None


def _leaves(node: ast.stmt) -> bool:
    if isinstance(node, ast.Continue | ast.Break | ast.Return):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func) in ("exit", "quit", "sys.exit", "os._exit")
    return False


def _line(path: str, number: int) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return next((text for at, text in enumerate(file, 1) if at == number), "")
    except OSError:
        return ""


def extent(path: str, line: int) -> tuple[int, int, int]:
    """(column from 1, end line, end column from 1) of the smallest statement at a line; of a compound one the head."""
    statements = [node for node in enclosing(path, line) if isinstance(node, ast.stmt)]
    if not statements:
        return 1, line, 1
    node = statements[-1]
    start = node.col_offset + 1
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        return start, node.lineno, start + len(ast.unparse(node).split("\n")[0])
    if node.lineno != line:
        text = _line(path, line)
        return len(text) - len(text.lstrip()) + 1, line, len(text.rstrip()) + 1
    return start, node.end_lineno or line, (node.end_col_offset or 0) + 1
