"""Abstract values in words, for people who want to know what a finding takes a value for."""

from __future__ import annotations

import re
from typing import Any

from validate_ddp.interpreter.objects import Container
from validate_ddp.interpreter.ranks import BY_NAME, phrase
from validate_ddp.interpreter.training import State
from validate_ddp.interpreter.values import (
    Class,
    Const,
    Function,
    Instance,
    ModuleRef,
    OnRanks,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Symbol,
    Value,
    WorldSize,
    unmarked,
)

_MOST = 3
_DEEPEST = 4
_RANKS = {
    "global": "the global rank",
    "local": "the local rank",
    "node": "the number of the node",
    "group": "the rank in a group",
    "spawn": "the rank that the launcher passes",
}


def described(value: Value, depth: int = 0) -> str:
    """The alternatives of a value, what is known of it first."""
    known = [atom for atom in value if not isinstance(unmarked(atom), Opaque)]
    parts = list(dict.fromkeys(_atom(atom, depth) for atom in known))
    if len(known) < len(value):
        unknown = next(atom for atom in value if isinstance(unmarked(atom), Opaque))
        parts = [*parts[:_MOST], "something unknown" if known else _atom(unknown, depth)]
    return " or ".join(parts[:_MOST]) + (" or something else" if len(parts) > _MOST else "")


def _atom(atom: Any, depth: int) -> str:
    if isinstance(atom, OnRanks):
        return f"{_atom(atom.atom, depth)} (on {phrase(atom.who)})"
    if isinstance(atom, Const):
        text = repr(atom.value)
        return text if len(text) <= 40 else text[:37] + "..."
    if isinstance(atom, Rank):
        of = f" of `{atom.of}`" if atom.of else ""
        return _RANKS[atom.scope] + of + (", going by its name" if atom.named else "")
    if isinstance(atom, RankTest):
        return f"true on {phrase(atom.who)}{'' if atom.sure else BY_NAME}"
    if isinstance(atom, WorldSize):
        if atom.group:
            return "the number of ranks in a group"
        return "the number of devices" if atom.local else "the number of ranks"
    if isinstance(atom, Instance):
        return f"the `{atom.cls.name}` made at {_place(atom)}"
    if isinstance(atom, (Function, Class)):
        return f"`{atom.name}`"
    if isinstance(atom, Symbol):
        return f"`{atom.name}`"
    if isinstance(atom, ModuleRef):
        return f"the module {atom.module.path}"
    if isinstance(atom, Resource):
        return _resource(atom, depth)
    return _opaque(atom, depth)


def _resource(atom: Resource, depth: int) -> str:
    plainly = _CAPITAL.sub(" ", type(atom).__name__).lower()
    plainly = f"{'an' if plainly[0] in 'aeiou' else 'a'} {plainly}"
    if depth >= _DEEPEST:
        return plainly
    if isinstance(atom, State):
        return f"the state_dict of {described(atom.of, depth + 1) or 'something'}"
    if isinstance(atom, Container):
        known = [(key, held) for key, held in atom.fields.items() if any(map(_is_telling, held))]
        rows = [("" if key == "*" else f"{key!r}: ") + described(held, depth + 1) for key, held in known[:_MOST]]
        return f"{plainly} with {'; '.join(rows)}{' and more' if len(known) > _MOST else ''}" if rows else plainly
    where = f" ({_place(atom)})" if atom.site.span.line else ""
    return (atom.phrase or plainly) + where


_CAPITAL = re.compile("(?<=[a-z])(?=[A-Z])")


def _is_telling(atom: Any) -> bool:
    return not isinstance(unmarked(atom), (Opaque, Const, Symbol))


def _opaque(atom: Opaque, depth: int) -> str:
    named = f"`{atom.name}`" if atom.name.replace(".", "").replace("()", "").isidentifier() else "a value"
    carried = [part for part in atom.carries if getattr(getattr(part, "site", None), "span", (1,))[0]]
    if not carried or depth:
        return f"{named}, equal on every rank" if atom.alike else f"{named}, not known"
    return f"{named}, not known but computed from {described(tuple(carried), depth + 1)}"


def _place(atom: Any) -> str:
    return f"{atom.site.path}:{atom.site.span.line}"
