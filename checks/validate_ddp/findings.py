"""What is found: proposals, findings, fixes and their evidence; and all of it as plain lists, for the cache.

Plain named tuples, not dataclasses: importing ``dataclasses`` costs more CPU than checking a clean script.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (INFO, WARNING, ERROR)
"""From the least to the most severe. error: wrong result, hang, or crash; warning: wrong in some launches, or cleanup
missing; info: cost or advice."""


class Span(NamedTuple):
    """A range of source text as the parser gives it: lines from 1, columns in UTF-8 bytes from 0, end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class Place(NamedTuple):
    """A span in a file, with why it matters."""

    path: str
    span: Span
    note: str = ""


class Edit(NamedTuple):
    """One declarative change of source text; ``validate_ddp.edit`` carries it out losslessly.

    kind, with what span and text mean:
      insert_before  span of a statement; text is a statement put on its own line before it, indented alike
      insert_after   span of a statement; text is put on its own line after it, indented alike
      append         span of any statement of a body; text is put behind the last one of that body
      guard          span of a statement; text is a condition: puts the statement, indented, under ``if <text>:``
      replace        span of an expression; text is the expression which replaces it
      add_argument   span of a call; text is a keyword argument, ``name=value``, added after the last argument
      remove_argument  span of a call; text is the name of a keyword argument, which is taken out
      replace_argument  span of a call; text is ``name, new=value``: the keyword argument takes the place of that name
      rename_in_arguments  span of a call; text is ``name, new``: each use of the name (``a`` or ``a.b``) in the
                     arguments becomes the new expression
      add_import     span ignored; text is an import statement, added once after the last import at the top of the
                     file if what it binds is not there, above everything else that the fix changes
    """

    kind: str
    path: str
    span: Span
    text: str


class Fix(NamedTuple):
    """A way to cure a finding. A safe fix keeps the meaning of a correct program; an unsafe one asks for a look."""

    title: str
    safe: bool
    edits: tuple[Edit, ...]


class Proposal(NamedTuple):
    """What a rule proposes before the concrete syntax has confirmed it.

    statement: span of the enclosing statement (of its header, for a compound one): where suppressions count.
    expects: kind of the node at ``span`` and its callee's last name, such as ("call", "save") or ("for", "").
    entry: path of the script from which this place is reached.
    derivation: how the finding was derived, one step a line.
    """

    code: str
    severity: str
    path: str
    span: Span
    statement: Span
    message: str
    expects: tuple[str, str]
    evidence: tuple[Place, ...] = ()
    fix: Fix | None = None
    entry: str = ""
    derivation: tuple[str, ...] = ()


class Finding(NamedTuple):
    """What a user reads. Lines and columns count from 1, in characters; ``path`` is relative to the working directory.

    confirmed: LibCST found the node on the concrete statement; False where LibCST could not read it.
    cell: number of the notebook's code cell, from 1; lines count within it.
    """

    code: str
    name: str
    severity: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    evidence: tuple[Place, ...] = ()
    fix: Fix | None = None
    entry: str = ""
    confirmed: bool = True
    cell: int | None = None
    derivation: tuple[str, ...] = ()


T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Named tuples as lists, all the way down."""
    if isinstance(value, tuple):
        return [to_plain(part) for part in value]
    return value


def _place(row: Any) -> Place:
    return Place(row[0], Span(*row[1]), row[2])


def _fix(row: Any) -> Fix | None:
    if row is None:
        return None
    edits = tuple(Edit(kind, path, Span(*span), text) for kind, path, span, text in row[2])
    return Fix(row[0], row[1], edits)


def from_plain(kind: type[T], row: Any) -> T:
    """The Proposal or Finding that ``to_plain`` made a list of. Raises where the list is not one."""
    fields = dict(zip(kind._fields, row, strict=True))  # type: ignore[attr-defined]
    if kind is Proposal:
        fields.update(
            span=Span(*fields["span"]), statement=Span(*fields["statement"]), expects=tuple(fields["expects"])
        )
    elif kind is not Finding:
        raise TypeError(f"neither Proposal nor Finding: {kind}")
    fields["evidence"] = tuple(_place(part) for part in fields["evidence"])
    fields["fix"] = _fix(fields["fix"])
    fields["derivation"] = tuple(fields["derivation"])
    return kind(**fields)
