"""Reads the plants: comments in the correct scripts, each an edit that breaks its script and the rule that must tell.

    sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(
    torch.save(model.module.state_dict(), path)  # mutant DDP501: .module ->
    # mutant DDP404: insert if rank == 0: break

A plant stands behind the code that it changes, or in a line above it; one comment may hold several of the form

    # mutant CODE [LETTERS]: EDIT [; at TEXT]... [; also CODE]...

EDIT is one of
    delete          the statement goes; `pass` takes its place where it was alone in its block
    dedent          the header of a block goes, its body stays
    insert CODE     the comment, which has a line of its own, becomes the code; `if x: break` becomes two lines, and
                    spaces before CODE put it deeper
    HEADER: ...     the statement comes under the header; a tail may follow: `try: ... except OSError: pass`
    OLD -> NEW      in the line of code, in which OLD must occur once; NEW may be empty
An edit without LETTERS is a mutant. Edits of one code that share a letter, in all files of the script, are one
together: an edit with `ab` is part of two mutants.
The finding may stand on any changed statement; where there is an `at`, on any line of the mutant that holds one of the
TEXTs instead, of which `here` is the changed statements again. What is said to be `also` true of the mutant may be
found too.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

_PLANT = re.compile(r"# mutant (DDP\d{3})(?: ([a-z]+))?: (.+)")
_UNDER = re.compile(r"(.+:) \.\.\.(?: (.+))?")
_REPLACE = re.compile(r"(.+?) ->(?: (.+))?")


class Mutant(NamedTuple):
    """what: its edits as they are written. texts: all files. expected: path and line of the finding. also: codes."""

    code: str
    what: str
    texts: dict[str, str]
    expected: frozenset[tuple[str, int]]
    also: frozenset[str]


class Plant(NamedTuple):
    """One edit. where: for messages. line: of the code, from 0, without plants. indent: of a comment that is alone."""

    where: str
    code: str
    letters: str
    edit: str
    at: tuple[str, ...]
    also: tuple[str, ...]
    path: str
    line: int
    indent: str | None

    def refuse(self, why: str) -> ValueError:
        return ValueError(f"{self.where}: {why}: # mutant {self.code}: {self.edit}")


def without_plants(path: str, marked: str) -> tuple[str, list[Plant]]:
    """The text that is checked, and the plants in it."""
    lines: list[str] = []
    plants: list[Plant] = []
    comments = {
        token.start[0]: token
        for token in tokenize.generate_tokens(io.StringIO(marked).readline)
        if token.type == tokenize.COMMENT and "mutant" in token.string.lower()
    }
    for number, line in enumerate(marked.splitlines(), start=1):
        if number not in comments:
            lines.append(line)
            continue
        comment, column = comments[number].string, comments[number].start[1]
        own, *parts = re.split(r"(?:^|\s+)(?=# mutant )", comment)
        rest = (line[:column] + own).rstrip()
        for part in parts:
            plants.append(_plant(f"{path}:{number}", part, path, len(lines), None if rest else line[:column]))
        if "mutant" in own.lower():
            raise ValueError(f"{path}:{number}: a plant is written `# mutant DDP201: delete`: {own}")
        if rest:
            lines.append(rest)
    return "\n".join(lines) + "\n", plants


def _plant(where: str, comment: str, path: str, line: int, indent: str | None) -> Plant:
    found = _PLANT.fullmatch(comment)
    if found is None:
        raise ValueError(f"{where}: a plant is written `# mutant DDP201: delete`: {comment}")
    edit, *notes = re.split(r"; (?=at |also DDP\d{3}\b)", found[3])
    at, also = (tuple(note.split(" ", 1)[1] for note in notes if note.startswith(word)) for word in ("at ", "also "))
    return Plant(where, found[1], found[2] or "", edit, at, also, path, line, indent)


def mutants(texts: dict[str, str], plants: list[Plant]) -> Iterator[Mutant]:
    """The mutants, by code, then in the order of their first plants; each is valid Python and differs."""
    groups: dict[tuple[str, object], list[Plant]] = {}
    for plant in plants:
        for letter in plant.letters or [plant]:
            groups.setdefault((plant.code, letter), []).append(plant)
    for (code, _), group in sorted(groups.items(), key=lambda item: item[0][0]):
        drafts = {path: _Draft(text) for path, text in texts.items()}
        for plant in sorted(group, key=lambda plant: _UNDER.fullmatch(plant.edit) is not None):
            drafts[plant.path].apply(plant)
        mutated = {path: draft.text() for path, draft in drafts.items()}
        try:
            for path, text in mutated.items():
                compile(text, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise group[0].refuse(f"leads to wrong syntax, {error}") from None
        if mutated == texts:
            raise group[0].refuse("changes nothing")
        here = {(path, line) for path, draft in drafts.items() for line in draft.changed()}
        what = "; ".join(plant.edit for plant in group)
        also = frozenset(other for plant in group for other in plant.also)
        yield Mutant(code, what, mutated, _expected(group, mutated, here), also)


def _expected(group: list[Plant], texts: dict[str, str], here: set[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    wanted = [(plant, words) for plant in group for words in plant.at] or [(group[0], "here")]
    expected: set[tuple[str, int]] = set()
    for plant, words in wanted:
        lines = ((path, n, line) for path, text in texts.items() for n, line in enumerate(text.splitlines(), start=1))
        found = here if words == "here" else {(path, n) for path, n, line in lines if words in line}
        if not found:
            raise plant.refuse(f"no line for a finding at {words!r}")
        expected |= found
    return frozenset(expected)


class _Draft:
    """A file on its way to a mutant: part 2i + 1 is what stands for line i of the correct text, part 2i before it."""

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self._parts: list[list[str]] = [[]]
        for line in text.splitlines():
            self._parts += [[line], []]
        self._changed: set[int] = set()

    def text(self) -> str:
        return "".join(f"{line}\n" for part in self._parts for line in part)

    def changed(self) -> Iterator[int]:
        """The lines of the changed statements, counted from 1 in the new text."""
        line = 1
        for number, part in enumerate(self._parts):
            if number in self._changed:
                yield from range(line, line + len(part))
            line += len(part)

    def apply(self, plant: Plant) -> None:
        """Makes one edit. Headers have to come last: they indent what the others left."""
        if plant.edit.startswith("insert "):
            if plant.indent is None:
                raise plant.refuse("an insertion needs a line of its own")
            self._parts[2 * plant.line] += _laid_out(plant.edit.removeprefix("insert "), plant.indent)
            self._changed.add(2 * plant.line)
            return
        statement, alone = self._statement(plant)
        first, last = _span(statement)
        inside = slice(2 * first + 1, 2 * last + 2)
        indent = " " * statement.col_offset
        self._changed.update(range(2 * first + 1, 2 * last + 2))
        if plant.edit == "delete":
            self._parts[inside] = [[] for _ in self._parts[inside]]
            self._parts[2 * first + 1] = [f"{indent}pass"] if alone else []
        elif plant.edit == "dedent":
            if not isinstance(statement, (ast.If, ast.With)) or getattr(statement, "orelse", None):
                raise plant.refuse("only an if or a with without other branch can lose its header")
            body = 2 * _span(statement.body[0])[0]
            self._parts[2 * first + 1 : body] = [[] for _ in range(2 * first + 1, body)]
            self._parts[inside] = [[line.removeprefix("    ") for line in part] for part in self._parts[inside]]
        elif under := _UNDER.fullmatch(plant.edit):
            self._parts[inside] = [[textwrap.indent(line, "    ") for line in part] for part in self._parts[inside]]
            self._parts[2 * first + 1].insert(0, indent + under[1])
            self._parts[2 * last + 1] += _laid_out(under[2], indent) if under[2] else []
        elif replace := _REPLACE.fullmatch(plant.edit):
            line = "".join(self._parts[2 * plant.line + 1])
            if line.count(replace[1]) != 1:
                raise plant.refuse(f"{replace[1]!r} is not once in {line.strip()!r}")
            self._parts[2 * plant.line + 1] = [line.replace(replace[1], replace[2] or "")]
        else:
            raise plant.refuse("the edit is none of delete, dedent, insert CODE, HEADER: ..., OLD -> NEW")

    def _statement(self, plant: Plant) -> tuple[ast.stmt, bool]:
        """The innermost statement at the plant's line, and whether it is alone in its block."""
        found = None
        around: ast.AST | None = self._tree
        while around is not None:
            blocks = [getattr(part, name, []) for part in _parts(around) for name in ("body", "orelse", "finalbody")]
            around = None
            for block in blocks:
                for statement in block:
                    first, last = _span(statement)
                    if first <= plant.line <= last:
                        found, around = (statement, len(block) == 1), statement
        if found is None:
            raise plant.refuse("no statement stands here")
        return found


def _parts(statement: ast.AST) -> list[ast.AST]:
    """A statement and those of its parts, no statements themselves, that hold blocks."""
    return [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]


def _span(statement: ast.stmt) -> tuple[int, int]:
    """First and last line, from 0."""
    decorators = getattr(statement, "decorator_list", [])
    return (decorators[0] if decorators else statement).lineno - 1, (statement.end_lineno or 0) - 1


def _laid_out(code: str, indent: str) -> list[str]:
    """The lines of the code; what stands behind a header goes into a line of its own."""
    code, indent = code.lstrip(), indent + " " * (len(code) - len(code.lstrip()))
    for header in ("", "try: pass\n"):
        try:
            node: ast.AST = ast.parse(header + code).body[-1]
        except SyntaxError:
            continue
        node = getattr(node, "handlers", [node])[-1]
        body = getattr(node, "body", None)
        if isinstance(body, list):
            column = body[0].col_offset
            return [indent + code[:column].rstrip(), f"{indent}    {code[column:]}"]
    return [indent + code]
