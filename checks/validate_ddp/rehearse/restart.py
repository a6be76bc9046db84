"""The restart check: the run, writing into a folder of the check; again, ended after a save; and on from that."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

from validate_ddp.console import UsageError
from validate_ddp.record.restart import (
    BY_ITSELF,
    FAILS,
    Runs,
    loads,
    moments,
    repeats,
    saved_after,
    saves_at_its_end,
    written,
)
from validate_ddp.record.restarted import compared, gone
from validate_ddp.record.restarted_end import compared_with_saved
from validate_ddp.record.run import PEER_GONE, Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.held import guard
from validate_ddp.rehearse.child.validate_ddp_rehearsed.hook import RESTART, WHY
from validate_ddp.rehearse.legs import legs
from validate_ddp.rehearse.log import Log
from validate_ddp.rehearse.parent.keeping import Keeper
from validate_ddp.rehearse.parent.supervisor import supervise
from validate_ddp.rehearse.parent.view import View
from validate_ddp.rehearse.parent.warm import forked
from validate_ddp.rehearse.partition import DENIED, OFFLINE, QUIET, Silent
from validate_ddp.rehearse.plan import Plan

_ALIKE, _OTHER = 1000, 5000
"""Seeds of what a script does not seed: in the first two runs, and in the third."""
_ENDED_WELL = ("finished", "stopped")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_NAMED = re.compile(r"'([^']+)'")
"""Paths in what Python says of a file."""
_HASHES = ("PYTHONHASHSEED", "0")
"""Sets have the same order in each run."""
_TEMPORARY = "tmp"
"""In the folder of the check: what the runs have for temporary files."""
_UNHELD = (
    "--restart-at: the runs would not be kept from your files: it needs Landlock (Linux 5.13 or later; a container may "
    "deny it)"
)
_HELD = (
    "the three runs write in a folder of the check only, and your files are as they were; give the script another "
    "output folder, or leave this out"
)


class Restarting(NamedTuple):
    """What is asked for. at: steps of all optimizers. arguments: more of the script's in the third run; ``{last}`` in
    them is the newest path saved. nproc: ranks a node in the third run, None for as many."""

    at: int
    arguments: tuple[str, ...] = ()
    nproc: int | None = None


class _Kept:
    """Keeps the ranks of a run of the check, in what keeps any. check: its folder."""

    def __init__(self, keeper: Keeper, check: str, orders: dict[str, object]) -> None:
        self.keeper, self.check, self.orders = keeper, check, json.dumps(orders)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.keeper, name)

    def __enter__(self) -> Keeper:
        return cast("Keeper", self)

    def __exit__(self, *error: object) -> None:
        self.keeper.__exit__(*error)

    def start(self, words: list[str], environment: dict[str, str], screen: int | None) -> int:
        """As of any run; with the orders, and a hash of texts that is the same in each run."""
        own = {RESTART: self.orders, "TMPDIR": os.path.join(self.check, _TEMPORARY), **dict(QUIET)}
        return self.keeper.start(words, {**dict([_HASHES, OFFLINE]), **environment, **own}, screen)

    def poll(self) -> dict[int, int]:
        """As of any run; all ranks are ended where one of them says why the check cannot go on."""
        if os.path.exists(os.path.join(self.check, WHY)):
            self.keeper.ask(patiently=False)
        return self.keeper.poll()


class Check:
    """A context: the folder of the check. Local. Raises UsageError where the kernel would not keep the runs in it."""

    def __init__(self, plan: Plan, asked: Restarting) -> None:
        if not guard.version():
            raise UsageError(_UNHELD)
        self.plan, self.asked = plan, asked
        self.keeper = Keeper()
        self.folder = self.keeper.folder
        self._empty()

    @cached_property
    def start(self) -> Callable[[], Keeper]:
        """Makes what keeps ranks; torch is imported once for the three runs, where ranks can be forked."""
        hashes = () if _HASHES[0] in os.environ else (_HASHES,)
        plan = replace(self.plan, environment=(*hashes, *QUIET, *self.plan.environment))
        return forked(plan, self.keeper, silent=False)

    def _empty(self, files: str = "") -> None:
        """The folder for temporary files has the same name in all runs; the second one finds nothing in it, nor in the
        one that it writes into."""
        path = os.path.join(self.folder, _TEMPORARY)
        shutil.rmtree(path, ignore_errors=True)
        if files:
            shutil.rmtree(os.path.join(self.folder, files), ignore_errors=True)
        os.makedirs(path, 0o700, exist_ok=True)  # where what the script has made read-only is left in it

    def __enter__(self) -> Check:
        return self

    def __exit__(self, *error: object) -> None:
        self.keeper.__exit__(*error)

    def keep(self, files: str, seed: int, stop: int | None = None, whole: int | None = None) -> Callable[[], Keeper]:
        """Makes the keeper of a run that writes into ``files``."""
        where = os.path.join(self.folder, files)
        orders = {"folder": self.folder, "files": where, "seed": seed, "stop": stop, "whole": whole}
        return lambda: cast("Keeper", _Kept(self.start(), self.folder, orders))

    @property
    def first(self) -> Callable[[], Keeper]:
        """That of the whole run."""
        return self.keep("a", _ALIKE)

    def check(self, plan: Plan, log: Log, view: View) -> None:
        """Adds the event ``restart`` to the log of the whole run. Raises UsageError where a run would have changed
        files that were there before."""
        run = Run(log.events)
        self._refused(run)
        path = _not_led(run, written(run)) if run.outcome == "failed" else ""
        if path:
            raise UsageError(f"--restart-at: {path} is written and read past Python, which is not led into its folder")
        log.add(self._event(replace(plan, launcher=str(run.plan.get("launcher", "auto"))), run, view))

    def _event(self, plan: Plan, whole: Run, view: View) -> protocol.Restart:
        if whole.outcome not in _ENDED_WELL:
            return _not(f"the run did not come to its end ({whole.outcome})")
        at, why = saved_after(whole, self.asked.at), ""
        if at is not None:
            runs = self._stopped(plan, whole, at, view)
        elif saves_at_its_end(whole) and not self._is_resized(plan):
            runs, why = self._ended(plan, whole, view)
        else:
            ranks = ", which is for as many ranks" if saves_at_its_end(whole) else ""
            runs = f"nothing is saved between step {self.asked.at} and the last one{ranks}"
        if isinstance(runs, str):
            return _not(runs)
        view.note("restart: on from what was saved")
        last = _last(runs.stopped, runs.at, os.path.join(self.folder, "b"))
        words = tuple(word.replace("{last}", last) for word in self.asked.arguments)
        again = replace(
            plan, arguments=(*plan.arguments, *words), nproc_per_node=self.asked.nproc or plan.nproc_per_node
        )
        if plan.stop_after:
            again = replace(again, stop_after=max(1, plan.stop_after - runs.at))
        resumed = self._run(again, self.keep("b", _OTHER, whole=0 if self._is_resized(plan) else None))
        return _of(runs._replace(resumed=resumed), os.path.join(self.folder, _TEMPORARY), bool(words), why)

    def _is_resized(self, plan: Plan) -> bool:
        return self.asked.nproc not in (None, plan.nproc_per_node)

    def _stopped(self, plan: Plan, whole: Run, at: int, view: View) -> Runs | str:
        """With the second run, which is ended after so many steps; or why there is nothing to compare."""
        view.note(f"restart: the run again, ended after step {at}")
        self._empty("b")
        tell = at if self._is_resized(plan) else None
        stopped = self._run(replace(plan, stop_after=None), self.keep("b", _ALIKE, at, tell))
        if stopped.outcome != "stopped":
            return f"the run did not come to step {at + 1} again ({stopped.outcome})"
        runs = Runs(whole, stopped, whole, at)
        return repeats(runs) or runs

    def _ended(self, plan: Plan, whole: Run, view: View) -> tuple[Runs | str, str]:
        """The same of a run that saves only at its end: the second one comes to its own end after fewer steps. Where
        none does, it takes all steps, and is the whole one too; and why."""
        rank, why = whole.ranks[0], "no number on the command line is that of the steps"
        for leg in legs(plan.arguments, whole, self.asked.at):
            view.note(f"restart: the run again with `{leg.told}`, to its own end")
            self._empty("b")
            stopped = self._run(replace(plan, arguments=leg.arguments), self.keep("b", _ALIKE))
            runs = Runs(whole, stopped, whole, len(moments(stopped, rank)), ended=f"by `{leg.told}`")
            if 0 < runs.at < len(moments(whole, rank)) and saves_at_its_end(stopped):
                found = repeats(runs)
                if not found:
                    return runs, ""
                why = f"with `{leg.told}` {found}"
        view.note("restart: the run again, to its own end")
        self._empty("b")
        again = self._run(plan, self.keep("b", _ALIKE))
        if again.outcome != "finished" or not saves_at_its_end(again):
            return f"the run did not come to its end again ({again.outcome})", why
        return Runs(again, again, again, len(moments(again, rank)), ended=BY_ITSELF), why

    def _run(self, plan: Plan, keep: Callable[[], Keeper]) -> Run:
        log = Log(None)
        if supervise(plan, log, Silent(), keep=keep) == "interrupted":
            raise KeyboardInterrupt
        run = Run(log.events)
        self._refused(run)
        return run

    def _is_held(self, message: str) -> bool:
        """Whether it is by the check that something was denied: not where the message names paths with which this
        process, that nothing holds, could do no more, or which the run may write."""
        named = [path for path in _NAMED.findall(message) if "/" in path or os.path.exists(path)]
        inside = os.path.join(self.folder, "")
        return not named or any(not path.startswith(inside) and _may(path) for path in named)

    def _refused(self, run: Run) -> None:
        """Raises UsageError where a run has been kept from something: by itself, or by the kernel."""
        path, why = os.path.join(self.folder, WHY), ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                why = file.readline().strip()
        elif run.outcome == "failed":
            raised = (event for _, event in run.each(protocol.UncaughtException))
            denied = (each for each in raised if DENIED.search(each.message) and self._is_held(each.message))
            why = next((f"{each.kind}: {each.message}{_at(each.own)}".replace("\n", " ") for each in denied), "")
        if why:
            raise UsageError(f"--restart-at: {why}: {_HELD}")


def _may(path: str) -> bool:
    """Whether what is there may be read, and be written or replaced; of what is not there, whether it may be made."""
    there = os.path.exists(path)
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if there and not os.access(path, os.R_OK):
        return False
    return (there and os.access(path, os.W_OK)) or os.access(folder, os.W_OK | os.X_OK)


def run_restarted(plan: Plan, log: Log, view: View, read: list[object] | None, asked: Restarting) -> None:
    """The whole run, and the two others; the event ``restart`` is the log's last. Local."""
    with Check(plan, asked) as check:
        if supervise(plan, log, view, read, check.first) != "interrupted":
            check.check(plan, log, view)


