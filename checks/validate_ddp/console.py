"""What every command of ours shares with its terminal: errors in one line, exit codes, colour, width. Imports nothing
of ours, and nothing that costs."""

from __future__ import annotations

import os
import sys

OK, FOUND, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_NO_TERMINAL = 160
"""Columns of a report that does not go to a terminal: most lines of real code fit whole."""


class UsageError(Exception):
    """A command line that cannot be carried out; the message is one line."""


def colored(choice: str, terminal: bool) -> bool:
    """Whether to colour: the option first, then FORCE_COLOR and NO_COLOR, then whether it goes to a terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return terminal and os.environ.get("TERM") != "dumb"


def columns() -> int:
    """Columns of the terminal, or of a report that goes elsewhere."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return max(int(given), 40)
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns or _NO_TERMINAL, 40)
    except (OSError, ValueError):  # no terminal, or no file behind standard output
        return _NO_TERMINAL
