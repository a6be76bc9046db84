"""Worlds that are kept and handed out, and the public ``World``."""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .outcome import GROUP, ISOLATIONS, PROCESS, Job, Reply, WorldError
from .payload import Payload
from .server import START_LIMIT, Forkserver, ForkserverError, ForkserverLost
from .state import ModuleHome, ParentContext
from .transport import wait_readable
from .worlds import WorldProcesses

TIMEOUT = 30.0
"""Seconds for a function on the ranks, where nothing else is said."""
LIVE_RANKS = 16
"""Eight pairs: while one works, seven sleep through the 20 ms of ``destroy_process_group``. More does not help."""


class Pool:
    """Worlds of all sizes over one forkserver. Not thread-safe. Starts with its first use, or with ``start``."""

    def __init__(self, *, live_ranks: int = LIVE_RANKS, pytest_options: dict[str, Any] | None = None) -> None:
        self.live_ranks = live_ranks
        self.pytest_options = pytest_options
        self.server: Forkserver | None = None
        self.worlds: list[WorldProcesses] = []
        self.numbers = itertools.count(1)
        self.serials = itertools.count(1)
        self.context = ParentContext()
        self.modules: dict[str, ModuleHome] = {}
        self.lost: list[str] = []
        """Worlds that died between two tests, and why: no test failed by it, but somebody should know."""
        self.owner = os.getpid()

    def start(self) -> None:
        """Starts the forkserver without waiting for it: torch is imported while the caller does other things."""
        if self.server is None:
            self.server = Forkserver(self.pytest_options)

    def wait_until_ready(self) -> None:
        """Waits for the import of torch. Where it fails, the first ``run`` says why."""
        self.start()
        assert self.server is not None
        try:
            self.server.wait_until_ready()
        except ForkserverError:
            pass

    def run(
        self,
        payload: bytes,
        title: str,
        size: int,
        *,
        backend: str | None = "gloo",
        isolation: str = GROUP,
        timeout: float | None = None,
        capture: bool = False,
        is_test: bool = False,
        reuse: bool = False,
    ) -> list[Reply]:
        """Runs a pickled step on every rank of a world; raises ``WorldError`` or ``ForkserverError``.

        reuse: of a world in which every rank has raised, for callers that fail a hundred times on purpose.
        """
        check(size, isolation)
        serial = next(self.serials)
        found = self.context.now(self.modules)
        try:
            world = self.idle_world(size, backend or "", isolation)
            changed = b"" if world.context == found else found
            world.context = found
            job = Job(serial, title, payload, changed, backend, isolation, capture, is_test)
            try:
                return world.run(job, TIMEOUT if timeout is None else timeout, reuse)
            finally:
                self.after(world, isolation)
        except ForkserverError:
            self.discard()
            raise

    def idle_world(self, size: int, backend: str, isolation: str) -> WorldProcesses:
        """An idle world; of another forkserver where one was killed while no job ran: the next one is not to blame."""
        try:
            return self.acquire(size, backend, isolation)
        except ForkserverLost as error:
            self.discard()
            self.lost.append(str(error))
            return self.acquire(size, backend, isolation)

    def after(self, world: WorldProcesses, isolation: str) -> None:
        """Forgets a world that is not used again; its successor is forked while the caller looks at the answer."""
        if isolation == PROCESS and world.state != "dead":
            world.dismiss()
        if world.state == "dead":
            self.worlds.remove(world)
            if isolation != PROCESS and not any(other.size == world.size for other in self.worlds):
                self.fork(world.size)

    def acquire(self, size: int, backend: str, isolation: str) -> WorldProcesses:
        """An idle world, forked if need be; one with the right group, if there is."""
        self.start()
        assert self.server is not None
        self.server.wait_until_ready()
        limit = time.monotonic() + START_LIMIT
        asked: WorldProcesses | None = None
        while True:
            self.listen()
            idle = [world for world in self.worlds if world.size == size and world.state == "idle"]
            if isolation == PROCESS:
                idle = [world for world in idle if world is asked]
            if idle:
                # A wrong group must be destroyed first, which takes 20 ms.
                order = {(isolation, backend): 0, ("", ""): 1}
                return min(idle, key=lambda world: order.get(world.group, 2))
            if asked is None or asked.state == "dead":
                starting = any(world.state == "starting" and world.size == size for world in self.worlds)
                if isolation == PROCESS or not starting:
                    asked = self.fork(size, always=isolation == PROCESS)
            coming = [world for world in self.worlds if world.state in ("starting", "resetting")]
            channels = [world.jobs[rank] for world in coming for rank in world.waiting]
            left = limit - time.monotonic()
            if left <= 0:
                raise ForkserverError(f"no world of {size} was ready within {START_LIMIT:.0f} s")
            wait_readable([self.server.channel, *channels], min(left, 1.0))

    def fork(self, size: int, always: bool = False) -> WorldProcesses | None:
        """Asks for one more world, if there may be one (always: though there are enough)."""
        assert self.server is not None
        same = sum(world.size == size for world in self.worlds)
        for world in list(self.worlds):
            live = sum(world.size for world in self.worlds)
            if live + size <= self.live_ranks:
                break
            # The least recently used of another size makes room.
            if world.size != size and world.state == "idle":
                world.dismiss()
                self.worlds.remove(world)
        live = sum(world.size for world in self.worlds)
        if same and live + size > self.live_ranks and not always:
            return None
        world = WorldProcesses(next(self.numbers), size, self.server)
        self.worlds.append(world)
        return world

    def listen(self) -> None:
        """Takes in all that has been said."""
        assert self.server is not None
        while True:
            said_by = {channel: (world, rank) for world in self.worlds for rank, channel in enumerate(world.jobs)}
            ready = wait_readable([self.server.channel, *said_by], 0)
            for channel in ready:
                if channel is self.server.channel:
                    self.server.listen()
                else:
                    world, rank = said_by[channel]
                    world.take(rank)
            for world in list(self.worlds):
                world.check_progress()
                if world.state == "dead":
                    self.worlds.remove(world)
                    if world.why_dead:
                        self.lost.append(world.why_dead)
            if not ready:
                return

    def discard(self) -> None:
        """Forgets a forkserver that is no more, and its worlds."""
        for world in self.worlds:
            world.give_up("")
        self.worlds.clear()
        if self.server is not None:
            self.server.close(0)
            self.server = None

    def close(self) -> None:
        """Ends all processes; nothing is left."""
        if os.getpid() != self.owner or self.server is None:
            return
        for world in self.worlds:
            if world.state in ("idle", "resetting", "starting"):
                world.dismiss()
            else:
                world.give_up("")
        self.worlds.clear()
        self.server.close()
        self.server = None