def _at(place: protocol.Frame | None) -> str:
    return f" ({place.path}:{place.line})" if place is not None else ""


def _not(why: str) -> protocol.Restart:
    return protocol.Restart(compared=False, why=why)


def _last(run: Run, at: int, folder: str) -> str:
    """The newest path saved: of a checkpoint in several files, its folder. folder: where the run has written."""
    kept = [event.path for _, event in run.each(protocol.Kept) if event.path and event.after <= at]
    renamed = {event.source: event.path for _, event in run.each(protocol.Renamed)}
    path = kept[-1] if kept else ""
    if os.path.basename(path).startswith("<"):  # into memory, as Lightning does before it writes
        files = [os.path.join(each, name) for each, _, names in os.walk(folder) for name in names]
        files = [each for each in files if _is_archive(each)]
        return max(files, key=os.path.getmtime).removeprefix(folder) if files else ""
    return renamed.get(path, path)


def _is_archive(path: str) -> bool:
    """Whether it begins as what torch.save writes."""
    try:
        if not os.path.isfile(path):  # a pipe, or a link that leads nowhere
            return False
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def _of(runs: Runs, temporary: str, told: bool, why: str) -> protocol.Restart:
    """temporary: the folder for temporary files. told: the restarted run is given further arguments. why: there is no
    longer run than the one before the restart."""
    resumed = runs.resumed
    ranks = resumed.ranks
    if resumed.outcome in ("failed", "hang", "timeout") and not all(moments(resumed, rank) for rank in ranks):
        return _failed(runs)
    if not ranks or not all(moments(resumed, rank) for rank in ranks):
        more = ": give it more of them in --restart-args" if runs.ended else ""
        return _not(f"the restarted run takes no step{more}")
    if runs.ended and not told and not loads(runs, written(runs.stopped)):
        return _not(
            "the run saves at its end, and reads nothing of it when it is started again: --restart-args say how"
        )
    if runs.ended == BY_ITSELF:
        return compared_with_saved(runs, why)
    return gone(runs, temporary) or compared(runs)


