"""Runs a plan to its end: every event into the log, deadlines kept, stuck ranks found, all processes ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from typing import cast

from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import VERSION, Event
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import Plan as Told
from validate_ddp.rehearse.log import Log
from validate_ddp.rehearse.parent.keeping import Keeper
from validate_ddp.rehearse.parent.listener import Listener
from validate_ddp.rehearse.parent.processes import Processes, cpu_seconds
from validate_ddp.rehearse.parent.stillness import Stillness
from validate_ddp.rehearse.parent.view import Guarded, View
from validate_ddp.rehearse.plan import Plan
from validate_ddp.rehearse.watch import SETTLED, Watch

_TICK = 0.05
PAUSE = 0.005
"""Seconds in which events may gather: to be woken for each would cost the ranks more than the events do."""
_FAILED_GRACE = 2.0
"""Seconds that ranks get when one has failed: time to fail themselves, with a traceback of their own."""
_EXIT_GRACE = 5.0
"""Seconds for a rank to go once its interpreter has begun to: gloo sometimes hangs there after a correct script."""


def supervise(
    plan: Plan, log: Log, view: View, read: list[object] | None = None, keep: Callable[[], Keeper] = Keeper
) -> str:
    """Runs it and returns how it ended: "finished", "failed", "timeout", "hang", "stopped" or "interrupted".

    view: what is shown meanwhile. read: what the static check has found before. keep: makes the keeper of the ranks.
    """
    guarded = Guarded(view, lambda error: log.tell(f"view: {type(error).__name__}: {error}"))
    outcome = _once(plan, log, guarded, read, keep)
    if outcome == "spawns":
        # Four processes would each start ranks of their own: begin again with the one that people start by hand.
        guarded.note("the script spawns its own ranks: started again as one process")
        log.restart()
        outcome = _once(replace(plan, launcher="single"), log, guarded, read, keep)
    return outcome


def _once(plan: Plan, log: Log, view: Guarded, read: list[object] | None, keep: Callable[[], Keeper]) -> str:
    with keep() as keeper, closing(Listener(keeper.folder)) as listener:
        told = cast("Told", asdict(plan))
        log.add(protocol.Start(version=VERSION, cwd=os.getcwd(), plan=told, read=read))
        view.began(log.events)
        for change in plan.said:
            view.note(change)
            log.add(protocol.Shim(change=change))
        run = _Run(plan, log, view, listener, keeper)
        outcome = run.follow()
        log.add(protocol.Finish(outcome=outcome, seconds=round(time.monotonic() - run.began, 3)))
        return outcome


class _Run:
    """One start of the processes, until all are gone."""

    def __init__(self, plan: Plan, log: Log, view: Guarded, listener: Listener, keeper: Keeper) -> None:
        self.plan, self.log, self.view, self.listener = plan, log, view, listener
        self.began = time.monotonic()
        self.single = plan.launcher == "single"
        self.watch = Watch(plan.ranks or range(plan.world_size))
        self.rank_of: dict[int, int] = {}
        self.pid_of: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.together = plan.world_size
        """Ranks of the group that was joined last: a script that starts its ranks itself may start others."""
        self.leaving: dict[int, float] = {}
        self.overdue: set[int] = set()
        self.failed_at: float | None = None
        self.spawns = False
        self.raised: set[int] = set()
        self.noted: set[str] = set()
        self.asked: set[int] = set()
        self.answered: set[int] = set()
        self.processes = Processes(plan, keeper, self.single, view.output)
        for descriptor in view.readable():
            listener.also(descriptor, view.read)
        self.stillness = Stillness(plan.hang)

    def follow(self) -> str:
        """The loop. Whatever happens, no process of the run is left."""
        try:
            while True:
                outcome = self._tick()
                if outcome is not None:
                    return outcome
        except KeyboardInterrupt:
            self.processes.end(patiently=True)
            return "interrupted"
        finally:
            self.processes.end()
            self._drain()
            self.view.finish()

    def _tick(self) -> str | None:
        events = list(self.listener.receive(_TICK))
        for event in events:
            self._take(event)
        if events:
            time.sleep(PAUSE)
        self.view.tick()
        now = time.monotonic()
        for pid, code in self.processes.poll():
            self._ended(pid, code, now)
        if self.spawns and not self.single and self.plan.launcher == "auto":
            return "spawns"
        if not self.processes.running:
            self._drain()
            return "failed" if self.failed_at is not None else "finished"
        if self.failed_at is not None and now - self.failed_at > _FAILED_GRACE:
            return "failed"
        if self._all_stopped():
            return "stopped"
        if now - self.began > self.plan.timeout:
            self._dump(protocol.Timeout)
            return "timeout"
        if self._all_left(now):
            return "failed" if self.failed_at is not None or self.raised else "finished"
        if self.failed_at is None and self.watch.stuck(now) and self._stands_still():
            self._dump(protocol.Hang)
            return "hang"
        if self.failed_at is None and self._looked_still(now):
            self._dump(protocol.Hang)
            return "hang"
        return None

    def _take(self, event: Event) -> None:
        """Logs an event and lets it count."""
        process = event.process
        now = time.monotonic()
        if isinstance(event, protocol.Hello):
            pid = cast("int", event.pid)
            launched = self.processes.ranks.get(pid)
            event.launched = pid in self.processes.ranks
            self.pid_of[process] = pid
            if launched is not None:
                self.rank_of[process] = launched
        elif isinstance(event, protocol.Group | protocol.Joining):
            if process not in self.rank_of and event.rank is not None:
                self.rank_of[process] = event.rank
                event.spawned = True
                if not self.single and self.pid_of.get(process) not in self.processes.ranks:
                    self.spawns = True
        elif isinstance(event, protocol.Spawn):
            self.spawns = True
        rank = self.rank_of.get(process)
        if rank is not None:
            event.rank_of = rank
        self.log.add(event)
        if rank is None:
            return
        self.view.event(rank, event)
        match event:
            case protocol.Group():
                self.together = event.world_size
            case protocol.Stopped():
                self.stopped.add(rank)
            case protocol.UncaughtException():
                self.raised.add(rank)
            case protocol.Exit():
                self.leaving[rank] = now
            case protocol.Shim() if event.at_once and event.change not in self.noted:
                self.noted.add(event.change)
                self.view.note(event.change)
            case protocol.Where():
                self.answered.add(process)
                self.stillness.saw(rank, event.stack, self._cpu(rank, started=True), now)
                return  # our own question is no sign of life
            case protocol.Gone():
                if self.single:
                    self.watch.end(rank, 0, now)
                return
        self.watch.feed(rank, event, now)

    def _ended(self, pid: int, code: int, now: float) -> None:
        rank = self.processes.ranks[pid]
        self.view.ended(rank, code)
        clean = code != 0 and rank in self.leaving and rank not in self.raised
        self.log.add(protocol.Ended(rank_of=rank, code=code, after_exit=clean))
        if clean and code < 0:
            code = 0  # gloo sometimes aborts when the interpreter goes, after a script that was right to its end
        if rank is not None:
            self.watch.end(rank, code, now)
        if code != 0 and self.failed_at is None:
            self.failed_at = now

    def _all_left(self, now: float) -> bool:
        """Counts ranks as gone that should be by now; whether there are no others."""
        for rank, since in self.leaving.items():
            if now - since > _EXIT_GRACE and rank not in self.overdue and self._is_running(rank):
                self.overdue.add(rank)
                code = int(rank in self.raised)
                self.log.add(protocol.Ended(rank_of=rank, code=code, after_exit=not code))
                self.watch.end(rank, code, now)
                if code and self.failed_at is None:
                    self.failed_at = now
        return bool(self.overdue) and self._running_ranks() <= self.overdue

    def _running_ranks(self) -> set[int | None]:
        return {self.processes.ranks[pid] for pid in self.processes.running}

    def _all_stopped(self) -> bool:
        if self.single:
            return len(self.stopped) >= self.together
        return bool(self.stopped) and self._running_ranks() <= self.stopped

    def _pid(self, rank: int) -> int | None:
        for process, number in self.rank_of.items():
            if number == rank:
                return self.pid_of.get(process)
        return None

    def _cpu(self, rank: int, started: bool = False) -> float | None:
        pid = self._pid(rank)
        return None if pid is None else cpu_seconds(pid, started)

    def _is_running(self, rank: int) -> bool:
        return self._pid(rank) in self.processes.running

    def _stands_still(self) -> bool:
        """Whether the waiting ranks use no CPU: one in a long backward is not stuck."""
        ranks = self.watch.waiting_ranks()
        before = {rank: self._cpu(rank) for rank in ranks}
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            for event in self.listener.receive(_TICK):
                self._take(event)
        for rank in ranks:
            first, second = before[rank], self._cpu(rank)
            if first is not None and second is not None and second - first > 0.08:
                return False
        return self.watch.stuck(time.monotonic())

    def _looked_still(self, now: float) -> bool:
        """Asks where the ranks are when some wait for long; says so once, and sees when none of them moves."""
        waits = [rank for rank in self.watch.waiting_ranks() if now - self.watch.ranks[rank].last > SETTLED]
        if not self.stillness.due(bool(waits), now):
            return False
        for process, rank in self.rank_of.items():
            if process in self.asked and process not in self.answered and self._is_running(rank):
                # In native code that keeps the GIL, or stopped: its CPU time still tells whether it moves.
                self.stillness.saw(rank, (), self._cpu(rank, started=True), now)
            self.listener.ask(process, "where?")
        self.asked, self.answered = set(self.rank_of), set()
        others = [rank for rank, state in self.watch.ranks.items() if not state.ended]
        remark = self.stillness.remark(waits, now)
        if remark:
            self.view.note(remark)
        return self.stillness.still(others, now)

    def _dump(self, reason: type[protocol.Stop]) -> None:
        """Asks every rank where it is, waits a moment, and logs what each is doing."""
        decided = round(time.monotonic(), 6)
        asked = [process for process in self.rank_of if process in self.listener.sockets]
        for process in asked:
            self.listener.ask(process, "where?")
        self.answered.clear()
        deadline = time.monotonic() + 0.4
        while time.monotonic() < deadline and not self.answered.issuperset(asked):
            for event in self.listener.receive(_TICK):
                self._take(event)
        ranks = {
            rank: protocol.Standing(
                ended=state.ended, code=state.code, waiting=state.waiting[-1].n if state.waiting else None
            )
            for rank, state in self.watch.ranks.items()
        }
        stop = reason(ranks=ranks)
        stop.time = decided
        self.log.add(stop)

    def _drain(self) -> None:
        """What is still in the sockets of processes that have gone."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            events = list(self.listener.receive(0.02))
            for event in events:
                self._take(event)
            if not events and not self.listener.sockets:
                return
            if not events and not self.processes.running:
                return
