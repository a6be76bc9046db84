"""Every setting by its dotted name, and texts as values of its type. Torch-free.

A text is read as what its field is, never as what it looks like: YAML alone takes `1e-4` for a string, `no` for False
and `2026-01-01` for a date.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

__all__ = ["Raw", "nearest", "read_as", "types_of", "unchecked"]

Raw = str | None | list[str | None]
"""A value as it is written: a text, nothing (YAML's null), or a list of these."""

T = TypeVar("T")

_NOTHING = ("null", "none", "~")
_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def types_of(kind: type, prefix: str = "") -> dict[str, Any]:
    """The type of each field of a configuration, by its dotted name; sections are entered. Local."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            found |= types_of(typing.cast(type, hint), f"{prefix}{name}.")
        else:
            found[prefix + name] = hint
    return found


def unchecked(base: T, values: Mapping[str, Any], prefix: str = "") -> T:
    """``base`` with values by dotted names, of which nothing is checked yet: options that follow may mend it. Local."""
    made = object.__new__(type(base))
    for field in dataclasses.fields(base):  # type: ignore[arg-type]
        name, value = prefix + field.name, getattr(base, field.name)
        value = unchecked(value, values, f"{name}.") if dataclasses.is_dataclass(value) else values.get(name, value)
        object.__setattr__(made, field.name, value)
    return made


def read_as(value: Raw, kind: Any) -> Any:
    """``value`` as a ``kind``: one of the types that fields have. ``ValueError`` says what it must be. Local."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() in _NOTHING):
            return None
        return read_as(value, next(option for option in options if option is not type(None)))
    if origin is tuple:
        return _tuple(value, options)
    if value is None or isinstance(value, list):
        raise ValueError(f"it must be {_described(kind)}")
    if origin is typing.Literal:
        for option in options:
            if str(option) == value:
                return option
        raise ValueError(f"it must be {_described(kind)}")
    if kind is bool:
        if value.lower() not in _BOOLS:
            raise ValueError(f"it must be {_described(kind)}")
        return _BOOLS[value.lower()]
    if kind in (int, float):
        return _number(value, kind)
    if kind is str:
        return value
    raise TypeError(f"{kind} is no type that a setting can have")


def nearest(name: str, known: Sequence[str]) -> str:
    """What may have been meant, as the end of a message: the nearest name, or those there are. Local."""
    close = get_close_matches(name, known, n=1)
    close = close or [each for each in known if each.rpartition(".")[2] == name.rpartition(".")[2]]
    if close:
        return f"did you mean {' or '.join(close)}?"
    section = name.rpartition(".")[0]
    inside = [each for each in known if section and each.startswith(f"{section}.")]
    return f"there are {', '.join(inside or _outermost(known))}"


def _outermost(names: Sequence[str]) -> Iterator[str]:
    """Sections and settings of the top, each once."""
    yield from dict.fromkeys(name.partition(".")[0] for name in names)


def _tuple(value: Raw, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list, or a text such as "0.5, 0.9" or "[0.5, 0.9]"."""
    if value is None:
        raise ValueError("it must be a list")
    if isinstance(value, str):
        value = [part.strip() for part in value.strip("[]() ").split(",") if part.strip()]
    if options[-1] is Ellipsis:
        return tuple(read_as(each, options[0]) for each in value)
    if len(value) != len(options):
        raise ValueError(f"it must have {len(options)} values")
    return tuple(read_as(each, option) for each, option in zip(value, options, strict=True))


def _number(text: str, kind: type) -> int | float:
    """Such as 3, 1_000, 3e-4; a whole number may be written as 1e3."""
    try:
        if kind is int:
            return int(text)
        return float(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not number.is_integer():
        raise ValueError(f"it must be {_described(kind)}")
    return int(number)


def _described(kind: Any) -> str:
    """A type in words."""
    if typing.get_origin(kind) is typing.Literal:
        options = [str(option) for option in typing.get_args(kind)]
        return " or ".join([", ".join(options[:-1]), options[-1]]) if len(options) > 1 else options[0]
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]
