"""Proposals and findings as plain lists, for the cache."""

from __future__ import annotations

from typing import Any, TypeVar

from validate_ddp.catalogue import Edit, Finding, Fix, Place, Proposal, Span

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
