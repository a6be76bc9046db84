"""The ranks of a run: started with their environments by the process that keeps them, and how they have ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress

from validate_ddp.rehearse.parent import environment
from validate_ddp.rehearse.parent.keeping import Keeper
from validate_ddp.rehearse.plan import Plan

Output = Callable[[int | None], int | None]
"""For a rank, the descriptor of its standard output and error; None for those of this process."""


class Processes:
    """The started ranks. ``ranks`` maps a process id to its rank; None for the one process that spawns its own."""

    def __init__(self, plan: Plan, keeper: Keeper, single: bool, output: Output = lambda rank: None) -> None:
        self.keeper = keeper
        self.single = single
        self.ranks: dict[int, int | None] = {}
        self.told: set[int] = set()
        self.held = ExitStack()
        ports = environment.free_ports(self.held)
        shared = environment.base(plan, keeper.folder, keeper.run, ports)
        for rank in range(1) if single else plan.ranks or range(plan.world_size):
            extra = {} if single else environment.of_rank(plan, rank, ports[0])
            local = None if single else rank % plan.nproc_per_node
            screen = output(None if single else rank)
            try:
                pid = keeper.start(environment.command(plan, local), {**shared, **extra}, screen)
            finally:
                if screen is not None:
                    os.close(screen)
            self.ranks[pid] = None if single else rank

    def poll(self) -> list[tuple[int, int]]:
        """Processes that have ended since the last call, as (process id, exit code, negative for a signal)."""
        ended = [(pid, code) for pid, code in self.keeper.poll().items() if pid not in self.told]
        self.told.update(pid for pid, _ in ended)
        return ended

    @property
    def running(self) -> list[int]:
        """Process ids of the ranks that have not ended."""
        return [pid for pid in self.ranks if pid not in self.keeper.codes]

    def end(self, patiently: bool = False) -> None:
        """Ends every process of this run. patiently: with SIGTERM first, and a moment for it."""
        self.keeper.close(patiently)
        self.held.close()


def cpu_seconds(pid: int, started: bool = False) -> float | None:
    """CPU time that a process has used; None where the system does not say. started: with what it has started, for a
    rank that waits for its loader's workers moves as they do."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        own = sum(map(int, fields[11 : 15 if started else 13])) / os.sysconf("SC_CLK_TCK")
        return own + sum(cpu_seconds(each, True) or 0.0 for each in (_children(pid) if started else ()))
    except (OSError, ValueError):
        return None


def _children(pid: int) -> set[int]:
    """Processes that a process has started and that have not ended; of all its threads."""
    found = set[int]()
    with suppress(OSError):  # it has ended, or the kernel keeps no such lists
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
    return found
