"""The ranks meet, each on a device of its own, and agree; what cannot be is refused in one line, by all at once."""

from __future__ import annotations

import difflib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import resources
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .config import ConfigError, DistConfig
from .core.collectives import broadcast_object, gather_objects
from .launch import Launch, LaunchError, World

T = TypeVar("T")
_starts = itertools.count()  # Groups started by this process; all ranks have the same number.


def start(launch: Launch, wanted: str, config: DistConfig) -> tuple[torch.device, dist.ProcessGroup | None]:
    """This rank's device, and the default group over all ranks, none for one. ``LaunchError``. Collective.

    wanted: "auto", "cpu" or "cuda".
    """
    if launch.world_size == 1:
        return pin_device(launch, wanted, config.backend), None
    if dist.is_initialized():
        raise LaunchError("torch.distributed is initialised already; adopt its group with World.current()")
    timeout, hosts = timedelta(seconds=config.start_timeout), launch.rank == 0 and not launch.store_hosted
    host, port = launch.master_addr or "127.0.0.1", launch.master_port or 29500
    try:
        server = dist.TCPStore(host, port, launch.world_size, hosts, timeout, wait_for_workers=False)
        # A store of the launcher outlives our group: what an earlier one has left there must not be read.
        store = dist.PrefixStore(f"reference_trainer/{launch.attempt}/{next(_starts)}", server)
        device = pin_together(launch, wanted, config.backend, store)
        backend = config.backend if config.backend != "auto" else ("nccl" if device.type == "cuda" else "gloo")
        for line in suspects(os.environ, backend) if launch.local_rank == 0 else ():  # environments are a machine's
            print(f"reference-trainer: warning: {line}", file=sys.stderr, flush=True)
        own: dict[str, Any] = {"rank": launch.rank, "world_size": launch.world_size, "timeout": timeout}
        own["device_id"] = device if backend == "nccl" else None
        dist.init_process_group(backend, store=store, **own)
    except LaunchError:
        raise
    except (RuntimeError, ValueError) as error:
        first = " ".join((str(error).strip().splitlines() or [type(error).__name__])[0].split())
        raise LaunchError(
            f"rank {launch.rank} of {launch.world_size}: the ranks did not meet at {host}:{port} within "
            f"{config.start_timeout:g} s (dist.start_timeout): {first}; check MASTER_ADDR and MASTER_PORT, whether all "
            "ranks run, and name the network in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME where there are several"
        ) from error
    _end_at_once_when_failed()
    return device, dist.group.WORLD


def _end_at_once_when_failed() -> None:
    """Ends the process behind the traceback of what nobody has caught: to take the group apart, as the interpreter does
    at its end, can wait for peers that sit in a collective, and the launcher would not learn of it."""
    told = sys.excepthook

    def tell_and_end(*error: Any) -> None:
        told(*error)
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = tell_and_end


