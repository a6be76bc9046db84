"""DeepSpeed's own configuration, as a command names it: where it lies, and what it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from validate_ddp.findings import Place
from validate_ddp.launch import kinds
from validate_ddp.launch.project import candidates
from validate_ddp.launch.reading import read
from validate_ddp.launch.records import DeepSpeed, Launch, Start, Word

_OPTIONS = ("deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config")


class Named(NamedTuple):
    """A configuration that a command names. path: as findings name it. word: of the command."""

    path: str
    config: DeepSpeed
    word: Word

    def place(self, word: Word, note: str) -> Place:
        return Place(self.path, word.span, note)


def argument(start: Start, *names: str) -> Word | None:
    """What a command hands to its script's option of one of these names, the last one."""
    found = None
    for index, word in enumerate(start.arguments):
        flag, equals, value = (word.only or "").partition("=")
        if flag.startswith("--") and flag[2:].replace("-", "_") in names:
            after = start.arguments[index + 1] if index + 1 < len(start.arguments) else None
            found = word._replace(texts=(value,)) if equals else after
    return found


def file_of(path: str, start: Start) -> tuple[str, Word] | None:
    """The JSON file that a command of the launch file at ``path`` surely names, as an absolute path, and its word."""
    word = argument(start, *_OPTIONS) or start.option("deepspeed_config_file")
    name = word.only if word is not None else None
    if word is None or name is None or not name.endswith(".json"):
        return None
    found = next((each for each in candidates(path, name, folder=start.folder) if os.path.isfile(each)), None)
    return None if found is None else (found, word)


def named(launch: Launch) -> Iterator[tuple[Start, Named]]:
    """The commands of a launch file with the configuration that each of them names."""
    for start in launch.facts(Start):
        found = file_of(launch.path, start)
        if found is None:
            continue
        try:
            with open(found[0], encoding="utf-8") as stream:
                text = stream.read(kinds.LARGEST)
        except (OSError, ValueError):
            continue
        shown = os.path.relpath(found[0]).replace(os.sep, "/")
        held = read(shown, text, kinds.JSON)
        for config in held.facts(DeepSpeed) if isinstance(held, Launch) else ():
            yield start, Named(shown, config, found[1])
