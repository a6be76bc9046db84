"""What the heartbeats of a run say, and how old they are; what cannot be read is in `problems`. Torch-free."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core import ConfigError
from ..launch import LOST
from ..records import numbers
from .heartbeat import ENDED, STATES

STALE_AFTER = 3  # Heartbeats that a rank may be late before it is called stale.
_OF_THE_RUN = "step total elapsed step_seconds metrics lr samples_per_second evaluations world_size launcher".split()
_OF_A_RANK = "rank state message step host pid device usage".split()
Said = dict[str, Any]
"""What a rank has said, by the names of `heartbeat`; `age`: seconds since then."""


class MonitorError(ConfigError):
    """There is no run to look at; the message is one line: what, where, what to do."""


def read_run(folder: Path, now: float | None = None) -> dict[str, Any]:
    """The status of the run in ``folder``; None: not known (yet). ``MonitorError`` where there is none. Local.

    What rank zero says of the run; `name`, `time` (of reading), `problems`, `percentage`; `ranks`, what each says. The
    state is also "stale", where a rank has not said so for too long, or "unknown", where there is no heartbeat.
    """
    now = time.time() if now is None else now
    if not folder.is_dir():
        there = "is a file" if folder.exists() else "is not there"
        raise MonitorError(f"{folder} {there}; give a run directory, such as runs/20260101-120000")
    if not any((folder / each).exists() for each in ("status", "metrics", "config.json")):
        told = "it has no status, no metrics and no config.json; give the directory that a run has written"
        raise MonitorError(f"{folder} holds no run: {told}")
    said: dict[int, Said] = {}
    problems: list[str] = []
    for path in sorted((folder / "status").glob("rank*.json")):
        try:
            each = numbers(json.loads(path.read_bytes()))
            needed = {*_OF_THE_RUN, *_OF_A_RANK, "started", "interval", "eta", "time"}
            said[int(each["rank"])] = {name: each[name] for name in needed}
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror or error}")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problems.append(f"{path} is damaged: {type(error).__name__}; the rank writes it anew if it lives")
    found = {"name": folder.resolve().name, "time": now, "problems": problems, "ranks": [], "percentage": None}
    if not said:
        nothing = dict.fromkeys([*_OF_THE_RUN, "eta"]) | {"metrics": {}, "evaluations": {}}
        return found | nothing | {"state": "unknown", "message": "it has written no heartbeat"}
    return found | _together(said, now)


def _together(said: dict[int, Said], now: float) -> dict[str, Any]:
    """What all ranks say of the run, rank zero for all where it can be read. Files of an earlier start say nothing."""
    lead = said[0] if 0 in said else max(said.values(), key=lambda each: each["started"])
    ranks = []
    for rank in range(lead["world_size"]):
        each = said.get(rank, {"started": None})
        ranks.append(_rank(each, now) if each["started"] == lead["started"] else _unknown(rank))
    state, message = _state(ranks)
    eta = lead["eta"] if state in STATES and state not in ENDED else None
    eta = 0.0 if state == "finished" else eta and max(0.0, eta - max(0.0, now - lead["time"]))
    done = 100 * lead["step"] / lead["total"] if lead["total"] else None
    own = {"state": state, "message": message, "percentage": done, "eta": eta, "ranks": ranks}
    return {name: lead[name] for name in _OF_THE_RUN} | own


def _unknown(rank: int) -> Said:
    nothing = dict.fromkeys([*_OF_A_RANK, "age"]) | {"usage": {}}
    return nothing | {"rank": rank, "state": "unknown", "message": "no heartbeat yet"}


def _rank(said: Said, now: float) -> Said:
    found = {name: said[name] for name in _OF_A_RANK} | {"age": max(0.0, now - said["time"])}
    if found["state"] not in ENDED and found["age"] > STALE_AFTER * said["interval"] > 0:  # 0: none is to be expected
        found |= {"state": "stale", "message": f"no heartbeat for {found['age']:.0f} s, it was {said['state']}"}
    return found


def _state(ranks: Sequence[Said]) -> tuple[str, str]:
    """The state of a run, and why: a rank that failed or went stale counts for all; who lost a peer, last."""
    followed = [each for each in ranks if each["state"] == "failed" and LOST.search(each["message"])]
    rest = [each for each in ranks if each not in followed]
    silent = [each for each in rest if each["state"] not in ENDED]
    if followed and silent and all(each["state"] != "failed" for each in rest):
        return "failed", f"{_named(silent)} died without a word"
    for state in ("failed", "stale"):
        if found := [each for each in rest or ranks if each["state"] == state]:
            return state, f"{_named(found)}: " * (len(ranks) > 1) + found[0]["message"]
    return ranks[0]["state"], ranks[0]["message"]


def _named(ranks: Sequence[Said]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(str(each['rank']) for each in ranks)}"
