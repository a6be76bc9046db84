"""Turns IPython's own syntax into comments and `pass`, line for line, and back."""

from __future__ import annotations

import re

from validate_ddp.source.parsing import parse
from validate_ddp.source.text import Problem, Source, split_lines

_PYTHON_CELL_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%memit", "%%mprun", "%%debug", "%%snakeviz")
"""Cell magics whose body is Python that runs in the notebook; the body of any other is taken out."""

_SHELL = r"(?:pip3?|conda|mamba|cd|ls|pwd|cat|cp|mv|rm|mkdir|rmdir|man|more|less)(?:[ \t]+[^ \t=(,\[:\r\n][^\r\n]*)?"
_MAGIC = re.compile(
    r"[ \t]*(?:"
    r"[%!?/,;]"  # line magic, shell command, help, automatic call
    r"|[%\w.*\[\]]+\?\??[ \t]*$"  # help behind a name
    rf"|{_SHELL}$"  # a magic that IPython takes without its sign
    r")"
)
_ASSIGNED = re.compile(r"([ \t]*)([^\W\d][\w.,\[\]'\" \t*]*=)[ \t]*[%!]")
_LEADING = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))*([ \t]+)[^\s]")
"""The blanks that a cell's first line begins with: IPython takes them from all of its lines."""
_BAR = "|"
"""Stands before a line that is kept with its own blanks: behind the token a blank would make it a suppression."""
_BARRED = frozenset((" ", "\t", _BAR))
_SUSPICIOUS = re.compile(rf"^[ \t]*(?:[%!?/,;]|{_SHELL}$)|\?[ \t]*$|=[ \t]*[%!]", re.MULTILINE)
_LINE_END = re.compile(r"\r\n|\r|\n|\Z")
_TOKEN = re.compile(
    r"#[^\r\n]*"
    r"|'''(?:[^'\\]|\\.|'(?!''))*(?:'''|\Z)?"
    r'|"""(?:[^"\\]|\\.|"(?!""))*(?:"""|\Z)?'
    r"|'(?:[^'\\\r\n]|\\(?:\r\n|.))*'?"
    r'|"(?:[^"\\\r\n]|\\(?:\r\n|.))*"?'
    r"|[()\[\]{}]"
    r"|\\?(?:\r\n|\r|\n)",
    re.DOTALL,
)


def neutralise(source: str, token: str) -> str:
    """``source`` of a cell as Python with the same number of lines; ``token`` must not occur in it.

    A line that is taken out is kept in a comment behind ``token``, where ``restore`` finds it. A cell that is Python
    already stays as it is, also where a line begins with ``%`` inside brackets or a string.
    """
    if not _SUSPICIOUS.search(source):
        return source
    if source.lstrip().startswith("%%") and source.split(None, 1)[0] not in _PYTHON_CELL_MAGICS:
        return "".join(_comment(line, token) for line in split_lines(source))
    if not isinstance(parse(Source("", b"", source)), Problem):
        return source
    leading = _LEADING.match(source)
    blanks = leading.group(1) if leading else ""
    pieces: list[str] = []
    position = 0
    while position < len(source):
        end = _line_end(source, position)
        line = source[position:end]
        replacement = _neutral_line(line, token, blanks)
        if replacement is None:
            end = _statement_end(source, position)
            pieces.append(source[position:end])
        else:
            pieces.append(replacement)
            while end < len(source) and line.rstrip("\r\n").endswith("\\"):
                position, end = end, _line_end(source, end)
                line = source[position:end]
                pieces.append(_comment(line, token))
        position = end
    return "".join(pieces)


def restore(text: str, token: str) -> str:
    """Put back the lines that ``neutralise`` took out, with the indentation that they have now."""
    if token not in text:
        return text
    return "".join(_restored(line, token) for line in split_lines(text))


def _comment(line: str, token: str) -> str:
    return f"# {token}{_BAR if line[:1] in _BARRED else ''}{line}"


def _neutral_line(line: str, token: str, blanks: str) -> str | None:
    """The first line of a statement in IPython's own syntax as Python; None where it is none of that.

    blanks: what the lines of the cell are indented by as a whole.
    """
    body = line.rstrip("\r\n")
    stripped = body.lstrip(" \t")
    indent = body[: len(body) - len(stripped)]
    if blanks and indent.endswith(blanks):
        indent, stripped = indent.removesuffix(blanks), f"{_BAR}{blanks}{stripped}"
    assigned = _ASSIGNED.match(body)
    if assigned:
        return f"{indent}{assigned.group(2)} None  # {token}{stripped}{line[len(body) :]}"
    if _MAGIC.match(body):
        return f"{indent}pass  # {token}{stripped}{line[len(body) :]}"
    return None


def _line_end(source: str, position: int) -> int:
    found = _LINE_END.search(source, position)
    return found.end() if found else len(source)


def _statement_end(source: str, position: int) -> int:
    """Behind the last line of the statement that begins at ``position``: brackets, strings and continuations count."""
    depth = 0
    for found in _TOKEN.finditer(source, position):
        token = found.group()
        if token in ("\n", "\r", "\r\n"):
            if depth <= 0:
                return found.end()
        elif token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
    return len(source)


def _restored(line: str, token: str) -> str:
    before, found, original = line.partition(token)
    if not found:
        return line
    indent = before[: len(before) - len(before.lstrip(" \t"))]
    return indent + original.removeprefix(_BAR)
