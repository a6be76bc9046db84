"""What the heartbeats of a run say, and how old they are; what cannot be read is in `problems`. Torch-free."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core import ConfigError
from ..records import numbers
from .heartbeat import ENDED, STATES

STALE_AFTER = 3  # Heartbeats that a rank may be late before it is called stale.


class MonitorError(ConfigError):
    """There is no run to look at; the message is one line: what, where, what to do."""


@dataclass(frozen=True)
class RankStatus:
    """What a rank has said last. None: it did not say."""

    rank: int
    state: str = "unknown"  # As it said; "stale": it has not said so for too long; "unknown": there is no heartbeat.
    message: str = "no heartbeat yet"
    cause: str = ""  # Why the job ended, where it left because of another rank.
    age: float | None = None  # Seconds since its last heartbeat.
    step: int | None = None
    host: str | None = None
    pid: int | None = None
    device: str | None = None
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    device_percent: float | None = None
    device_memory_bytes: int | None = None
    device_total_bytes: int | None = None


@dataclass(frozen=True)
class RunStatus:
    """A run at a moment. None: not known (yet); seconds everywhere."""

    name: str
    time: float  # When this was read, in seconds since 1970.
    problems: tuple[str, ...] = ()  # Files that could not be read, a line each.
    state: str = "unknown"  # One of `STATES`, or "stale".
    message: str = "it has written no heartbeat"  # Why, in a line; "" where the state says it all.
    ranks: tuple[RankStatus, ...] = ()
    step: int | None = None  # Optimizer steps done, of ``total``.
    total: int | None = None
    percentage: float | None = None
    elapsed: float | None = None  # Of this start, at its last heartbeat.
    eta: float | None = None  # From now to the end of the last step.
    step_seconds: float | None = None  # Smoothed, without evaluations and saves.
    metrics: dict[str, float] = field(default_factory=dict)  # Means of the last interval that was logged.
    lr: float | None = None
    samples_per_second: float | None = None  # Over all ranks, in the last interval.
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)  # By data: its `step` and `metrics`.
    world_size: int | None = None
    launcher: str | None = None


_COPIED = "step total elapsed step_seconds metrics lr samples_per_second evaluations world_size launcher".split()
_NEEDED = [*_COPIED, *"rank started time interval state message eta host pid device usage".split()]


def read_run(folder: Path, now: float | None = None) -> RunStatus:
    """The status of the run in ``folder``. ``MonitorError`` where there is none. now: seconds since 1970. Local."""
    now = time.time() if now is None else now
    if not folder.is_dir():
        there = "is a file" if folder.exists() else "is not there"
        raise MonitorError(f"{folder} {there}; give a run directory, such as runs/20260101-120000")
    if not any((folder / each).exists() for each in ("status", "metrics", "config.json")):
        inside = sorted(each.name for each in folder.iterdir() if (each / "metrics").is_dir())
        hint = f"its runs are {', '.join(inside[-3:])}" if inside else "give the directory that a run has written"
        raise MonitorError(f"{folder} holds no run: it has no status, no metrics and no config.json; {hint}")
    said: dict[int, dict[str, Any]] = {}
    problems: list[str] = []
    for path in sorted((folder / "status").glob("rank*.json")):
        try:
            each = numbers(json.loads(path.read_bytes()))
            said[int(each["rank"])] = {"cause": "", **{name: each[name] for name in _NEEDED}, **each}
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror or error}")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problems.append(f"{path} is damaged: {type(error).__name__}; the rank writes it anew if it lives")
    found = _together(said, now) if said else {}
    return RunStatus(folder.resolve().name, now, tuple(problems), **found)


def _together(said: dict[int, dict[str, Any]], now: float) -> dict[str, Any]:
    """What all ranks say of the run, rank zero for all where it can be read. Files of an earlier start say nothing."""
    lead = said[0] if 0 in said else max(said.values(), key=lambda each: each["started"])
    heard = [said.get(rank) for rank in range(lead["world_size"])]
    ranks = tuple(
        _rank(rank, each, now) if each and each["started"] == lead["started"] else RankStatus(rank)
        for rank, each in enumerate(heard)
    )
    state, message = _state(ranks)
    eta = lead["eta"] if state in STATES and state not in ENDED else None
    return {
        "state": state,
        "message": message,
        "percentage": 100 * lead["step"] / lead["total"] if lead["total"] else None,
        "eta": 0.0 if state == "finished" else eta and max(0.0, eta - max(0.0, now - lead["time"])),
        "ranks": ranks,
        **{name: lead[name] for name in _COPIED},
    }


def _rank(rank: int, said: dict[str, Any], now: float) -> RankStatus:
    age = max(0.0, now - said["time"])
    late = said["state"] not in ENDED and age > STALE_AFTER * said["interval"] > 0  # 0: it is not to be expected
    state = "stale" if late else said["state"]
    message = f"no heartbeat for {age:.0f} s, it was {said['state']}" if late else said["message"]
    copied = {name: said[name] for name in ("cause", "step", "host", "pid", "device")}
    known = RankStatus.__dataclass_fields__
    used = {name: value for name, value in said["usage"].items() if name in known}
    return RankStatus(rank, state, message, age=age, **copied, **used)


def _state(ranks: Sequence[RankStatus]) -> tuple[str, str]:
    """The state of a run, and why: a rank that failed or went stale counts for all; who followed another, last."""
    failed = [each for each in ranks if each.state == "failed"]
    if failed and all(each.cause for each in failed):
        return "failed", failed[0].cause
    alone, ranks = len(ranks) == 1, [each for each in ranks if not each.cause] or ranks
    for state in ("failed", "stale"):
        if found := [each for each in ranks if each.state == state]:
            named = f"rank{'s' * (len(found) > 1)} {', '.join(str(each.rank) for each in found)}: "
            return state, named * (not alone) + found[0].message
    return ranks[0].state, ranks[0].message
