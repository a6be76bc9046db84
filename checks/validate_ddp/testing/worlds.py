"""One world as the parent sees it: its processes, what they answer, and the verdict when they do not."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from .outcome import Failure, Idle, Job, Reply, WorldError, WorldTimeout, death
from .server import Forkserver
from .stacks import DUMP_SIGNAL, Where, from_dump
from .transport import Closed, wait_readable

AFTER_FAILURE, AFTER_RETURN = 0.3, 2.0
"""Seconds that ranks must have sat in one collective, once a peer has failed or returned, to be given up: they wait for
a rank that will not come. The longer one is for a machine too busy to finish a collective in the shorter."""
LOOK_EVERY = 0.1
PROBE_LIMIT = 0.5
"""Seconds for a rank to say where it is, before faulthandler is asked."""


class WorldProcesses:
    """The ranks of one world. States: starting, idle, busy, resetting, dead."""

    def __init__(self, number: int, size: int, server: Forkserver) -> None:
        self.number, self.size, self.server = number, size, server
        self.jobs, self.probes = server.spawn(number, size)
        self.pids: list[int] = []
        self.state = "starting"
        self.waiting = set(range(size))
        """Ranks that have not said that they are idle."""
        self.context = b""
        self.shared = ""
        self.dumps = [-1] * size
        self.last_title = ""
        self.why_dead = ""

    def settle(self) -> None:
        """Takes in what the ranks have said while nobody waited for them: that they are idle, or dead."""
        for rank in sorted(self.waiting):
            channel = self.jobs[rank]
            try:
                while wait_readable([channel], 0):
                    channel.pump()
                while channel.has_message():
                    self.take_idle(rank, channel.pop())
            except Closed:
                self.give_up(f"rank {rank} {death(self.exit_code(rank))} while it was reset after {self.last_title}")
                return
        if not self.waiting and self.state in ("starting", "resetting"):
            self.state = "idle"

    def take_idle(self, rank: int, message: object) -> None:
        """Notes that a rank is ready."""
        if isinstance(message, Idle):
            self.waiting.discard(rank)
            self.dumps[rank] = message.dump
            if message.dirty:
                self.give_up("")

    def learn_pids(self) -> None:
        """Looks for the pids that the forkserver has told."""
        found = self.server.pids.pop(self.number, None)
        if found is not None:
            self.pids = found

    def give_up(self, why: str) -> None:
        """Kills the ranks; does not wait. why: told to the user, where no test failed by it."""
        if self.state == "dead":
            return
        self.state, self.why_dead = "dead", why
        self.learn_pids()
        self.server.kill(self.pids)
        for channel in (*self.jobs, *self.probes):
            channel.close()

    def dismiss(self) -> None:
        """Tells idle ranks to end by themselves, so that they can write their coverage."""
        for channel in self.jobs:
            try:
                channel.send(None)
            except Closed:
                pass
        self.state = "dead"

    def run(self, job: Job, timeout: float) -> list[Reply]:
        """Every rank's reply; raises ``WorldError``, and then the world is dead. The world must be idle."""
        self.state, self.last_title = "busy", job.title
        self.shared = job.backend or "" if job.shared else ""
        try:
            replies, failures, timed_out = self.exchange(job, time.monotonic() + timeout)
        except BaseException:  # Ctrl-C, a timer of the parent, a lost forkserver
            self.give_up("")
            raise
        self.waiting = set(range(self.size))
        self.state = "resetting"
        for channel in self.jobs:
            try:
                channel.send("reset")
            except Closed:
                pass  # dead, as its failure or ``settle`` tells
        for rank, reply in replies.items():
            if reply.failure is not None:
                failures[rank] = reply.failure
        if not failures:
            return [replies[rank] for rank in range(self.size)]
        if any(failure.kind != "skipped" for failure in failures.values()) or len(failures) < self.size:
            self.give_up("")
        title = f"{job.title} timed out after {timeout:g} s" if timed_out else job.title
        error = (WorldTimeout if timed_out else WorldError)(title, failures, self.size)
        error.replies = replies
        raise error

    def exchange(self, job: Job, deadline: float) -> tuple[dict[int, Reply], dict[int, Failure], bool]:
        """Sends the job and gathers replies, and failures of ranks that have none."""
        replies: dict[int, Reply] = {}
        failures: dict[int, Failure] = {}
        for channel in self.jobs:
            try:
                channel.send(job)
            except Closed:
                pass  # read below
        pending = dict(enumerate(self.jobs))
        watch = Watch(self)
        while pending:
            now = time.monotonic()
            # Somebody has finished: look at the others now and then.
            until = deadline if len(pending) == self.size else min(deadline, now + LOOK_EVERY)
            ready = wait_readable(pending.values(), max(0.0, until - now))
            for rank in [rank for rank, channel in pending.items() if channel in ready]:
                try:
                    self.jobs[rank].pump()
                    while rank in pending and self.jobs[rank].has_message():
                        message = self.jobs[rank].pop()
                        if isinstance(message, Reply) and message.serial == job.serial:
                            replies[rank] = message
                            del pending[rank]
                except Closed:
                    status = death(self.exit_code(rank))
                    failures[rank] = Failure("died", status)
                    del pending[rank]
            late = time.monotonic() >= deadline
            if pending and (late or (not ready and len(pending) < self.size)):
                broken = bool(failures) or any(reply.failure for reply in replies.values())
                stuck = watch.look(sorted(pending), AFTER_FAILURE if broken else AFTER_RETURN, late)
                if stuck:
                    return replies, {**failures, **stuck}, late and not broken
        return replies, failures, False

    def exit_code(self, rank: int) -> int | None:
        """How a rank has ended, if the forkserver says so within a second."""
        limit = time.monotonic() + 1.0
        while True:
            self.learn_pids()
            if self.pids and self.pids[rank] in self.server.exit_codes:
                return self.server.exit_codes[self.pids[rank]]
            left = limit - time.monotonic()
            if left <= 0 or not wait_readable([self.server.channel], left):
                return None
            self.server.listen()

    def look(self, ranks: Sequence[int]) -> dict[int, Where | None]:
        """Where ranks are: asked, or from faulthandler; None where neither says it."""
        asked = []
        for rank in ranks:
            try:
                self.probes[rank].send("where")
                asked.append(rank)
            except Closed:
                pass
        found: dict[int, Where | None] = {}
        limit = time.monotonic() + PROBE_LIMIT
        for rank in asked:
            try:
                found[rank] = self.probes[rank].receive(max(0.0, limit - time.monotonic()))
            except (TimeoutError, Closed):
                pass
        return {rank: found[rank] if rank in found else self.dumped(rank) for rank in ranks}

    def dumped(self, rank: int) -> Where | None:
        """What faulthandler writes where Python code does not get to run; None if even that cannot."""
        self.learn_pids()
        try:
            path = f"/proc/{self.pids[rank]}/fd/{self.dumps[rank]}"
            before = os.stat(path).st_size
            os.kill(self.pids[rank], DUMP_SIGNAL)
            time.sleep(0.05)
            with open(path, encoding="utf-8", errors="replace") as file:
                file.seek(before)
                return from_dump(file.read())
        except (OSError, IndexError):
            return None


class Watch:
    """Looks at ranks that have not answered, and decides when to wait no longer."""

    def __init__(self, world: WorldProcesses) -> None:
        self.world = world
        self.seen: dict[int, Where | None] = {}
        self.since = 0.0

    def look(self, ranks: list[int], patience: float, late: bool) -> dict[int, Failure]:
        """Failures of all ``ranks`` if they are given up, else nothing. late: give up, whatever they do."""
        seen = self.world.look(ranks)
        now = time.monotonic()
        if seen != self.seen:
            self.seen, self.since = seen, now
        blocked = all(each is not None and each.collective for each in seen.values())
        if late or (blocked and now - self.since >= patience):
            return {rank: self.verdict(each) for rank, each in seen.items()}
        return {}

    def verdict(self, seen: Where | None) -> Failure:
        """How a rank's place is told."""
        if seen is None:
            return Failure("waiting", "did not answer, and has no stack to show (stopped?)")
        return Failure("waiting", f"{'waited' if seen.collective else 'was'} {seen}", seen.stack)
