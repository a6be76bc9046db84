"""The partition check: the first gradient on W ranks against one process on each rank's batches, in short runs.

The ranks run once more up to the first step of each optimizer, and leave what they were given; one process plays each
different tape (``child/.../partition``). The ordinary run is left as it is: in it models are not widened, dropout
drops, and whole gradients of shards would need calls of our own, which hang where ranks diverge.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

from validate_ddp.findings import ERROR
from validate_ddp.record.partition import (
    WRONG,
    dearness,
    first_step_after,
    is_coupled,
    judgements,
    reduced_at,
    replicas,
)
from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.held import guard
from validate_ddp.rehearse.child.validate_ddp_rehearsed.partition.begin import ALONE, COMPARING, Part, on_ranks
from validate_ddp.rehearse.child.validate_ddp_rehearsed.partition.readout import FACTOR, MEAN
from validate_ddp.rehearse.left_behind import left_behind
from validate_ddp.rehearse.log import Log
from validate_ddp.rehearse.parent.keeping import Keeper
from validate_ddp.rehearse.parent.supervisor import supervise
from validate_ddp.rehearse.parent.view import Plain, View
from validate_ddp.rehearse.parent.warm import SHARDED, forked, forks
from validate_ddp.rehearse.plan import Plan
from validate_ddp.rehearse.slope import Along, Wrong, on_slope, search

_LEAST, _TIMES = 30.0, 4
"""Seconds for each of the short runs, and how often the time to the first step comes to that: others may be busy."""
_REPEATED = 1e-4
"""What the losses may change by of themselves, as a share of what they change by along the parameters."""
_UNGUARDED = "no Landlock, which keeps its short runs from what stands here"
"""Why nobody has them unasked: they do again what the script does before its first step."""
DENIED = re.compile(r"permission denied|cross-device link|read-only database|errno 13", re.IGNORECASE)
"""What is said of a path in which a run of a check must not write."""
_ENDED_WELL = ("finished", "stopped")
_COUNTED = re.compile(r"--?(?:world.size|nprocs?|n.?gpus?|num.?(?:gpus|processes))[= ](\d+)", re.IGNORECASE)
"""Arguments of which one process would be told as many ranks, and divide by them."""
_VARIABLE = "VALIDATE_DDP_PARTITION"
OFFLINE = ("HF_HUB_OFFLINE", "1")
QUIET = (("WANDB_MODE", "disabled"), ("PYTHONDONTWRITEBYTECODE", "1"))
_OBSERVERS = ["groups", "collectives", "ddp", "loaders", "failures"]


class _NotComparedError(Exception):
    """Why, in words. event: with what the ranks tell without a reference, where they tell something."""

    event: protocol.Partition | None = None


class _RefusedError(_NotComparedError):
    """In float32 it would be the same."""


def check_partition(plan: Plan, log: Log, view: View, wanted: bool | None) -> None:
    """Adds the event ``partition`` to the log of a run, from short runs more. Local.

    wanted: None and False leave it out; of None the event says why. Nothing is compared where the run has shown
    nothing to compare, and the event says why where there is something.
    """
    run = Run(log.events)
    if wanted is False or plan.world_size < 2 or (wanted is None and not any(run.each(protocol.Step))):
        return
    plan = replace(plan, launcher=str(run.plan.get("launcher", "auto")))
    why = "" if wanted else dearness(run) or _unasked(plan)
    if why:
        why += "; --partition compares"
    elif str(plan.world_size) in _COUNTED.findall(" ".join(plan.arguments)):
        why = "the script is told the number of ranks by its arguments"
    if why:
        log.add(protocol.Partition(compared=False, why=why))
    if why or run.outcome not in _ENDED_WELL:
        return
    view.note("partition: the first step again, on all ranks and in one process")
    limit = _LEAST + _TIMES * (first_step_after(run) or _LEAST)
    plan = replace(plan, max_steps=None, stop_after=None, timeout=min(plan.timeout, limit))
    plan = replace(plan, environment=(*plan.environment, OFFLINE, *QUIET))
    event = protocol.Partition(compared=False)
    without: protocol.Partition | None = None
    hidden = left_behind(run)
    with Keeper() as keeper:  # of the folders and of all processes
        keep = forked(plan, keeper, SHARDED if any(run.each(protocol.Sharded)) else ())
        for float64 in (True, False):
            try:
                event = _Check(plan, os.path.join(keeper.folder, f"kept{float64:d}"), float64, keep, hidden).event()
                event.replicas = replicas(run)
                break
            except _NotComparedError as error:
                without = error.event or without
                event = without or protocol.Partition(compared=False, why=str(error))
                if isinstance(error, _RefusedError):
                    break
            except OSError as error:  # a disk that is full, or a process that was killed
                event = protocol.Partition(compared=False, why=f"a process or file of the check is lost: {error}")
                break
    log.add(event)


def _unasked(plan: Plan) -> str:
    """Why it is not done unasked, whatever the script, in words; "" where it is."""
    if not guard.version():
        return _UNGUARDED
    return "" if forks(plan) else "each of its short runs would import torch on all ranks again"


class Silent(Plain):
    """What the script prints it has printed before; that a model cannot be widened is no news either."""

    def note(self, text: str) -> None:
        return

    def output(self, rank: int | None) -> int | None:
        return os.open(os.devnull, os.O_WRONLY)


class _Check:
    """One attempt. folder: where the processes leave what they have recorded. hidden: what they do not find."""

    def __init__(self, plan: Plan, folder: str, float64: bool, keep: Callable[[], Keeper], hidden: list[str]) -> None:
        self.plan, self.folder, self.float64, self.keep, self.hidden = plan, folder, float64, keep, hidden
        os.mkdir(folder)
        self.size = plan.world_size
        self.tapes: list[int] = []
        self.runs = 0
        """Runs from weights that lie further on."""
        self.devices = plan.nproc_per_node
        """GPUs of the one process."""

    def event(self) -> protocol.Partition:
        """What was found. Raises _NotComparedError.

        Where one process is no reference, as ranks hold parts of the model or hand each other what has a gradient, the
        slope of their losses is.
        """
        ranks = self._run("ranks")
        unknown: _NotComparedError | None = None
        try:
            event = self._compared(ranks)
            known = bool(judgements(event)) or not is_coupled(event) or event.dup == []
        except _NotComparedError as error:
            event, known, unknown = protocol.Partition(compared=False, float64=True, why=str(error)), False, error
        wrong = self._off_slope(event) if self.float64 and not known else None
        if wrong is not None:
            event.off_slope, event.factor, event.others = wrong.name, wrong.factor, wrong.others
        elif unknown is not None:
            event.parts = self._parts()
            if not event.parts:
                unknown.event = event if event.on_slope else None
                raise unknown
        event.place = reduced_at(ranks)
        return event

    def _compared(self, ranks: Run) -> protocol.Partition:
        """The gradients of the ranks beside those of one process. Raises _NotComparedError."""
        self.tapes = self._tapes(ranks)
        firsts = sorted(set(self.tapes))
        one = self._alone(firsts[0])
        if any(event.joined for _, event in one.each(protocol.Taped)):
            return self._beside_joined()
        for rank in firsts[1:]:
            self._run("one", rank)
        if len(firsts) > 1:
            self._tried("union")
        event = self._measured()
        if (len(firsts) > 1 and is_coupled(event)) or judgements(event):
            self._tried("dup")
            event = self._measured()
        if any(each.kind == WRONG and each.severity != ERROR for each in judgements(event)):
            self._tried("copies")
            event = self._measured()
        if judgements(event):
            self._run("again")
            event = self._measured()
        event.batch_norms = max((made.batch_norms for _, made in ranks.each(protocol.Ddp)), default=0)
        return event

    def _alone(self, rank: int) -> Run:
        """One process plays a rank's tape. A script may ask for as many GPUs as there were, or have as many ranks as it
        finds GPUs: which is not known before. Raises _NotComparedError."""
        try:
            return self._run("one", rank)
        except _RefusedError:
            raise
        except _NotComparedError:
            if self.devices == 1:
                raise
            self.devices = 1
            shutil.rmtree(os.path.join(self.folder, f"one-{rank}"))
            try:
                return self._run("one", rank)
            except _NotComparedError:
                self.devices = self.plan.nproc_per_node
            raise

    def _beside_joined(self) -> protocol.Partition:
        """One process is given the global batch by the script itself: of what it has nothing is a rank's, and a
        multiple of all of it is all that can be told. Raises _NotComparedError."""
        event = self._of_one_tape()
        kinds = {each.kind for each in event.readings if each.target == "rank"}
        if not kinds <= {MEAN, FACTOR}:
            raise _NotComparedError("one process learns from all data at once, and from no rank's alone")
        event.joined, event.union = True, [] if kinds == {MEAN} else None
        if judgements(event):
            self._run("again")
            event.repeats = self._of_one_tape().repeats
        return event

    def _of_one_tape(self) -> protocol.Partition:
        tapes, self.tapes = self.tapes, [0] * self.size
        try:
            return self._measured()
        finally:
            self.tapes = tapes

    def _off_slope(self, event: protocol.Partition) -> Wrong | None:
        """A parameter whose gradient on the ranks is not that of their losses, where one process has such a gradient:
        what the script cuts off on purpose it cuts off there too. Nothing where that cannot be told; where all are as
        they have to be the event says so."""
        try:
            total = self._moved(None)
            if not math.isfinite(total.along + total.slope):
                return None
            if total.names:
                event.on_slope = int(Along(total.along, total.slope).factor((1.0, float(self.size)), 0.0) or 0)
            event.stays = total.stays
            event.why += on_slope(event.on_slope, len(total.names), total.stays)
            wrong = search(total.names, Along(total.along, total.slope), self.size, self._along)
            if wrong is None or abs(self._moved([]).slope) > _REPEATED * abs(total.slope):
                return None
            self._run("solo")
            alone = self._moved(None, of="solo")
            told = Along(alone.along, alone.slope)
            return wrong if told.slope and told.factor((1.0,), 0.0) is not None else None
        except _NotComparedError:
            return None

    def _parts(self) -> Sequence[str]:
        """What each rank of a sharded model holds whole, with a gradient of its own."""
        try:
            self._run("solo")
            return [name for _, event in self._run("parts").each(protocol.Undivided) for name in event.names]
        except _NotComparedError:
            return []

    def _along(self, names: list[str]) -> Along:
        found = self._moved(names)
        return Along(found.along, found.slope)

    def _moved(self, names: list[str] | None, of: str = "ranks") -> protocol.Sloped:
        """The first step from weights of which some lie a little further on; what losses have changed by."""
        self.runs += 1
        self._run("up", self.runs, of, names)
        found = [event for _, event in self._run("slope", 0, of, names).each(protocol.Sloped)]
        if not found:
            raise _NotComparedError("the losses could not be compared")
        return found[0]

    def _tapes(self, ranks: Run) -> list[int]:
        digests = {rank: event.digest for rank, event in ranks.each(protocol.Taped)}
        if len(digests) != self.size:
            raise _NotComparedError("not every rank comes to a first step")
        return [min(other for other in digests if digests[other] == digests[rank]) for rank in sorted(digests)]

    def _tried(self, role: str) -> None:
        """A run that may fail: then there is no such reference."""
        try:
            self._run(role)
        except _NotComparedError:
            return

    def _measured(self) -> protocol.Partition:
        run = self._run("measure")
        found = [event for _, event in run.each(protocol.Partition)]
        if not found:
            raise _NotComparedError("the gradients could not be compared" + _fault(run))
        if not found[0].parameters:
            raise _NotComparedError("each rank has parameters of its own, or those of no model that is called")
        if not found[0].compared:
            raise _RefusedError(found[0].why)
        del found[0].process  # the command tells it, as one of the run
        found[0].rank_of = None
        return found[0]

    def _run(self, role: str, rank: int = 0, of: str = "ranks", names: list[str] | None = None) -> Run:
        size = 1 if of == "solo" else self.size
        part: Part = {
            "folder": self.folder, "role": role, "rank": rank, "size": size, "float64": self.float64,
            "tapes": self.tapes, "guarded": guard.version() > 0, "of": of, "names": names,
            "hidden": self.hidden,
        }  # fmt: skip
        several = on_ranks(role, of)
        plan, temporary = self.plan, os.path.join(self.folder, f"{role}-{rank}", "tmp")
        os.makedirs(temporary, exist_ok=True)
        if not several:
            if plan.launcher != "single":
                plan = replace(plan, environment=(*plan.environment, ("VALIDATE_DDP_DEVICES", str(self.devices))))
            plan = replace(plan, nproc_per_node=1, nnodes=1)
        plan = replace(plan, environment=(*plan.environment, ("TMPDIR", temporary), (_VARIABLE, json.dumps(part))))
        log = Log(None)
        outcome = supervise(plan, log, Silent(), keep=self.keep)
        if outcome == "interrupted":
            raise KeyboardInterrupt
        run = Run(log.events)
        if (role in ALONE or of == "solo") and len(run.ranks) > 1:
            raise _NotComparedError("the script starts several ranks whatever it is told")
        who = f"on {self.size} ranks" if several else "in one process"
        self._refused()
        if outcome not in _ENDED_WELL:
            why = _why(run)
            if DENIED.search(why):
                raise _RefusedError(f"the script writes where its short runs must not{why}")
            kind = _RefusedError if outcome in ("timeout", "hang") else _NotComparedError
            raise kind(f"the first step {who} failed{why}")
        left = os.path.join(self.folder, f"{role}-{0 if role == 'up' else rank}.pt")
        if role not in COMPARING and not os.path.exists(left):
            kind = _NotComparedError if run.faults else _RefusedError
            raise kind(f"the script ended {who} without a step of an optimizer that is one of torch's{_fault(run)}")
        return run

    def _refused(self) -> None:
        path = os.path.join(self.folder, "why")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                why = file.readline().strip()
            os.remove(path)
            raise _RefusedError(why)


def _why(run: Run) -> str:
    raised = [event for _, event in run.each(protocol.UncaughtException)]
    return f": {raised[0].kind}: {raised[0].message}".split("\n")[0] if raised else f" ({run.outcome})"


def _fault(run: Run) -> str:
    return f": {run.faults[0].where}: {run.faults[0].message}" if run.faults else ""
