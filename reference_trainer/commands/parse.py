"""Words of the command line as a dataclass of options, and what is said where they are none."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TypeVar

__all__ = ["BAD_INPUT", "FAILED", "OK", "HelpShown", "UsageError", "needs", "parse"]

OK, FAILED, BAD_INPUT = 0, 1, 2
"""Exit codes: done; a check failed, or training broke off; bad input, told in one line."""

T = TypeVar("T")


class UsageError(ValueError):
    """A command line that cannot be carried out; the message is one line."""


class HelpShown(Exception):
    """The help of a command was asked for and printed."""


def needs(*packages: str) -> None:
    """Refuses, in one line, to begin without these packages; imports none of them. Local."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} missing: pip install 'validate-ddp[trainer]'")


def parse(kind: type[T], words: list[str], command: str, *, default: T | None = None, description: str = "") -> T:
    """The options as their dataclass; ``UsageError`` with tyro's reason in one line.

    default: what holds without options; it need not be checked. description: for the help, after the class's own.
    """
    import contextlib
    import io

    needs("tyro", "rich")
    import tyro

    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            about = f"{kind.__doc__}\n\n{description}" if description else None
            basis = {} if default is None else {"default": default}
            return tyro.cli(kind, args=words, prog=f"reference-trainer {command}", description=about, **basis)
    except SystemExit as stop:
        if not stop.code:
            raise HelpShown from None
        raise UsageError(f"{_reason(told.getvalue())} (reference-trainer {command} --help)") from None


def _reason(box: str) -> str:
    """The reason in one line, from the box that tyro draws around it."""
    # A title, then blocks between rules: drawn with lines, or with hyphens where standard output has no lines.
    reason: list[str] = []
    for line in box.splitlines()[1:]:
        line = line.strip("│╰╯ \t")
        if line.strip("─-") and line != "Got errors:":
            reason.append(line)
        elif reason:
            break
    text = " ".join(" ".join(reason).split())
    head, colon, rest = text.partition(": ")
    if head.startswith("Missing from ") and rest.startswith("--"):
        return f"{rest.split()[0]} is missing"
    if colon and head.startswith("Error parsing "):
        name = head.removeprefix("Error parsing ")
        # A dataclass says by itself which setting it refuses; an option's reason needs its name.
        text = f"{name}: {rest}" if name.startswith("-") else rest
    text = re.sub(r"no type matching (.+?) could be instantiated from \['(.*)'\]\.?", r"'\2' is no \1", text)
    return text or "the options could not be read"
