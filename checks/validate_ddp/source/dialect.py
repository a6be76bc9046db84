"""Says why text is not Python for this Python: Python 2, a newer Python, a merge conflict, or a plain mistake."""

from __future__ import annotations

import re
import sys

from validate_ddp.source.text import BROKEN, NEWER, Problem, Source, split_lines, syntax_problem

_PYTHON_2_STATEMENT = re.compile(r"[ \t]*(print|exec)[ \t]*(?:[ \t][\"'\w%`]|>>)")
_PYTHON_2_ANYWHERE = re.compile(r"^[ \t]*print[ \t]+[\"'\w]", re.MULTILINE)
_PYTHON_2_LINES = (
    (re.compile(r"[ \t]*except\b[^:#]*,[ \t]*[a-z_]\w*[ \t]*:"), "`except X, e`"),
    (re.compile(r"[ \t]*raise[ \t]+[\w.]+[ \t]*,"), "`raise X, message`"),
    (re.compile(r"[^#\"']*\b[uU][rR][\"']"), 'a `ur"..."` string'),
    (re.compile(r"[^#\"']*<>"), "the operator `<>`"),
    (re.compile(r"[^#\"']*`[^`]+`"), "backquotes"),
)
_LONG = re.compile(r"\b(?:0[xX][\da-fA-F]{1,20}|\d{1,20})[lL]\b")
_PYTHON_2_HINTS = ("leading zeros in decimal", "inconsistent use of tabs", "parenthesized", "unindent does not match")
"""Messages that alone do not tell Python 2, but do beside a print statement elsewhere."""

_GENERIC = r"[ \t]*(?:(?:async[ \t]+)?def|class|type)[ \t]+\w+[ \t]*\["
_NEWER_LINES = (
    (re.compile(r"[ \t]*lazy[ \t]+(?:import|from)\b"), (3, 15), "lazy imports"),
    (re.compile(rf"{_GENERIC}[^\]]*="), (3, 13), "defaults of type parameters"),
    (re.compile(_GENERIC), (3, 12), "type parameters"),
    (re.compile(r"[ \t]*type[ \t]+\w+[ \t]*(?:\[.*\])?[ \t]*="), (3, 12), "`type` statements"),
    (re.compile(r"[ \t]*except[ \t]*\*.*,.*:"), (3, 14), "`except*` without parentheses"),
    (re.compile(r"[ \t]*except[ \t]*\*"), (3, 11), "`except*`"),
    (re.compile(r".*\*[ \t]*\w+[ \t]*:[ \t]*\*"), (3, 11), "unpacking in annotations"),
    (re.compile(r".*[\w\])][ \t]*\[(?:[^\[\]]*,)?[ \t]*\*[ \t]*\w"), (3, 11), "unpacking in an index"),
)
_TEMPLATE_STRING = re.compile(r"(?<![\w\"'])(?:[tT][rR]?|[rR][tT])(?=[\"'])")
_CONFLICT = ("<<<<<<< ", ">>>>>>> ", "=======\n")


def explain(source: Source, error: SyntaxError) -> Problem:
    """The problem that ``error`` tells, with the Python version that the text needs where that can be told."""
    lines = split_lines(source.text)
    number = min(error.lineno or 0, max(1, len(lines)))
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    column = max(0, min(error.offset or 0, len(line) + 1))
    reason, cause = _reason(source.text, line, number, column, error.msg or "invalid")
    return syntax_problem(source, number, column, reason)._replace(cause=cause)


def _reason(text: str, line: str, number: int, column: int, message: str) -> tuple[str, str]:
    """Why the text is refused, in words, and the cause of the problem."""
    if line.startswith(_CONFLICT):
        return "holds an unresolved merge conflict; resolve it", BROKEN
    old = _python_2(text, line, message)
    if old:
        return f"is Python 2 ({old}); port it to Python 3 to have it checked", BROKEN
    newer = _newer(text, line, number, column, message)
    if newer:
        (major, minor), what = newer
        running = f"{sys.version_info[0]}.{sys.version_info[1]}"
        told = f"needs Python {major}.{minor} ({what}), and this is Python {running}; run the check with a newer Python"
        return told, NEWER
    return "syntax error: " + " ".join(message.split()), BROKEN


def _python_2(text: str, line: str, message: str) -> str | None:
    called = re.match(r"Missing parentheses in call to '(\w+)'", message)
    statement = _PYTHON_2_STATEMENT.match(line)
    if called or statement:
        name = called.group(1) if called else statement.group(1) if statement else ""
        return f"`{name}` statement"
    if message.endswith(("decimal literal", "hexadecimal literal")) and _LONG.search(line[:1000]):
        return "a long integer such as `1L`"
    for pattern, what in _PYTHON_2_LINES:
        if pattern.match(line[:1000]):
            return what
    if any(hint in message for hint in _PYTHON_2_HINTS) and _PYTHON_2_ANYWHERE.search(text):
        return "`print` statement"
    return None


def _newer(text: str, line: str, number: int, column: int, message: str) -> tuple[tuple[int, int], str] | None:
    found = _newer_line(line[:1000], column, message)
    if found is None and sys.version_info < (3, 12):
        found = _newer_fstring(text, number, message)
    return found if found is not None and sys.version_info < found[0] else None


def _newer_line(line: str, column: int, message: str) -> tuple[tuple[int, int], str] | None:
    for pattern, version, what in _NEWER_LINES:
        if pattern.match(line) and sys.version_info < version:
            return version, what
    if "multiple exception types must be parenthesized" in message:
        return (3, 14), "`except A, B` without parentheses"
    if "unpacking cannot be used in" in message and "comprehension" in message:
        return (3, 15), "unpacking in comprehensions"
    for found in _TEMPLATE_STRING.finditer(line):
        if abs(found.start() - (column - 1)) <= 2:
            return (3, 14), "template strings"
    return None


def _newer_fstring(text: str, number: int, message: str) -> tuple[tuple[int, int], str] | None:
    from validate_ddp.source.lexical import fstrings

    found = fstrings(text)
    if found.newer_at < 0:
        return None
    line = len(split_lines(text[: found.newer_at + 1]))
    if "f-string" in message or line == number:
        return (3, 12), found.newer
    return None
