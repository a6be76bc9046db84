"""Configuration from the words of a command: files, then `key=value`, then options; the later one wins."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..config import Config, ConfigError
from ..config.fields import nearest, types_of, unchecked
from ..config.files import RIVALS, Layer, Setting, merged, read_layers, typed
from ..config.older import OLDER_FLAGS, OLDER_NAMES, OLDER_SECTIONS, SWITCHES, Renamed, in_new_form
from ..launch import detect
from .parse import UsageError, parse

__all__ = ["Words", "config_of", "given", "read_words", "without_rivals"]

HELP = (
    "Settings come from, and the later one wins: the defaults shown here; --config FILE.yaml, which may begin with "
    "`defaults: [other.yaml]`; key=value, such as optim.lr=3e-4; the options shown here."
)
_OVERRIDE = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_COMMAND_LINE = "command line"

T = TypeVar("T")


@dataclass
class Words:
    """The words of a command, by kind."""

    files: list[str] = field(default_factory=list)
    """Of --config."""
    overrides: Layer = field(default_factory=dict)
    """key=value."""
    older: Layer = field(default_factory=dict)
    """Options under names of older trainers."""
    options: list[str] = field(default_factory=list)
    """All others, as they are."""


def config_of(words: Words, command: str, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration that the words describe; ``ConfigError`` or ``UsageError`` where they describe none.

    Older names are told by rank zero. Local; every rank.
    """
    environ, renamed = os.environ if environ is None else environ, Renamed()
    types = types_of(Config)
    sections = _sections([*types, *(f"{section}." for section in OLDER_SECTIONS)])
    raw = [layer for file in words.files for layer in read_layers(Path(file), sections)]
    layers = [
        typed(in_new_form(layer, renamed, launched=lambda: detect(environ).launcher != "single"), types, OLDER_NAMES)
        for layer in (*raw, words.overrides, words.older)
    ]
    named = given(words.options)
    twice = named & set(layers[-1])
    if twice:
        raise UsageError(f"{', '.join(sorted(twice))}: given twice, under an older name too; give it once")
    settings = without_rivals(merged(layers), named)
    base = unchecked(Config(), {name: setting.value for name, setting in settings.items()})
    try:
        config = parse(Config, words.options, command, default=base, description=HELP)
    except (UsageError, ConfigError) as error:
        raise UsageError(_with_hint(_with_places(str(error), settings, named), list(types))) from None
    if renamed.told and detect(environ).rank == 0:
        print(f"reference-trainer: {renamed}", file=sys.stderr)
    return config


def read_words(words: Sequence[str], *, older: bool = True) -> Words:
    """The words by kind. older: options of older trainers are known. Local."""
    found, rest, types = Words(), list(words), types_of(Config)
    while rest:
        word = rest.pop(0)
        name, equals, value = _option(word)
        if name == "config":
            found.files.append(value if equals else _value(word, rest))
        elif older and name in OLDER_FLAGS:
            if not equals:
                value = _switch(rest) if name in SWITCHES else _value(word, rest)
            found.older[name] = Setting(value, _COMMAND_LINE)
        elif name:
            found.options.append(word)
            if not equals and rest and not _is_flag(name, types) and not rest[0].startswith("--"):
                found.options.append(rest.pop(0))  # its value, whatever that looks like
        elif match := _OVERRIDE.fullmatch(word):
            found.overrides[match[1]] = Setting(match[2], _COMMAND_LINE)
        elif Path(word).suffix in (".yaml", ".yml", ".json"):
            raise UsageError(f"{word}: a configuration file is given as --config {word}")
        else:
            found.options.append(word)
    return found


def given(options: Sequence[str]) -> set[str]:
    """The settings that options name. Local."""
    return {name for name, _, _ in map(_option, options) if name}


def without_rivals(settings: Mapping[str, T], named: set[str]) -> dict[str, T]:
    """The settings but for those whose place an option takes: `epochs` where `--steps` is given. Local."""
    taken = {RIVALS[name] for name in named if name in RIVALS} - named
    return {name: setting for name, setting in settings.items() if name not in taken}


def _option(word: str) -> tuple[str, bool, str]:
    """Name, whether "=" follows, and what does; "" for a word that is no option."""
    if not word.startswith("--"):
        return "", False, ""
    name, equals, value = word[2:].partition("=")
    return name.replace("-", "_"), bool(equals), value


def _is_flag(name: str, types: Mapping[str, Any]) -> bool:
    """Whether an option takes no value: `--drop-last`, `--no-drop-last`, `--club.no-enabled`."""
    section, dot, last = name.rpartition(".")
    return bool in (types.get(name), types.get(section + dot + last.removeprefix("no_")))


def _value(word: str, rest: list[str]) -> str:
    """The word after an option, taken off."""
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"{word}: its value is missing")
    return rest.pop(0)


def _switch(rest: list[str]) -> str:
    """The word after a switch where it is yes or no, taken off; else yes."""
    return rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"


def _sections(names: Sequence[str]) -> list[str]:
    """All that stands before a dot in dotted names."""
    return list(dict.fromkeys(_heads(names)))


def _heads(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        parts = name.split(".")[:-1]
        yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _with_hint(message: str, names: Sequence[str]) -> str:
    """The message, with the option that may have been meant by one that there is not."""
    unknown = re.search(r"Unrecognized options: --([\w.-]+)", message)
    hint = nearest(unknown[1].replace("-", "_"), names) if unknown else ""
    return message.replace(" (", f"; {hint} (", 1) if hint.startswith("did you mean") else message


def _with_places(message: str, settings: Layer, named: set[str]) -> str:
    """The message after the lines of the files in which the settings that it names were given."""
    places = [
        setting.place
        for name, setting in settings.items()
        if name not in named and re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", message)
    ]
    told = [place for place in dict.fromkeys(places) if place != _COMMAND_LINE]
    return f"{', '.join(told)}: {message}" if told else message
