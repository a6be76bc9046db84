"""Whole numbers that the command line sets or leaves as they are, by option: one may say how many steps are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import protocol
from ..hook import when_complete
from ..patching import Handed, around

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_MOST = 1 << 31


def watch_settings(session: Session) -> None:
    """Local. Events ``settings``: one for each time that an argparse parser has read a command line."""

    def told(parser: Handed, result: Handed) -> None:
        found = dict(_numbers(parser, result[0]))
        if found:
            session.emit(protocol.Settings(names=list(found), values=list(found.values())))

    def watch(module: ModuleType) -> None:
        around(module.ArgumentParser, "parse_known_args", session.fault, lambda args, kwargs: args[0], told)

    when_complete("argparse", watch)


def _numbers(parser: Handed, read: Handed) -> list[tuple[str, int]]:
    held = [(max(each.option_strings, key=len, default=""), getattr(read, each.dest, None)) for each in parser._actions]
    return [(name, value) for name, value in held if name and type(value) is int and 0 < value < _MOST]