class World:
    """Functions on ``size`` ranks of this machine, without pytest.

        with World(2) as w:
            results = w.run(function, argument)    # one result a rank

    A function with a parameter called ``world`` gets the rank's ``RankWorld``. Functions, arguments and results travel
    pickled, lambdas as their code; a script that makes a world has a main guard.
    """

    def __init__(
        self,
        size: int,
        *,
        backend: str | None = "gloo",
        isolation: str = GROUP,
        timeout: float = TIMEOUT,
        pool: Pool | None = None,
    ) -> None:
        check(size, isolation)
        self.size, self.backend, self.isolation, self.timeout = size, backend, isolation, timeout
        self._owns = pool is None
        self.pool = pool or Pool()

    def __enter__(self) -> World:
        self.pool.start()
        return self

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Runs the function on every rank; its results by rank. Raises ``WorldError``, ``WorldTimeout``."""
        return run_function(self.pool, function, args, kwargs, self.size, self.backend, self.isolation, self.timeout)

    def close(self) -> None:
        """Ends the processes."""
        if self._owns:
            self.pool.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()


def run_function(
    pool: Pool,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: int,
    backend: str | None,
    isolation: str,
    timeout: float | None,
    capture: bool = False,
) -> list[Any]:
    """The results of a function by rank."""
    name = getattr(function, "__qualname__", repr(function))
    payload = pickled_call(function, args, kwargs)
    replies: list[Reply] = []
    try:
        replies = pool.run(payload, name, size, backend=backend, isolation=isolation, timeout=timeout, capture=capture)
    except WorldError as error:
        replies = [error.replies[rank] for rank in sorted(error.replies)]
        raise
    finally:
        for rank, reply in enumerate(replies):
            for stream, text in reply.sections:
                lines = "".join(f"[rank {rank}] {line}\n" for line in text.splitlines())
                print(lines, end="", file=sys.stdout if stream == "stdout" else sys.stderr)
    return [pickle.loads(reply.value) if reply.value else None for reply in replies]  # noqa: S301 - of our own ranks


def pickled_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The payload of a job that calls a function."""
    from .rank import call_function

    main = ""
    if getattr(function, "__module__", "") == "__main__":
        main = getattr(sys.modules["__main__"], "__file__", None) or ""
        if not main:
            raise TypeError("a function of an interactive session cannot travel to the ranks: put it into a module")
        main = os.path.abspath(main)
    # One pickler, as one unpickler reads it all: each counts what the parts refer to.
    stream = Payload()
    try:
        for part in (call_function, main, (function, args, kwargs)):
            stream.dump(part)
        return stream.bytes()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"`{name}` and its arguments cannot travel to the ranks: {error}") from None


def check(size: int, isolation: str) -> None:
    """Refuses what cannot be."""
    if size < 1:
        raise ValueError(f"a world has a size of at least 1, not {size!r}")
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation is one of {', '.join(ISOLATIONS)}, not {isolation!r}")


__all__ = ["Pool", "World", "WorldError"]
