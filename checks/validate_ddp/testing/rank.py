"""A rank: a process that runs one job after another, each in its own process group, and resets itself in between."""

from __future__ import annotations

import io
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO
from unittest import SkipTest

from . import held
from .capture import HEAD, TAIL, Files, Stream, empty, flush, shortened, text_file
from .group import AGENT_STORE, Group
from .outcome import SHARED, Failure, Idle, Job, Reply, Warned
from .stacks import answer_probes, dump_into, place_of
from .state import Baseline
from .transport import Channel, Closed

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class RankWorld:
    """What a test sees as ``world``: the rank that it runs on."""

    def __init__(self, rank: int, size: int, log: TextIO) -> None:
        self.rank = rank
        self.size = size
        self._log = log

    @property
    def group(self) -> ProcessGroup:
        """The default process group."""
        import torch.distributed as dist

        group: ProcessGroup = dist.group.WORLD
        return group

    def scattered(self, whole: Tensor) -> Tensor:
        """This rank's part of a tensor that every rank has whole, cut evenly along the first dimension. Local."""
        import torch

        part: Tensor = torch.tensor_split(whole, self.size)[self.rank].clone()
        return part

    def mesh(self, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> DeviceMesh:
        """Ranks in a grid: ``world.mesh((2, 2), ("dp", "tp"))["tp"].get_group()``. Collective: every rank."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device.type, shape, mesh_dim_names=names)

    @property
    def device(self) -> torch.device:
        """Where the group's tensors are: this rank's GPU under ``--world-backend nccl``, else the CPU."""
        import torch
        import torch.distributed as dist

        gpu = dist.is_initialized() and "nccl" in dist.get_backend()
        return torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")

    def barrier(self) -> None:
        """Collective: every rank."""
        import torch.distributed as dist

        dist.barrier()

    def __repr__(self) -> str:
        # Without the rank: tracebacks show it, and equal ones are folded.
        return f"<world of {self.size}>"


_current: RankWorld | None = None


def current_world() -> RankWorld:
    """The world of the rank that asks. Raises ``RuntimeError`` outside of one."""
    if _current is None:
        raise RuntimeError("there is no world in this process: only the function that runs on the ranks has one")
    return _current


class Rank:
    """The process's whole life."""

    def __init__(self, rank: int, size: int, port: int, jobs: Channel, probe: Channel, files: Files) -> None:
        global _current
        self.rank, self.jobs, self.files = rank, jobs, files
        self.world = _current = RankWorld(rank, size, text_file(files.log))
        self.group = Group(rank, size, port)
        dump_into(files.stacks)
        answer_probes(probe)
        self.baseline = Baseline(launch_environment(rank, size, port))
        self.streams = [Stream(1, files.stdout), Stream(2, files.stderr)]
        self.coverage = Coverage()

    def serve(self, name: str) -> None:
        """The loop. Ends the process. name: of the world, the same for all its ranks and for no other world."""
        # The first group of a process takes ten times as long as later ones: it is made before there is a job.
        dirty = self.group.make_ahead("gloo", name)
        serial = 0
        try:
            while True:
                self.jobs.send(Idle(serial, dirty))
                job = self.jobs.receive()
                if job is None:
                    break
                serial = job.serial
                self.jobs.send(self.run(job))
                # Not before all have replied: a group that one rank destroys fails for those that still connect.
                self.jobs.receive()
                dirty = self.reset(job)
        except Closed:
            os._exit(0)
        self.coverage.save()
        flush()
        # Not sys.exit: to tear down an interpreter that holds all of torch takes a second.
        os._exit(0)

    def run(self, job: Job) -> Reply:
        """Carries out one job."""
        for stream in self.streams:
            stream.start(job.capture)
        empty(self.files.log)
        self.baseline.take_over(job.context)
        # Two lists: a test may replace ``sys.stdout``, and the warnings module's hook.
        sections: list[tuple[str, str]] = []
        caught: list[Any] = []
        value, failure = b"", None
        try:
            self.baseline.name_job(job.serial, job.title if job.is_test else "")
            if self.coverage.start():
                self.baseline.keep()
            with warnings.catch_warnings(record=True) as caught:
                self.baseline.apply_filters()
                lacking = self.group.lacks(job)
                if lacking:
                    raise SkipTest(lacking)
                self.group.join(job)
                result = call_user(job.payload, self.world, sections)
                value = pickled_result(result)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this rank's answer
            failure = self.describe(error, job)
        flush()
        for stream, name in zip(self.streams, ("stdout", "stderr"), strict=True):
            text = stream.stop()
            if text:
                sections.append((name, text))
        return Reply(job.serial, failure, value, tuple(sections), tuple(warned(each) for each in caught))

    def reset(self, job: Job) -> str:
        """Makes ready for the next job; why this process should not have one, else an empty string."""
        if job.isolation != SHARED:
            self.group.leave()
        dirty = self.baseline.reset()
        return dirty or self.group.prepare(job)

    def describe(self, error: BaseException, job: Job) -> Failure:
        """The answer for an exception."""
        if "_pytest.outcomes" in sys.modules:
            from .rank_pytest import describe

            return describe(error, is_test=job.is_test)
        return plain_failure(error)


def launch_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """As torchrun makes it, so that ``init_process_group()`` and launchers work in the function."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The store is a process of its own, for all tests: the "attempt" (``Baseline.name_job``) parts their keys.
        AGENT_STORE: "True",
    }


def call_user(payload: bytes, world: RankWorld, sections: list[tuple[str, str]]) -> Any:
    """Unpickles a step and calls ``step(the rest, world, sections)``. Stacks are shown from here on."""
    steps = pickle.Unpickler(io.BytesIO(payload))  # noqa: S301 - from our parent
    step: Callable[..., Any] = steps.load()
    return step(steps, world, sections)


def pickled_result(result: object) -> bytes:
    """The result for the parent; empty for None."""
    if result is None:
        return b""
    try:
        return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - classes of users may fail in any way
        kind = type(result).__name__
        raise TypeError(f"the result (a {kind}) cannot travel to the parent: {error}; return plain data") from None


LINE = 1_000
"""Characters of an exception's first line that a headline shows."""


def plain_failure(error: BaseException, text: str = "", rendered: bytes | None = None) -> Failure:
    """An exception as an answer, with its traceback from the user's function on."""
    if not text:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(os.path.dirname(__file__) + os.sep):
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    name = type(error).__name__
    try:
        said = str(error).strip().splitlines()
    except Exception as failed:  # noqa: BLE001 - classes of users may fail in any way
        said = [f"its text cannot be made ({type(failed).__name__})"]
    summary = f"raised {name}" + (f": {said[0][:LINE]}" if said else "")
    if len(text) > HEAD + TAIL:
        text, rendered = shortened(text), None
    return Failure("exception", summary, text, rendered, travelling(error), place_of(error))


def travelling(error: BaseException) -> bytes | None:
    """The exception, pickled, if it comes out again as it was."""
    try:
        data = pickle.dumps(error)
        return data if type(pickle.loads(data)) is type(error) else None  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - classes of users may fail in any way; then it stays here
        return None


def warned(caught: warnings.WarningMessage) -> Warned:
    """A warning, ready to travel."""
    category = f"{caught.category.__module__}:{caught.category.__qualname__}"
    return Warned(str(caught.message), category, caught.filename, caught.lineno)


class Coverage:
    """Measures this rank as the parent is measured, which says so in the environment."""

    def __init__(self) -> None:
        self.running: Any = None

    def start(self) -> bool:
        """Starts, once; whether it has now."""
        settings = os.environ.pop("VALIDATE_DDP_COVERAGE", "")
        if not settings or self.running is not None:
            return False
        import json

        import coverage  # type: ignore[import-not-found, unused-ignore]

        options = json.loads(settings)
        # Where coverage itself measures what is started (`patch = subprocess`), this process is measured already.
        self.running = coverage.Coverage.current()
        if self.running is None:
            self.running = coverage.Coverage(data_suffix=True, **options)
            self.running.start()
        return True

    def save(self) -> None:
        """Writes the data beside the parent's."""
        if self.running is not None:
            self.running.stop()
            self.running.save()


def call_function(steps: pickle.Unpickler, world: RankWorld, sections: list[tuple[str, str]]) -> Any:
    """The step of ``World.run``: a function with its arguments."""
    main = steps.load()
    with held.following():
        if main and getattr(sys.modules.get("__mp_main__"), "__file__", None) != main:
            # Under the name that multiprocessing gives it, so that the same guard keeps a script from starting again.
            from multiprocessing import spawn

            sys.modules.pop("__mp_main__", None)  # multiprocessing gives it to the rank's own, when it is imported
            with held.noted(["__mp_main__"]):
                spawn._fixup_main_from_path(main)  # type: ignore[attr-defined]
        function, args, kwargs = steps.load()
    if getattr(function, "__module__", None) in sys.modules:
        held.imported(function.__module__)
    if "world" not in kwargs and takes_world(function):
        kwargs["world"] = world
    return function(*args, **kwargs)


def takes_world(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter called ``world``."""
    import inspect

    try:
        return "world" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
