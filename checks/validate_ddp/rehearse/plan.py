"""What is to be rehearsed: the script and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """One rehearsal.

    script: ``("train.py",)`` or ``("-m", "package.train")``. arguments: the script's own.
    launcher: "env" starts every rank as torchrun does, "slurm" as srun does, "single" one process that spawns its
    ranks, "auto" turns from the first to the third when a rank is seen to spawn. max_steps: batches of each iteration
    of a loader; stop_after: optimizer steps after which the run is ended. timeout, hang: seconds. environment: pairs
    for every rank. said: what the command itself has changed, to be told. ranks: those that are started, where not all
    are, each as if of so many. link: what a rank can send, as of ``links.Links``.
    """

    script: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    nproc_per_node: int = 2
    nnodes: int = 1
    launcher: str = "auto"
    max_steps: int | None = None
    stop_after: int | None = None
    timeout: float = 600.0
    hang: float = 60.0
    environment: tuple[tuple[str, str], ...] = ()
    shim: bool = True
    said: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    link: tuple[tuple[str, float], ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nproc_per_node * self.nnodes

    @property
    def shown(self) -> str:
        """The script as people write it."""
        return " ".join(self.script)