def _failed(runs: Runs) -> protocol.Restart:
    """A restarted run that does not come to a step."""
    raised = sorted(runs.resumed.each(protocol.UncaughtException), key=lambda pair: pair[1].time)
    causes = [pair for pair in raised if not PEER_GONE.search(pair[1].message)]
    if not causes:
        return _not(f"the restarted run does not come to a step ({runs.resumed.outcome})")
    if causes[0][1].kind == "SystemExit":
        told = causes[0][1].message.split("\n")[0]
        return _not(f"the restarted run ends itself before a step: {told}")
    path = _not_led(runs.resumed, written(runs.stopped) | written(runs.resumed))
    if path:
        return _not(f"{path} is read past Python: it is not found in the folder of the check")
    rank, event = causes[0]
    ranks = len(runs.resumed.ranks)
    place, saved = runs.place()
    place = event.own or place
    size = "" if runs.same_size else f" on {ranks} ranks"
    message = _COLOURS.sub("", event.message.split("\n")[0])
    told = f"the restart{size} fails: rank {rank}: {event.kind}: {message}"
    found = protocol.Difference(
        kind=FAILS, severity="error", rank=rank, step=runs.at + 1, text=told[:300], place=place,
        also=saved if saved != place else None, note="saved here",
    )  # fmt: skip
    return protocol.Restart(
        compared=True, ended=runs.ended, after=runs.at, resumed=runs.at, ranks=max(1, ranks), differences=[found]
    )


def _not_led(run: Run, paths: set[str]) -> str:
    """A file that was written in the folder of the check, and that an exception names all the same."""
    for _, event in run.each(protocol.UncaughtException):
        for path in paths:
            found = re.search(rf"(?<![\w.-]){re.escape(os.path.basename(path))}(?![\w-])", event.message)
            if found and event.kind not in ("KeyError", "RuntimeError", "ValueError", "TypeError", "UnpicklingError"):
                return path
    return ""


def arguments(text: str) -> tuple[str, ...]:
    """What ``--restart-args`` says. Raises UsageError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--restart-args {text}: {error}") from error
