"""Settings: fields of dataclasses, read from texts as what the field is, checked by its type; what is made of them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, TypeVar

from .core import ConfigError

Positive = Annotated[float, "above 0"]
NotNegative = Annotated[float, "not negative"]
Fraction = Annotated[float, "in [0, 1)"]
Count = Annotated[int, "above 0"]
Number = Annotated[int, "not negative"]
_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "above 0": (lambda value: value > 0, "must be above 0"),
    "not negative": (lambda value: value >= 0, "must not be negative"),
    "in [0, 1)": (lambda value: 0 <= value < 1, "must be in [0, 1)"),
}
_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
T = TypeVar("T")


def require(condition: bool, message: str) -> None:
    """Raises ``ConfigError`` with the message where the condition does not hold."""
    if not condition:
        raise ConfigError(message)


class Section:
    """Base of the dataclasses of settings, which are named after their section: `FlowMatchingConfig`, flow_matching."""

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():  # type: ignore[arg-type]
            problem = _problem(getattr(self, name), hint)
            section = re.sub(r"(?<=[a-z])(?=[A-Z])|$", "_", type(self).__name__.removesuffix("Config")).lower()
            shown = f"{section[:-1]}.{name}".lstrip(".")
            require(not problem, f"{shown} is {getattr(self, name)!r}; it {problem}")
        self.check()

    def check(self) -> None:
        """What is wrong beyond the types of fields: raises ``ConfigError``."""


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _unpacked(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a hint is made of; of a union, that it is one, and what it is beside None."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return typing.Union, tuple(each for each in options if each is not type(None))
    return origin, options


def is_list(hint: Any) -> bool:
    """Whether a field of this type takes several values. Local."""
    return any(typing.get_origin(each) is tuple for each in (hint, *typing.get_args(hint)))


def _or(told: Sequence[str]) -> str:
    return " or ".join([", ".join(told[:-1]), told[-1]] if told[1:] else told)


def _problem(value: Any, hint: Any) -> str:
    origin, options = _unpacked(hint)
    if origin is Annotated:
        holds, told = _RULES[options[1]]
        return "" if holds(value) else told
    if origin is typing.Union:
        return "" if value is None else _problem(value, options[0])
    if origin is typing.Literal:
        return "" if value in options else f"must be {_or([repr(option) for option in options])}"
    if origin is tuple:
        return next(filter(None, (_problem(each, options[0]) for each in value)), "")
    return ""


def read_as(value: Any, kind: Any) -> Any:
    """A text, or a list of texts, as a type that fields have. ``ValueError`` says what it must be. Local."""
    origin, options = _unpacked(kind)
    if origin is typing.Union:
        nothing = isinstance(value, str) and value.lower() in ("", "null", "none", "~")
        return None if nothing else read_as(value, options[0])
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.strip("[]() ").split(",") if part.strip()]
        if options[-1] is not Ellipsis and len(value) != len(options):
            raise ValueError(f"it must have {len(options)} values")
        return tuple(read_as(part, options[0]) for part in value)
    found = _scalar(value, kind, options) if isinstance(value, str) else None
    if found is None:
        told = [str(option) for option in options] if origin is typing.Literal else [_KINDS.get(kind, str(kind))]
        raise ValueError(f"it must be {_or(told)}")
    return found


def _scalar(text: str, kind: Any, options: tuple[Any, ...]) -> Any:
    """A text as the type; None where it is none. Whole numbers may be written as 1e3."""
    if options:
        return next((option for option in options if str(option) == text), None)
    if kind in (bool, str):
        return _BOOLS.get(text.lower()) if kind is bool else text
    try:
        number = int(text) if kind is int and text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return None
    return kind(number) if kind is float or number == number // 1 < float("inf") else None


def types_of(kind: type, prefix: str = "") -> dict[str, Any]:
    """The type of each field of a configuration, by its dotted name; sections are entered. Local."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            found |= types_of(typing.cast(type, hint), f"{prefix}{name}.")
        elif typing.get_origin(hint) is not dict:  # what is in a dict is the user's
            found[prefix + name] = hint
    return found


def made(base: T, values: Mapping[str, Any], prefix: str = "") -> T:
    """``base`` with values by dotted names; what the classes refuse is raised as they do. Local."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(base):  # type: ignore[arg-type]
        name, value = prefix + field.name, getattr(base, field.name)
        if dataclasses.is_dataclass(value):
            value = made(value, values, f"{name}.")
        elif isinstance(value, dict):
            value = value | {key.removeprefix(f"{name}."): values[key] for key in values if key.startswith(f"{name}.")}
        found[field.name] = values.get(name, value)
    return type(base)(**found)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings of a configuration as plain data, by dotted names. Local."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


# A model and data of one's own, "package.module:Class": the arguments of what is named are its settings, typed by its
# signature; `config`, `world` and `seed` are those of the run.


def _found(name: str, setting: str) -> Callable[..., Any]:
    """What is named; the current folder is looked in first, as `python -m` does."""
    module, _, attribute = name.partition(":")
    require(bool(module and attribute), f"{setting} is {name}; it must be package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value = getattr(import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(f"{setting} is {name}: {error}") from error
    except AttributeError:
        raise ConfigError(f"{setting} is {name}: module {module} has no {attribute}") from None
    require(callable(value), f"{setting} is {name}, which is no class and no function")
    return typing.cast("Callable[..., Any]", value)


def own_types(name: str, setting: str, section: str) -> dict[str, Any]:
    """The types of the arguments of what is named, by dotted names; a text where nothing is annotated. Local."""
    made = _found(name, setting)
    hints, types = typing.get_type_hints(made.__init__ if inspect.isclass(made) else made), {}
    for each in inspect.signature(made).parameters.values():
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name not in RUN:
            guess = type(each.default) if type(each.default) in _KINDS else str
            types[f"{section}.{each.name}"] = hints.get(each.name, guess)
    return types


RUN = ("config", "world", "seed")


def call(name: str, setting: str, section: str, given: Mapping[str, Any], run: Mapping[str, Any]) -> Any:
    """Makes what is named, from its settings and from the run. ``ConfigError`` names an argument that is missing."""
    made = _found(name, setting)
    wanted = inspect.signature(made).parameters
    values = {each: run[each] for each in wanted if each in run} | dict(given)
    for each in wanted.values():
        needed = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        option = f"--{section}.{each.name}".replace("_", "-")
        require(not needed or each.name in values, f"{setting} {name} needs {each.name}; give {option}")
    return made(**values)
