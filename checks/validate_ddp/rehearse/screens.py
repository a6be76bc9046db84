"""A small terminal for each rank, so that what it prints can be shown above a table that is drawn anew all the time.

A script that asks finds a terminal, as it would without the table: progress bars stay progress bars.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import termios
from collections.abc import Callable

Printed = Callable[[int | None, str], None]


class Screen:
    """One rank's terminal. line: what it has printed since the last line end."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.line = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")


class Screens:
    """The terminals of a run. printed: called with the rank and each whole line."""

    def __init__(self, columns: int, printed: Printed) -> None:
        self.columns = columns
        self.printed = printed
        self.screens: dict[int, Screen] = {}

    def open(self, rank: int | None) -> int:
        """A new terminal; its far end, for the rank's process, is the caller's to close."""
        near, far = pty.openpty()
        attributes = termios.tcgetattr(far)
        attributes[1] &= ~termios.OPOST  # line ends stay as they are written
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(far, termios.TCSANOW, attributes)
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, self.columns, 0, 0))
        os.set_blocking(near, False)
        self.screens[near] = Screen(rank)
        return far

    def read(self, near: int) -> bool:
        """Takes what has come at one terminal; False when its rank has gone."""
        try:
            data = os.read(near, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:  # EIO: nobody holds the far end any more
            data = b""
        screen = self.screens.get(near)
        if screen is None:
            return False
        text = screen.line + screen.decoder.decode(data, final=not data)
        *lines, rest = text.split("\n")
        if not data and rest:
            lines, rest = [*lines, rest], ""
        for line in lines:
            self.printed(screen.rank, _overwritten(line))
        screen.line = rest if len(rest) < 4096 else _overwritten(rest)[-4096:]
        if not data:
            os.close(near)
            del self.screens[near]
        return bool(data)

    def current(self, rank: int | None) -> str:
        """The line that a rank is printing, as a progress bar does."""
        return next((_overwritten(each.line) for each in self.screens.values() if each.rank == rank), "")

    def close(self) -> None:
        """Takes what is still there, and ends the terminals."""
        for near, screen in list(self.screens.items()):
            for _ in range(64):  # a daemon that holds the far end could print for ever
                if not self.read(near) or not select.select([near], [], [], 0)[0]:
                    break
            if near in self.screens:
                if screen.line:
                    self.printed(screen.rank, _overwritten(screen.line))
                del self.screens[near]
                os.close(near)


def _overwritten(line: str) -> str:
    """What is seen of a line in which carriage returns go back to its start."""
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""
