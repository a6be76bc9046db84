"""A few ranks of a large world, one after another, each as one process that nobody answers (``child/.../simulated``).

Their events become those of one run, as if they had run at the same time, and are judged as such.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import cast

from validate_ddp.console import UsageError
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.simulated import files
from validate_ddp.rehearse.log import Log
from validate_ddp.rehearse.parent.ending import last
from validate_ddp.rehearse.parent.keeping import Keeper
from validate_ddp.rehearse.parent.supervisor import supervise
from validate_ddp.rehearse.parent.view import View
from validate_ddp.rehearse.parent.warm import forked
from validate_ddp.rehearse.plan import Plan

_SPAWNS = "--as-world: the script spawns its own ranks, and cannot be run as one of them; start it as torchrun would"
_VARIABLE = "VALIDATE_DDP_SIMULATED"


def planned(plan: Plan, size: int, ranks: tuple[int, ...], per_node: int) -> Plan:
    """The plan of a world of ``size`` ranks. Raises UsageError for ranks that it has not."""
    per_node = min(per_node, size)
    if size < 2 or size % per_node:
        raise UsageError(f"--as-world {size}: has to be a multiple of --per-node {per_node}, and more than one rank")
    chosen = tuple(dict.fromkeys(ranks)) or chosen_of(size, per_node)
    wrong = [rank for rank in chosen if rank >= size]
    if wrong or len(chosen) < 2:
        told = f"there is no rank {wrong[0]} among {size}" if wrong else "two ranks at least are compared"
        raise UsageError(f"--as-ranks: {told}")
    if plan.launcher == "single":
        raise UsageError(_SPAWNS)
    launcher = "slurm" if plan.launcher == "slurm" else "env"
    return replace(
        plan, nproc_per_node=per_node, nnodes=size // per_node, launcher=launcher, ranks=tuple(sorted(chosen))
    )


def chosen_of(size: int, per_node: int) -> tuple[int, ...]:
    """The first two ranks, the last of the first node, the first of the next, a middle one and the last."""
    return tuple(sorted({0, 1, per_node - 1, min(per_node, size - 1), size // 2 - 1, size - 1}))


def simulate(plan: Plan, log: Log, view: View, read: list[object] | None) -> str:
    """Runs the plan's ranks; how that ended, as ``supervise`` says it. Raises UsageError for a script that spawns."""
    began = time.monotonic()
    log.add(
        protocol.Start(version=protocol.VERSION, cwd=os.getcwd(), plan=cast("protocol.Plan", asdict(plan)), read=read)
    )
    outcomes: list[str] = []
    first = 0.0
    with Keeper() as keeper, _Aside(view) as aside, last(aside.leave):
        folder = os.path.join(keeper.folder, "sources")
        os.mkdir(folder)
        told = json.dumps({"folder": folder, "ranks": plan.ranks})
        keep = forked(plan, keeper, silent=False)
        for at, rank in enumerate(plan.ranks):
            aside.hidden = hide(folder, aside.folder)
            view.note(f"rank {rank} as if of {plan.world_size}")
            own = Log(None)
            one = replace(plan, ranks=(rank,), environment=(*plan.environment, (_VARIABLE, told)))
            try:
                outcomes.append(supervise(one, own, view, keep=keep))
            finally:
                aside.put_back()
            if any(isinstance(event, protocol.Spawn) for event in own.events):
                raise UsageError(_SPAWNS)
            start = min((event.time for event in own.events if event.time), default=0.0)
            first = first or start
            for event in _of(own.events, at, first - start):
                log.add(event)
            if outcomes[-1] == "interrupted":
                break
    outcome = next((each for each in ("interrupted", "failed", "timeout") if each in outcomes), "finished")
    if outcome == "finished" and set(outcomes) != {"finished"}:
        outcome = "failed" if "hang" in outcomes else "stopped"
    log.add(protocol.Finish(outcome=outcome, seconds=round(time.monotonic() - began, 3)))
    return outcome


class _Aside:
    """A folder for what the ranks before have made. It is no part of what a kept run removes: however the command ends,
    what is in it is put back, or lies there."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.folder = tempfile.mkdtemp(prefix="validate-ddp-aside-")
        self.hidden: list[tuple[str, str, int]] = []

    def __enter__(self) -> _Aside:
        return self

    def put_back(self) -> None:
        for place, path, _ in self.hidden:
            with suppress(OSError, shutil.Error):
                files.put_back(place, path)

    def leave(self) -> None:
        """Puts back what can be, and removes the folder where nothing is left that is nowhere else."""
        self.put_back()
        if any(os.path.lexists(place) and not os.path.lexists(path) for place, path, _ in self.hidden):
            self.view.note(f"what the ranks have made and could not be put back lies in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, *error: object) -> None:
        self.leave()


def hide(folder: str, aside: str) -> list[tuple[str, str, int]]:
    """Takes away what the ranks before have made: the next one begins as they did, and finds it where it has met them.

    folder: where it was noted what they have made. aside: where it is laid meanwhile. Gives what was taken as (where it
    lies, path, how many calls of groups its maker had made)."""
    made: dict[str, int] = {}
    try:
        with open(os.path.join(folder, files.MADE), encoding="utf-8") as file:
            for path, met in map(json.loads, file):
                made.setdefault(path, met)
    except FileNotFoundError:
        return []
    hidden = []
    for path, met in made.items():  # a folder comes before what was made in it
        if os.path.lexists(path):
            place = os.path.join(tempfile.mkdtemp(dir=aside), "kept")
            with suppress(OSError):  # what cannot be taken away is there
                shutil.move(path, place)
                hidden.append((place, path, met))
    with open(os.path.join(folder, files.HIDDEN), "w", encoding="utf-8") as file:
        json.dump(hidden, file)
    return hidden


_OF_ONE = (protocol.Start, protocol.Finish, protocol.Stop)
"""What is told of one rank's run, and not of all of them."""


def _of(events: list[protocol.Event], at: int, later: float) -> list[protocol.Event]:
    """The events of one rank's run, as those of a process of its own, at the time of the others."""
    kept = [event for event in events if not isinstance(event, _OF_ONE)]
    for event in kept:
        if event.process >= 0:
            event.process += at * _APART
        if event.time:
            event.time = round(event.time + later, 6)
    return kept


_APART = 1000
"""More processes than one rank makes."""
