"""``--differential``: the gradient of the first step on N ranks against that of one process on all their batches."""

from __future__ import annotations

import json
import os
from dataclasses import replace

from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.log import Log
from validate_ddp.rehearse.parent.keeping import Keeper
from validate_ddp.rehearse.parent.supervisor import supervise
from validate_ddp.rehearse.parent.view import Plain, View
from validate_ddp.rehearse.plan import Plan

_ENDED_WELL = ("finished", "stopped")


def differential(plan: Plan, log: Log, view: View) -> None:
    """Adds the event ``differential`` to the log of a run, from two short runs more: N ranks, and one process.

    Local. Nothing is compared where the first run did not end well, and the event says why.
    """
    run = Run(log.events)
    if run.outcome not in _ENDED_WELL:
        log.add(_not("the run did not come to its end"))
        return
    view.note("differential: the first step again, on all ranks and in one process")
    event = _not("")
    for float64 in (True, False):
        event = _pair(replace(plan, stop_after=1, max_steps=None, launcher=run.plan.get("launcher", "auto")), float64)
        if event.compared:
            break
    log.add(event)


def _pair(plan: Plan, float64: bool) -> protocol.Differential:
    with Keeper() as keeper:  # of the folder; each of the two runs has its own for its processes
        both = replace(plan, differential=keeper.folder, float64=float64)
        event = _compared(both, keeper.folder)
    event.float64 = float64
    return event


def _compared(plan: Plan, folder: str) -> protocol.Differential:
    ranks = _run(plan)
    if ranks.outcome not in _ENDED_WELL:
        return _not(f"the first step on {plan.world_size} ranks failed{_why(ranks)}")
    told = {rank: _first_step(ranks, rank) for rank in ranks.ranks}
    why = _unfit(ranks, told)
    if why:
        return _not(why)
    with open(os.path.join(folder, "batches.json"), "w", encoding="utf-8") as file:
        json.dump(_joined(told), file)
    one = _run(replace(plan, nproc_per_node=1, nnodes=1))
    found = [event for _, event in one.each(protocol.Differential)]
    if one.outcome not in _ENDED_WELL:
        return _not(f"the first step in one process failed{_why(one)}")
    if not found:
        return _not("one process ended without a step of an optimizer")
    if not found[0].compared:
        return _not("one process holds other parameters")
    why = _other_inputs(ranks, told, one)
    if why:
        return _not(why)
    backwards = [event for event in told[ranks.ranks[0]] if isinstance(event, protocol.Backward)]
    # A script may compute other gradients beside; the one that is reduced is the step's.
    site = next((event.site for event in reversed(backwards) if event.armed), None)
    names = _names(ranks)
    event, worst = found[0], found[0].worst
    return protocol.Differential(
        compared=True, parameters=event.parameters, norm_of_ranks=event.norm_of_ranks, norm_of_one=event.norm_of_one,
        relative=event.relative, factor=event.factor, beside=event.beside,
        place=site.own if site is not None else None,
        worst=names[worst] if isinstance(worst, int) and worst < len(names) else None,
        batch_norms=max((made.batch_norms for _, made in ranks.each(protocol.Ddp)), default=0),
        world_size=ranks.world_size,
    )  # fmt: skip


def _not(why: str) -> protocol.Differential:
    return protocol.Differential(compared=False, why=why)


def _why(run: Run) -> str:
    raised = [event for _, event in run.each(protocol.UncaughtException)]
    return f": {raised[0].kind}: {raised[0].message}".split("\n")[0] if raised else f" ({run.outcome})"


class _Silent(Plain):
    """What the script prints it has printed before; that a model cannot be widened is no news either."""

    def note(self, text: str) -> None:
        return

    def output(self, rank: int | None) -> int | None:
        return os.open(os.devnull, os.O_WRONLY)


def _run(plan: Plan) -> Run:
    log = Log(None)
    if supervise(plan, log, _Silent()) == "interrupted":
        raise KeyboardInterrupt
    return Run(log.events)


def _first_step(run: Run, rank: int) -> list[protocol.Event]:
    """The events of a rank up to its first optimizer step."""
    found = []
    for event in run.by_rank[rank]:
        found.append(event)
        if isinstance(event, protocol.Step):
            break
    return found


def _batches(events: list[protocol.Event]) -> list[protocol.Batch]:
    return [event for event in events if isinstance(event, protocol.Batch)]


def _unfit(run: Run, told: dict[int, list[protocol.Event]]) -> str:
    """Why the first step of these ranks cannot be repeated by one process; nothing where it can."""
    if run.world_size < 2 or len(told) != run.world_size:
        return f"{len(told)} of {run.world_size} ranks reported, and there have to be two or more"
    if not any(isinstance(event, protocol.Ddp) for event in told[run.ranks[0]]):
        return "no DistributedDataParallel before the first step"
    batches = [_batches(events) for events in told.values()]
    keys = [[(event.loader, event.turn, event.count) for event in each] for each in batches]
    if not any(keys):
        return "no batch of a DataLoader is taken before the first step"
    if any(each != keys[0] for each in keys):
        return "ranks do not take the same batches of the same loaders before their first step"
    if any(not event.indices for each in batches for event in each):
        return "the indices of the first batches are not known, as of an iterable dataset"
    if any(isinstance(event, protocol.Draw) for events in told.values() for event in events):
        return "the script draws random numbers while it trains"
    return ""


def _joined(told: dict[int, list[protocol.Event]]) -> dict[str, list[list[int]]]:
    """By loader and iteration, the indices of each batch: those of all ranks, one after the other."""
    found: dict[str, list[list[int]]] = {}
    for events in zip(*(_batches(told[rank]) for rank in sorted(told)), strict=True):
        key = f"{events[0].loader}.{events[0].turn}"
        found.setdefault(key, []).append([index for event in events for index in event.indices or ()])
    return found


def _other_inputs(ranks: Run, told: dict[int, list[protocol.Event]], one: Run) -> str:
    """Why the one process has learned from something else; nothing where it has not."""
    alone = _first_step(one, one.ranks[0])
    mine, theirs = _batches(alone), [_batches(told[rank]) for rank in sorted(told)]
    if len(mine) != len(theirs[0]):
        return f"one process takes {len(mine)} batches for its first step, a rank {len(theirs[0])}"
    for at, event in enumerate(mine):
        parts = [each[at].rows or () for each in theirs]
        whole = event.rows
        if not whole or any(len(part) != len(whole) for part in parts):
            return "the contents of the first batches are not known"
        for column, values in enumerate(whole):
            if list(values) != [value for part in parts for value in part[column]]:
                return (
                    "a sample has other contents in each run: the data or their augmentation is random, and not seeded"
                )
    starts = [
        next((list(event.before) for event in events if isinstance(event, protocol.Parameters)), [])
        for events in (told[ranks.ranks[0]], alone)
    ]
    apart = [at for at, pair in enumerate(zip(*starts, strict=False)) if pair[0] != pair[1]]
    # Those under DistributedDataParallel are copied from the ranks.
    if apart:
        return f"{len(apart)} parameters start elsewhere in each run: they are under no wrapper, and not seeded"
    if starts[0] != starts[1]:
        return "one process holds other parameters"
    return ""


def _names(run: Run) -> list[str]:
    held = next((event.names for _, event in run.each(protocol.Parameters)), [])
    return [name.name if name else "" for name in held]
