"""Records: classes whose annotated fields are slots, read from JSON and written to it, held against their bounds.

A field is declared once, as its annotation. One with a default may be left out: then it is not written, and reads as
its default. ``dataclasses`` would be another import of every static check, and takes ten times the memory.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from .bounds import Count, Is, Rank, Seconds, Test  # noqa: F401 - annotations are looked up here

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python 3.10 has none

    def dataclass_transform(**kwargs):
        return lambda kind: kind


_NO_DEFAULT = object()


def stamped(*, init: bool) -> float:
    """The default of a field that no caller gives, but who sends it."""
    return 0.0


@dataclass_transform(kw_only_default=True, field_specifiers=(stamped,))
class Fields(type):
    """Makes slots of annotated fields, and keeps their defaults apart."""

    fields: tuple[str, ...]
    """Names, those of the bases first."""
    defaults: dict[str, object]

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Fields:
        own = [key for key, text in space.get("__annotations__", {}).items() if not text.startswith("ClassVar")]
        known = [each for base in bases for each in getattr(base, "fields", ())]
        defaults = {key: value for base in bases for key, value in getattr(base, "defaults", {}).items()}
        defaults.update({key: space.pop(key) for key in own if key in space})
        space["__slots__"] = tuple(key for key in own if key not in known)
        made = super().__new__(cls, name, bases, space)
        made.fields = (*known, *space["__slots__"])
        made.defaults = defaults
        return made


class Record(metaclass=Fields):
    """Fields by name. Two are equal if they are of one class and hold the same."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()
    """Fields with a default which a log must have all the same."""
    SAME_LENGTH: ClassVar[tuple[str, ...]] = ()
    """Lists with a place for each parameter."""

    def __init__(self, **fields: object) -> None:
        defaults, required = type(self).defaults, type(self).REQUIRED
        for name, value in fields.items():
            if value is not None or name in required or defaults.get(name, _NO_DEFAULT) is not None:
                setattr(self, name, value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Called for a field that was left out."""
            try:
                return type(self).defaults[name]
            except KeyError:
                raise AttributeError(f"{type(self).__name__} has no {name}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(self) is type(other) and self.plain() == other.plain()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.plain().items())})"

    def plain(self) -> dict[str, object]:
        """What it holds, by name, for JSON; see ``as_json`` for the values."""
        found = {}
        value_of = object.__getattribute__
        for name in type(self).fields:
            try:
                found[name] = value_of(self, name)
            except AttributeError:  # left out
                continue
        return found


def as_json(value: object) -> object:
    """For ``json``: what is no JSON by itself. What a script has given becomes a text."""
    if isinstance(value, Record):
        return value.plain()
    if isinstance(value, array):
        return value.tolist()
    number = getattr(type(value), "in_json", None)
    return str(value) if number is None else number(value)


Bounds = dict[str, tuple[Is, bool]]
"""By field, its bounds and whether it may be missing."""
_known: dict[type, Bounds] = {}
_tests: dict[type, list[tuple[str, Test, bool]]] = {}
"""The same for ``wrong``, which is asked of each event of a long log."""


def bounds_of(kind: type) -> Bounds:
    """What a record's fields have to be, or those of a TypedDict; read from the annotations, once."""
    if kind not in _known:
        defaults: dict[str, object] = getattr(kind, "defaults", {})
        must = set(getattr(kind, "REQUIRED", ()))
        found: Bounds = {}
        hints = get_type_hints(kind, include_extras=True)
        for name in getattr(kind, "fields", hints):
            bounds = _bounds(hints[name])
            if bounds is not None:
                missing = name in defaults or not isinstance(kind, Fields)
                found[name] = (bounds, missing and name not in must)
        _known[kind] = found
    return _known[kind]


def _bounds(hint: object) -> Is | None:
    if get_origin(hint) is Annotated:
        return next((each for each in get_args(hint)[1:] if isinstance(each, Is)), None)
    options = get_args(hint)
    if type(None) in options:
        inner = next(filter(None, map(_bounds, options)), None)
        return inner and inner._replace(
            words=f"{inner.words} or null", holds=lambda value: value is None or inner.holds(value)
        )
    return None


def wrong(held: dict[str, object], kind: type) -> str:
    """What of a JSON object is not as the class says, in words; "" for nothing."""
    tests = _tests.get(kind)
    if tests is None:
        tests = _tests[kind] = [(name, one.holds, missing) for name, (one, missing) in bounds_of(kind).items()]
    for name, holds, missing in tests:
        if name not in held:
            if not missing:
                return f"there is no `{name}`"
        elif not holds(held[name]):
            return f"`{name}` has to be {bounds_of(kind)[name][0].words}, and is {_shown(held[name])}"
    alike: tuple[str, ...] = getattr(kind, "SAME_LENGTH", ())
    if alike and len({len(held[name]) for name in alike}) > 1:  # type: ignore[arg-type]
        return " and ".join(f"`{name}`" for name in alike) + " have to be of one length"
    return ""


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list or an object"
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    try:
        text = repr(value)
    except ValueError:  # of thousands of digits
        return "a number with thousands of digits"
    return text if len(text) <= 40 else text[:37] + "..."
