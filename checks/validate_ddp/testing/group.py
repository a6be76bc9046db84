"""The process group of a rank: a fresh one for each job, made ahead of it where its kind can be guessed.

To make a group takes 1.5 ms, and to destroy one 20 ms of sleep, so both are done when the answer is out: the next job
finds a group that nobody has used, of the kind that the last one had. All ranks of a world have the same jobs, so they
guess alike.
"""

from __future__ import annotations

import gc
import importlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import context
from typing import Any
from urllib.parse import parse_qs, urlparse

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
        self.meetings = Meetings(port)
        start_without_store()

    def join(self, job: Job) -> None:
        """Has the group that the job asks for. Collective: every rank."""
        self.meetings.of(job.serial)
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

    def lacks(self, job: Job) -> str:
        """Why this machine cannot have the group; empty if it can. Local, and the same on every rank."""
        import torch
        import torch.distributed as dist

        if not job.backend or "nccl" not in job.backend:
            return ""
        if not dist.is_nccl_available():
            return "this torch has no NCCL"
        gpus = torch.cuda.device_count()
        return f"{self.size} ranks on nccl need as many GPUs, and there are {gpus}" if gpus < self.size else ""

    def make(self, backend: str, key: str) -> None:
        """Makes the default group over its own part of the store. Collective: every rank."""
        import torch.distributed as dist

        store = dist.PrefixStore(key, self.store)
        if "nccl" in backend:
            importlib.import_module("torch").cuda.set_device(self.rank)
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


class Meetings:
    """How ranks find each other when a test calls ``init_process_group`` with an address, or with the environment's.

    Always at our store, and each time under another name. As under torchrun, torch takes it that a store listens at
    any address already, so that nobody would at one that the test has chosen; and what a destroyed group has left in
    a store is read by the first rank that makes another one there.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.serial = 0
        self.times: Counter[str] = Counter()
        handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
        self.by_torch = {scheme: handlers[scheme] for scheme in ("tcp", "env")}
        handlers.update(tcp=self.tcp, env=self.env)

    def of(self, serial: int) -> None:
        """Another job begins."""
        self.serial = serial
        self.times.clear()

    def name(self, address: str) -> str:
        """What the next meeting at an address is called, on every rank that comes to it."""
        self.times[address] += 1
        return f"job{self.serial}/{address}/{self.times[address]}"

    def tcp(
        self, url: str, timeout: timedelta = timedelta(minutes=30), **options: Any
    ) -> Iterator[tuple[Any, int, int]]:
        """``tcp://host:port?rank=0&world_size=2``."""
        import torch.distributed as dist

        where = urlparse(url)
        said = parse_qs(where.query)
        if where.port is None or not {"rank", "world_size"} <= said.keys():
            yield from self.by_torch["tcp"](url, timeout=timeout, **options)  # which says what is missing
            return
        store = dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=timeout)
        rank, size = (int(said[name][0]) for name in ("rank", "world_size"))
        yield dist.PrefixStore(self.name(f"tcp {where.port}"), store), rank, size

    def env(self, url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
        """``env://``, or no address at all."""
        import torch.distributed as dist

        said = os.environ.get("MASTER_PORT")
        if said is None or "MASTER_ADDR" not in os.environ:
            yield from self.by_torch["env"](url, **options)  # which says what is missing
            return
        with variables(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port), **{AGENT_STORE: "True"}):
            store, rank, size = next(iter(self.by_torch["env"](url, **options)))
        yield dist.PrefixStore(self.name(f"env {said}"), store), rank, size


AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable by which torch takes it that a store listens already."""


def start_without_store() -> None:
    """What a rank starts by multiprocessing lacks ``Meetings``: torch has to listen itself where it is to meet."""
    for each in (context.SpawnProcess, context.ForkServerProcess):
        each._Popen = staticmethod(_without_store(each._Popen))  # type: ignore[method-assign]


def _without_store(start: Any) -> Any:
    def started(process: Any) -> Any:
        with variables(**{AGENT_STORE: None}):
            return start(process)

    return started


@contextmanager
def variables(**wanted: str | None) -> Iterator[None]:
    """Variables of the environment are set meanwhile, or, with None, are not there."""
    kept = {name: os.environ.get(name) for name in wanted}
    set_variables(wanted)
    try:
        yield
    finally:
        set_variables(kept)


def set_variables(wanted: Mapping[str, str | None]) -> None:
    """Sets variables of the environment; None removes one."""
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def group_settings() -> list[tuple[str, str]]:
    """The variables of the environment that a group is made by."""
    return sorted(item for item in os.environ.items() if item[0].startswith(_READ_BY_GROUPS))


_READ_BY_GROUPS = ("GLOO_", "NCCL_", "C10D_", "TORCH_", "UCC_", "MPI")
