"""What travels between the parent and the ranks, and the errors that a user sees."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

GROUP, SHARED, PROCESS = "group", "shared", "process"
ISOLATIONS = (GROUP, SHARED, PROCESS)
"""group: a fresh process group for each test; shared: the group stays; process: fresh processes too."""


@dataclass(frozen=True)
class Job:
    """What a rank is asked to do. payload: pickled steps, see ``rank.call``. context: see ``state.Context``, empty if
    nothing changed. backend: None leaves the group to the function; the environment is as torchrun makes it."""

    serial: int
    title: str
    payload: bytes
    context: bytes
    backend: str | None
    isolation: str
    capture: bool
    is_test: bool


@dataclass(frozen=True)
class Failure:
    """What went wrong on one rank, ready to be shown. kind: exception, skipped, xfailed, died, or waiting.

    text: traceback or stack. rendered: pytest's picture of it, pickled. error: the exception, pickled, where it can be.
    place: the line of the user and the call into torch from which an exception came.
    """

    kind: str
    summary: str
    text: str = ""
    rendered: bytes | None = None
    error: bytes | None = None
    place: str = ""

    @property
    def is_consequence(self) -> bool:
        """Whether this is what gloo says when a peer has gone."""
        return self.kind == "exception" and _PEER_GONE.search(self.summary) is not None

    @property
    def fold_key(self) -> tuple[str, str, str]:
        """Failures of two ranks that differ in addresses only are shown once."""
        return self.kind, _ADDRESS.sub("0x", self.summary), _ADDRESS.sub("0x", self.text)


_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


@dataclass(frozen=True)
class Warned:
    """A warning that was raised on a rank."""

    message: str
    category: str
    filename: str
    line: int


@dataclass(frozen=True)
class Reply:
    """A rank's answer to a job. value: the pickled result. sections: captured output by title."""

    serial: int
    failure: Failure | None
    value: bytes = b""
    sections: tuple[tuple[str, str], ...] = ()
    warnings: tuple[Warned, ...] = ()


@dataclass(frozen=True)
class Idle:
    """A rank has reset itself. dirty: why it should not be used again."""

    serial: int
    dirty: str = ""


class WorldError(AssertionError):
    """A job failed on some ranks. failures: by rank. The text shows each different failure once."""

    def __init__(self, title: str, failures: dict[int, Failure], size: int) -> None:
        self.title, self.size = title, size
        self.failures = _without_echoes(failures)
        self.replies: dict[int, Reply] = {}
        super().__init__(title, failures, size)

    def __str__(self) -> str:
        blocks = [f"--- {named(ranks)} ---\n{shown(failure)}" for ranks, failure in self.folded()]
        return "\n\n".join([self.headline(), *blocks])

    def headline(self) -> str:
        """One line: what happened on which rank."""
        said = [f"{named(ranks)} {each.summary}" for ranks, each in fold(self.failures, lambda each: each.summary)]
        returned = sorted(set(range(self.size)) - set(self.failures))
        if returned:
            said.append(f"{named(returned)} had returned")
        return f"{self.title}: {'; '.join(said)}" if self.title else "; ".join(said)

    def folded(self) -> list[tuple[list[int], Failure]]:
        """Failures with the ranks that share them, the likely cause first."""
        return sorted(fold(self.failures, lambda failure: failure.fold_key), key=lambda each: _ORDER[each[1].kind])


class WorldTimeout(WorldError):
    """The ranks did not answer in time."""


def _without_echoes(failures: dict[int, Failure]) -> dict[int, Failure]:
    """What a rank says because a peer has gone is told in a line, if it is known why the peer has gone."""
    if all(failure.is_consequence or failure.kind == "waiting" for failure in failures.values()):
        return failures
    return {
        rank: Failure("echo", f"lost its peer {failure.place}") if failure.is_consequence else failure
        for rank, failure in failures.items()
    }


_ORDER = {"died": 0, "exception": 1, "skipped": 1, "xfailed": 1, "waiting": 2, "echo": 3}
_PEER_GONE = re.compile(r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed")


def shown(failure: Failure) -> str:
    """The whole of a failure as text."""
    return failure.text or failure.summary


def fold(items: dict[int, T], key: Callable[[T], object]) -> list[tuple[list[int], T]]:
    """Ranks with equal keys together, in the order of their first rank."""
    ranks: dict[object, list[int]] = {}
    for rank in sorted(items):
        ranks.setdefault(key(items[rank]), []).append(rank)
    return [(group, items[group[0]]) for group in ranks.values()]


def named(ranks: Iterable[int]) -> str:
    """``rank 3``, or ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    single = len(runs) == 1 and runs[0][0] == runs[0][1]
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return f"{'rank' if single else 'ranks'} {text}"


def death(status: int | None) -> str:
    """How a process ended, from its exit code; negative: that signal; None: not known."""
    if status is None:
        return "died"
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended by itself with exit code {status} (os._exit or sys.exit in a thread)"
