"""Checks the limits of the house: files of 400 lines, functions of 60, a first line that says what a module is for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("checks", "reference_trainer", "tests", "ci", "fixtures")
MAX_FILE, MAX_FUNCTION = 400, 60
EMPTY_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py", "manager.py"}


def problems(path: Path) -> Iterator[str]:
    """What breaks a limit in one file, one line each."""
    text = path.read_text(encoding="utf-8")
    shown = path.relative_to(ROOT).as_posix()
    lines = text.count("\n")
    if lines > MAX_FILE:
        yield f"{shown}: {lines} lines, at most {MAX_FILE}: it has two concerns, split it by concern"
    if path.name in EMPTY_NAMES:
        yield f"{shown}: the name says nothing; call the file after its concern"
    tree = ast.parse(text, shown)
    if tree.body and not ast.get_docstring(tree):
        yield f"{shown}:1: no docstring; the first line of a module says what it is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield f"{shown}:{node.lineno}: `{node.name}` has {length} lines, at most {MAX_FUNCTION}"


def main() -> int:
    """Prints the problems of all files; the exit code says whether there were any."""
    found = [
        problem for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) for problem in problems(path)
    ]
    print("\n".join(found) if found else "limits: all files within them")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
