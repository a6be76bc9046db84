"""Suppression comments: which proposals they silence, and which of them silence nothing.

The comments are described in the documentation of DDP003.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from validate_ddp import catalogue
from validate_ddp.findings import WARNING, Finding, Proposal
from validate_ddp.source.positions import lines_of
from validate_ddp.source.text import Comment

if TYPE_CHECKING:
    from validate_ddp.source.text import Cell

UNUSED = "DDP003"
_HINT = re.compile(r"#.*(?:noqa|validate-ddp)", re.IGNORECASE)
# A code list ends at the first word that is no code, so that a reason may follow.
_CODE = r"(?:[A-Z]+[0-9]+\b|[a-z]+(?:-[a-z0-9]+)+\b)"
_NOQA = re.compile(rf"#\s*noqa(?:\s*:\s*(?P<codes>{_CODE}(?:(?:\s*,\s*|\s+){_CODE})*))?", re.IGNORECASE)
_OURS = re.compile(
    r"#\s*validate-ddp\s*:(?P<gap>\s*)(?P<word>[a-z-]*)(?:\s*\[(?P<codes>[^\]]*)(?P<closed>\]?))?", re.IGNORECASE
)
_WORDS = ("ignore", "ignore-file", "off", "on")


class Suppression(NamedTuple):
    """kept: the proposals that are not silenced, in their order. unused: findings DDP003 at idle or wrong comments."""

    kept: list[Proposal]
    unused: list[Finding]


class _Malformed(NamedTuple):
    """A comment of ours that cannot be followed, and why."""

    line: int
    column: int
    end: int
    message: str


class Scan(NamedTuple):
    """What the tokens tell: the comments that may be ours, the lines that hold only a comment, and the lines that go on
    with a statement begun above them (their indentation says nothing of blocks)."""

    comments: list[Comment]
    own_lines: set[int]
    continued: set[int]


class _Directive:
    """One suppression. codes: None for every rule. first, last: the lines where it counts."""

    __slots__ = ("blanket", "codes", "column", "end", "first", "last", "line", "used", "word")

    def __init__(self, comment: Comment, word: str, start: int, end: int, codes: tuple[str, ...] | None) -> None:
        self.word = word
        self.line = comment.line
        self.column = comment.column + start
        self.end = comment.column + end
        self.codes = codes
        self.blanket = word == "noqa" and codes is None
        self.first = self.last = comment.line
        self.used: set[str] = set()


def suppress(
    text: str,
    path: str,
    proposals: Sequence[Proposal],
    enabled: frozenset[str],
    cells: tuple[Cell, ...] | None = None,
    scanned: Scan | None = None,
) -> Suppression:
    """Takes the proposals on one file that its comments silence out, and reports idle comments.

    enabled: codes that this run looks for in this file: of these a comment can be idle. Never raises, whatever the
    text; the text of a file without suppression comments is searched, not tokenized.
    scanned: the comments of a file that is no Python.
    """
    if not _worth_reading(text, bool(proposals)):
        return Suppression(list(proposals), [])
    lines = lines_of(text)
    scan = _scan(lines) if scanned is None else scanned
    problems: list[_Malformed] = []
    directives: list[_Directive] = []
    for comment in scan.comments:
        directives += _directives(comment, problems, cells is not None)
    _extend(directives, lines, scan.continued)
    kept = []
    for proposal in proposals:
        silencers = [item for item in directives if _silences(item, proposal, scan.own_lines)]
        for item in silencers:
            item.used.add(proposal.code)
        if not silencers:
            kept.append(proposal)
    unused = []
    if UNUSED in enabled:
        unused = [_problem(path, one.line, one.column, one.end, one.message, cells) for one in problems]
        for item in directives:
            message = _idle(item, enabled)
            if message:
                unused.append(_problem(path, item.line, item.column, item.end, message, cells))
    return Suppression(kept, sorted(unused, key=lambda finding: (finding.cell or 0, finding.line, finding.column)))


def _worth_reading(text: str, proposed: bool) -> bool:
    if "validate-ddp" in text:
        return _HINT.search(text) is not None
    lowered = text.lower()
    if "noqa" not in lowered and "validate-ddp" not in lowered:
        return False
    # A noqa for other tools alone matters only where it may be blanket and there is something to silence.
    return proposed or re.search(r"noqa.*ddp|validate-ddp", lowered) is not None


def _scan(lines: list[str]) -> Scan:
    """One walk over the tokens. Where the tokenizer gives up, what it saw before that place."""
    import io
    import tokenize

    scan = Scan([], set(), set())
    quiet = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
    begun = 0
    try:
        for item in tokenize.generate_tokens(io.StringIO("\n".join(lines), newline="").readline):
            if item.type == tokenize.COMMENT:
                line, column = item.start
                own_line = not lines[line - 1][:column].strip()
                if own_line:
                    scan.own_lines.add(line)
                if _HINT.match(item.string):
                    scan.comments.append(Comment(line, column, item.string, own_line))
            elif item.type == tokenize.NEWLINE:
                scan.continued.update(range(begun + 1, item.start[0] + 1))
                begun = 0
            elif not begun and item.type not in quiet:
                begun = item.start[0]
    except (tokenize.TokenError, SyntaxError, ValueError):
        return scan
    return scan


def _directives(comment: Comment, problems: list[_Malformed], notebook: bool) -> list[_Directive]:
    found = []
    for match in _NOQA.finditer(comment.text):
        listed = match.group("codes")
        if listed is None:
            # `noqa:` with nonsense behind it is not blanket: ruff does not take it for that either.
            if not comment.text[match.end() :].lstrip().startswith(":") and not _goes_on(comment.text, match.end()):
                found.append(_Directive(comment, "noqa", *match.span(), None))
            continue
        ours = [word for word in re.split(r"[\s,]+", listed) if word[:3].upper() == "DDP" or catalogue.find(word)]
        if ours:
            codes = _known(ours, comment, match, problems)
            found.append(_Directive(comment, "noqa", *match.span(), codes))
    for match in _OURS.finditer(comment.text):
        if notebook and not match.group("gap"):
            continue  # `validate-ddp:%magic`: a line of IPython's own, see `source.magics`
        word = match.group("word").lower()
        listed = match.group("codes")
        message = _malformed(word, listed, match.group("closed"), comment)
        if message:
            problems.append(_malformed_at(comment, match, message))
            continue
        names = None if listed is None else [name.strip() for name in listed.split(",") if name.strip()]
        chosen = None if names is None else _known(names, comment, match, problems)
        found.append(_Directive(comment, word, *match.span(), chosen))
    return found


def _malformed_at(comment: Comment, match: re.Match[str], message: str) -> _Malformed:
    return _Malformed(comment.line, comment.column + match.start(), comment.column + match.end(), message)


def _goes_on(text: str, end: int) -> bool:
    """Whether ``noqa`` is only the start of a longer word, such as ``noqa-file`` or ``noqas``."""
    return text[end : end + 1].isalnum() or (text[end : end + 1] in ("-", "_") and end < len(text))


def _malformed(word: str, listed: str | None, closed: str | None, comment: Comment) -> str:
    if word not in _WORDS:
        import difflib

        near = difflib.get_close_matches(word, _WORDS, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"use one of {', '.join(_WORDS)}"
        return f"unknown directive `{word}` after `validate-ddp:`: {hint}"
    if listed is not None and not closed:
        return f"no `]` ends the rules of `{word}[`"
    if listed is not None and not listed.replace(",", "").strip():
        return f"`{word}[]` names no rule: leave the brackets out to mean every rule"
    if word == "on" and listed is not None:
        return "`on` takes no rules: it ends every `off` before it"
    if word in ("off", "on") and not comment.own_line:
        return f"`{word}` must stand on a line of its own"
    if word == "ignore-file" and (not comment.own_line or comment.column):
        return "`ignore-file` must stand on a line of its own, not indented"
    return ""


def _known(names: list[str], comment: Comment, match: re.Match[str], problems: list[_Malformed]) -> tuple[str, ...]:
    codes = []
    for name in names:
        stub = catalogue.find(name)
        if stub:
            codes.append(stub.code)
        else:
            problems.append(_malformed_at(comment, match, f"suppression of an {catalogue.unknown(name)}"))
    return tuple(dict.fromkeys(codes))


def _extend(directives: list[_Directive], lines: list[str], continued: set[int]) -> None:
    """Gives the directives for a file and for a block the lines where they count, in one pass over the lines."""
    import heapq

    begins: dict[int, _Directive] = {}
    ends = set()
    for item in directives:
        if item.word == "ignore-file":
            item.first, item.last = 1, len(lines)
        elif item.word == "off":
            begins[item.line] = item
        elif item.word == "on":
            ends.add(item.line)
    if not begins:
        return
    # The open blocks, the most indented first; the line breaks ties before directives are compared.
    opened: list[tuple[int, int, _Directive]] = []
    for number, row in enumerate(lines, 1):
        if number in ends:
            opened = _close(opened, number - 1)
        elif number in begins:
            item = begins[number]
            heapq.heappush(opened, (-_indentation(row), number, item))
        elif opened and number not in continued and row.strip() and not row.lstrip().startswith("#"):
            while opened and -opened[0][0] > _indentation(row):
                heapq.heappop(opened)[2].last = number - 1
    _close(opened, len(lines))


def _close(opened: list[tuple[int, int, _Directive]], last: int) -> list[tuple[int, int, _Directive]]:
    for _, _, item in opened:
        item.last = last
    return []


def _indentation(row: str) -> int:
    return len(row[: len(row) - len(row.lstrip())].replace("\f", "").expandtabs(8))


def _silences(item: _Directive, proposal: Proposal, own_lines: set[int]) -> bool:
    if item.word == "on" or (item.codes is not None and proposal.code not in item.codes):
        return False
    if item.word in ("off", "ignore-file"):
        return item.first <= proposal.span.line <= item.last
    first = min(proposal.span.line, proposal.statement.line)
    last = max(proposal.span.end_line, proposal.statement.end_line)
    if first <= item.line <= last:
        return True
    # A line of its own in the comments right above the statement.
    return item.line in own_lines and item.line < first and all(line in own_lines for line in range(item.line, first))


def _idle(item: _Directive, enabled: frozenset[str]) -> str:
    """What to say of a directive that silences nothing, or not all that it names; "" where all is well."""
    if item.blanket or item.word == "on":
        return ""
    if item.codes is None:
        # Rules that are not enabled now might need it.
        every = enabled >= _reading()
        return "" if item.used or not every else f"nothing is found here that `{item.word}` could silence"
    if UNUSED in item.codes:
        return ""
    read = _reading()
    idle = [code for code in item.codes if code in enabled & read and code not in item.used]
    if not idle:
        return ""
    named = ", ".join(f"{code} ({catalogue.name_of(code)})" for code in idle)
    return f"nothing to silence: {named} {'is' if len(idle) == 1 else 'are'} not found here"


def _reading() -> set[str]:
    """The codes that reading can show: of what only a rehearsal shows, nothing is known here."""
    return {stub.code for stub in catalogue.every() if catalogue.reads(stub)}


def _problem(path: str, line: int, start: int, end: int, message: str, cells: tuple[Cell, ...] | None) -> Finding:
    number = None
    if cells:
        for cell in cells:
            if cell.first_line <= line:
                number, first = cell.number, cell.first_line
        if number is not None:
            line = line - first + 1
    return Finding(
        code=UNUSED,
        name=catalogue.name_of(UNUSED),
        severity=WARNING,
        path=path,
        line=line,
        column=start + 1,
        end_line=line,
        end_column=end + 1,
        message=message,
        cell=number,
    )