def pin_device(launch: Launch, wanted: str, backend: str = "auto") -> torch.device:
    """This rank's device, by its rank on this machine, made the current one. ``LaunchError``. Local."""
    visible = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if visible == 0 and wanted == "cuda":
        raise LaunchError("device is cuda, but torch sees no GPU; say --device cpu, or look at nvidia-smi")
    if visible == 0 and backend == "nccl":
        raise LaunchError("dist.backend is nccl, which needs a GPU for each rank; say --dist.backend gloo")
    if visible == 0:
        return torch.device("cpu")
    own = launch.launcher == "slurm" and visible == 1  # a task that was given one GPU of its own sees it as 0
    if not own and max(launch.local_world_size, launch.local_rank + 1) > visible:
        told = f"{launch.local_world_size} ranks on this machine, but torch sees {visible} GPU{'s' * (visible > 1)}"
        raise LaunchError(f"{told}; start one rank for each GPU, or say --device cpu")
    index = 0 if own else launch.local_rank
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def pin_together(launch: Launch, wanted: str, backend: str, store: dist.Store) -> torch.device:
    """This rank's device; where one rank has none, or another kind, all are refused. Collective: every rank."""
    ranks, problem, device = range(launch.world_size), "", torch.device("cpu")
    keys = [f"device of {rank}" for rank in ranks]
    try:
        device = pin_device(launch, wanted, backend)
        store.set(keys[launch.rank], device.type)
        said = [store.get(key).decode() for key in keys]  # it waits for each
        if wrong := [f"rank {rank}: {each}" for rank, each in enumerate(said) if each not in ("cpu", "cuda")]:
            problem = wrong[0]
        elif len(set(said)) > 1:
            problem = f"ranks have different devices, {', '.join(said)} by rank; say --device cpu"
    except LaunchError as error:
        problem = str(error)
        store.set(keys[launch.rank], problem)
    if problem:
        store.set(f"read by {launch.rank}", "")
        if launch.rank == 0 and not launch.store_hosted:  # the store is in this process: the others are to read it
            with suppress(RuntimeError):
                store.wait([f"read by {rank}" for rank in ranks], timedelta(seconds=5))
        raise LaunchError(problem)
    return device


def apart(world: World, timeout: float) -> World:
    """The same ranks in a group of their own, on the CPU: what is sent there neither meets what training sends, nor
    waits for a device. timeout: seconds. Collective: every rank."""
    if world.group is None:
        return world
    group = dist.new_group(dist.get_process_group_ranks(world.group), timedelta(seconds=timeout), backend="gloo")
    return World(world.rank, world.local_rank, world.size, group=group)


@contextmanager
def alike(world: World, kind: type[ConfigError] = ConfigError) -> Iterator[None]:
    """Raises ``kind`` on every rank if what is within raises it on one, with the first one's line. Collective."""
    problem = ""
    try:
        yield
    except kind as error:
        problem = str(error)
    problems = gather_objects(problem, world.group)
    rank = next((rank for rank, each in enumerate(problems) if each), None)
    if rank is not None:
        raise kind(f"rank {rank}: {problems[rank]}" if rank > 0 else problems[rank])


def from_rank_zero(make: Callable[[], T], world: World, kind: type[ConfigError] = ConfigError) -> T:
    """What ``make`` returns on rank zero, on every rank; its ``kind`` of error is raised on all. Collective."""
    made: list[T] = []
    with alike(world, kind):
        if world.is_main:
            made.append(make())
    return broadcast_object(made, world.group)[0]


def nccl_names(section: str) -> tuple[str, ...]:
    """The names of a section of nccl_variables.txt, with the prefix that it is called after. Local."""
    text = resources.files(__package__).joinpath("nccl_variables.txt").read_text(encoding="utf-8")
    lines = text.partition(f"[{section}]\n")[2].partition("\n[")[0].splitlines()
    prefix = section if section == "TORCH_NCCL" else "NCCL"
    return tuple(f"{prefix}_{name}" for line in lines if not line.startswith("#") for name in line.split())


def suspects(environ: Mapping[str, str], backend: str) -> Iterator[str]:
    """A line for each variable of NCCL's that will not do what was meant by it. backend: "nccl" or "gloo". Local."""
    known, idle = {*nccl_names("NCCL"), *nccl_names("TORCH_NCCL")}, []
    for name in sorted(each for each in environ if each.startswith(("NCCL_", "TORCH_NCCL_"))):
        if name in nccl_names("IGNORED") or name.startswith(nccl_names("PLUGINS")):
            continue
        if name in nccl_names("RENAMED"):
            yield f"{name} is called TORCH_{name} since torch 2.2; set that one"
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            yield f"{name} is no variable that NCCL or torch reads" + (f"; did you mean {near[0]}?" if near else "")
        elif backend != "nccl" and name != "TORCH_NCCL_ASYNC_ERROR_HANDLING":  # torchrun sets that for every rank
            idle.append(name)
    if idle:
        yield f"{', '.join(idle)}: without effect, for the backend is {backend}"
