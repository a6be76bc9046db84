"""The process group of a rank: a fresh one for each job, made ahead of it where its kind can be guessed.

To make a group takes 1.5 ms, and to destroy one 20 ms of sleep, so both are done when the answer is out: the next job
finds a group that nobody has used, of the kind that the last one had. All ranks of a world have the same jobs, so they
guess alike.
"""

from __future__ import annotations

import gc
import os
import time
from datetime import timedelta

from .outcome import GROUP, SHARED, Job

AHEAD, USED = "ahead", "used"


class Group:
    """What group there is. kind: "" for none, ``AHEAD`` (nobody has used it), ``USED``, ``SHARED`` (it stays)."""

    def __init__(self, rank: int, size: int, port: int) -> None:
        import torch.distributed as dist

        self.rank, self.size = rank, size
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(minutes=30))
        self.kind = self.backend = ""
        self.settings: list[tuple[str, str]] = []

    def join(self, job: Job) -> None:
        """Has the group that the job asks for. Collective: every rank."""
        if self.kind and not self.serves(job):
            self.leave()
        if job.backend and not self.kind:
            self.make(job.backend, f"job{job.serial}")
        if self.kind:
            self.kind = SHARED if job.isolation == SHARED else USED

    def serves(self, job: Job) -> bool:
        """Whether the group that there is can be the job's."""
        import torch.distributed as dist

        if self.backend != job.backend or not dist.is_initialized():
            return False
        if self.kind == SHARED:
            return job.isolation == SHARED
        # Made ahead, then. The environment travels only when it has changed.
        return not job.context or self.settings == group_settings()

    def make(self, backend: str, key: str) -> None:
        """Makes the default group over its own part of the store. Collective: every rank."""
        import torch.distributed as dist

        store = dist.PrefixStore(key, self.store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size)
        self.kind, self.backend = USED, backend

    def leave(self) -> None:
        """Destroys the group, also one that the job has made itself. Local."""
        import torch.distributed as dist

        self.kind = self.backend = ""
        if dist.is_initialized():
            # A DDP model that is freed after its group aborts or hangs now and then (torch 2.13, gloo): free it first.
            gc.collect()
            # gloo's threads let go of a job's last tensors with the GIL, which torch 2.4 holds while it waits for them.
            time.sleep(0.001)
            dist.destroy_process_group()

    def prepare(self, job: Job) -> str:
        """Makes the group for a next job like this one; why that failed, else an empty string. Collective."""
        if job.isolation != GROUP or not job.backend:
            return ""
        return self.make_ahead(job.backend, f"after{job.serial}")

    def make_ahead(self, backend: str, key: str) -> str:
        """Makes a group that no job has asked for yet; why that failed, else an empty string. Collective."""
        try:
            self.make(backend, key)
        except Exception as error:  # noqa: BLE001 - told; the world is replaced, and with it every rank's group
            return f"no new process group could be made: {error}"
        self.kind, self.settings = AHEAD, group_settings()
        return ""


def group_settings() -> list[tuple[str, str]]:
    """The variables of the environment that a group is made by."""
    return sorted(item for item in os.environ.items() if item[0].startswith(_READ_BY_GROUPS))


_READ_BY_GROUPS = ("GLOO_", "NCCL_", "C10D_", "TORCH_", "UCC_", "MPI")
