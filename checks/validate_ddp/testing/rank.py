"""A rank: a process that runs one job after another, each in its own process group, and resets itself in between."""

from __future__ import annotations

import gc
import io
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .outcome import Failure, Idle, Job, Reply, Warned
from .stacks import answer_probes, open_dump, place_of
from .state import Baseline
from .transport import Channel, Closed

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class RankWorld:
    """What a test sees as ``world``: the rank that it runs on."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

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

    def __init__(self, rank: int, size: int, port: int, jobs: Channel, probe: Channel) -> None:
        global _current
        from datetime import timedelta

        import torch.distributed as dist

        self.rank, self.size, self.port = rank, size, port
        self.jobs = jobs
        self.world = _current = RankWorld(rank, size)
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(minutes=30))
        self.dump = open_dump()
        answer_probes(probe)
        self.baseline = Baseline()
        self.streams = [Stream(1), Stream(2)]
        self.shared = ""
        """The backend of the group that stays, where one does."""
        self.coverage = Coverage()

    def serve(self) -> None:
        """The loop. Ends the process."""
        dirty = ""
        serial = 0
        try:
            while True:
                self.jobs.send(Idle(serial, dirty, self.dump))
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
        self.baseline.take_over(job.context)
        # Two lists: a test may replace ``sys.stdout``, and the warnings module's hook.
        sections: list[tuple[str, str]] = []
        caught: list[Any] = []
        value, failure = b"", None
        try:
            self.make_environment(job)
            self.coverage.start()
            with warnings.catch_warnings(record=True) as caught:
                self.baseline.apply_filters()
                self.join(job)
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

    def make_environment(self, job: Job) -> None:
        """As torchrun does it, so that ``init_process_group()`` and launchers work in the function."""
        os.environ.update(
            RANK=str(self.rank),
            LOCAL_RANK=str(self.rank),
            GROUP_RANK="0",
            WORLD_SIZE=str(self.size),
            LOCAL_WORLD_SIZE=str(self.size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self.port),
            # The store is a process of its own, and is used for all tests: the "attempt" keeps their keys apart.
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCHELASTIC_RESTART_COUNT=str(job.serial),
        )
        if job.is_test:
            os.environ["PYTEST_CURRENT_TEST"] = f"{job.title} (call)"

    def join(self, job: Job) -> None:
        """Makes the process group that the job asks for. Collective: every rank."""
        import torch.distributed as dist

        if self.shared:
            if job.shared and self.shared == job.backend:
                return
            self.leave()
        if job.backend is not None:
            store = dist.PrefixStore(f"job{job.serial}", self.store)
            dist.init_process_group(job.backend, store=store, rank=self.rank, world_size=self.size)
        self.shared = job.backend if job.shared and job.backend else ""

    def leave(self) -> None:
        """Destroys the group. Local."""
        import torch.distributed as dist

        self.shared = ""
        if dist.is_initialized():
            # A DDP model that is freed after its group aborts or hangs now and then (torch 2.13, gloo): free it first.
            gc.collect()
            dist.destroy_process_group()

    def reset(self, job: Job) -> str:
        """Makes ready for the next job; why this process should not have one, else an empty string."""
        if not job.shared:
            self.leave()
        return self.baseline.reset()

    def describe(self, error: BaseException, job: Job) -> Failure:
        """The answer for an exception."""
        if "_pytest.outcomes" in sys.modules:
            from .rank_pytest import describe

            return describe(error, is_test=job.is_test)
        return plain_failure(error)


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


def plain_failure(error: BaseException, text: str = "", rendered: bytes | None = None) -> Failure:
    """An exception as an answer, with its traceback from the user's function on."""
    if not text:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(os.path.dirname(__file__) + os.sep):
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    name = type(error).__name__
    said = str(error).strip().splitlines()
    summary = f"raised {name}" + (f": {said[0]}" if said else "")
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


def flush() -> None:
    """Python's buffers, whatever the test has put in their place."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except (ValueError, OSError):  # closed by the test
            pass


class Stream:
    """Standard output or error of a rank, into memory while a test is captured; also what C++ writes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.original = os.dup(descriptor)
        self.memory = os.memfd_create("capture") if hasattr(os, "memfd_create") else memory_file()
        self.file = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        self.capturing = False

    def start(self, capture: bool) -> None:
        """Empties the memory and writes there from now on."""
        name = "stdout" if self.descriptor == 1 else "stderr"
        setattr(sys, name, self.file)
        setattr(sys, f"__{name}__", self.file)
        if capture != self.capturing:
            os.dup2(self.memory if capture else self.original, self.descriptor)
            self.capturing = capture

    def stop(self) -> str:
        """What was written since ``start``."""
        size = os.fstat(self.memory).st_size
        if not size:
            return ""
        data = os.pread(self.memory, size, 0)
        os.ftruncate(self.memory, 0)
        os.lseek(self.memory, 0, os.SEEK_SET)
        return data.decode("utf-8", "replace")


def memory_file() -> int:
    """A file without a name."""
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Coverage:
    """Measures this rank as pytest-cov measures the parent, which says so in the environment."""

    def __init__(self) -> None:
        self.running: Any = None

    def start(self) -> None:
        """Starts, once."""
        settings = os.environ.pop("VALIDATE_DDP_COVERAGE", "")
        if not settings or self.running is not None:
            return
        import json

        import coverage  # type: ignore[import-not-found, unused-ignore]

        options = json.loads(settings)
        self.running = coverage.Coverage(data_suffix=True, **options)
        self.running.start()

    def save(self) -> None:
        """Writes the data beside the parent's."""
        if self.running is not None:
            self.running.stop()
            self.running.save()


def call_function(steps: pickle.Unpickler, world: RankWorld, sections: list[tuple[str, str]]) -> Any:
    """The step of ``World.run``: a function with its arguments."""
    main = steps.load()
    if main and not _main_is_here:
        # Under the name that multiprocessing gives it, so that the same guard keeps a script from starting again.
        from multiprocessing import spawn

        spawn._fixup_main_from_path(main)  # type: ignore[attr-defined]
        _main_is_here.append(main)
    function, args, kwargs = steps.load()
    if "world" not in kwargs and takes_world(function):
        kwargs["world"] = world
    return function(*args, **kwargs)


_main_is_here: list[str] = []


def takes_world(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter called ``world``."""
    import inspect

    try:
        return "world" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
