"""Suites that start their own ranks, made fast: what is spawned is forked from a process that has imported it already.

One line in a conftest.py, for the tests below it:

    from validate_ddp.testing.adopt import pytest_runtest_protocol

or ``-p validate_ddp.testing.adopt`` for a whole run, or ``@pytest.mark.adopt`` on tests. No test changes: ``mp.spawn``,
torch's ``MultiProcessTestCase`` and what derives from it (``DTensorTestBase``, ``FSDPTest``), DeepSpeed's
``DistributedTest`` and pools start, wait for, and read exit codes (torch's skips are such) of real processes as before.
Each of these still is a new one, with the environment, folder, output and inherited descriptors that a spawned one has;
only that Python, torch and the test modules are there when it begins, 2 to 10 s sooner.

It is multiprocessing's own forkserver, which serves the start method ``spawn`` too while a test runs, and imports the
test modules for both; with ``-p``, torch while conftests do. What differs: a module is imported once and before the
tests, so it sees the environment of the start; and ``OMP_NUM_THREADS`` is 1, as under torchrun, where nothing else is
said: a process whose threads have computed cannot be forked.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import context, forkserver, popen_forkserver, reduction, spawn
from pathlib import Path
from typing import Any

import pytest

from .capture import memory_file
from .forkserver import die_with_parent
from .state import LEFT_OUT, ModuleHome, finder

_MODULES = "VALIDATE_DDP_ADOPTED"
_HEAVY = ("torch.distributed", "torch.multiprocessing", "torch._dynamo", "torch.nn.parallel", "torch.utils.data")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around one test with its fixtures."""
    with warm(item.session):
        return (yield)


@contextmanager
def warm(session: pytest.Session) -> Iterator[None]:
    """Processes that are spawned meanwhile are forked from one that has imported the session's test modules."""
    # The staticmethods themselves.
    starts = {each: vars(each)["_Popen"] for each in (context.SpawnProcess, context.ForkServerProcess)}
    before = spawn.get_preparation_data

    def started(process: Any) -> Any:
        preload(session)
        return popen_forkserver.Popen(process)

    def described(name: str) -> dict[str, Any]:
        return {**before(name), "validate_ddp": Surroundings()}

    for each in starts:
        each._Popen = staticmethod(started)  # type: ignore[method-assign, assignment]
    spawn.get_preparation_data = described
    try:
        yield
    finally:
        spawn.get_preparation_data = before
        for each, start in starts.items():
            each._Popen = start  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """The forkserver imports torch while conftests do and tests are collected."""
    others = ("collectonly", "help", "version", "numprocesses")  # the last: of pytest-xdist, whose workers start it
    if not any(getattr(early_config.known_args_namespace, name, None) for name in others):
        start()


def pytest_collection_finish(session: pytest.Session) -> None:
    """It starts anew where the modules have changed the environment: what is imported there finds it as here."""
    if _started and _started != [environment()]:
        os.kill(server()._forkserver_pid, signal.SIGKILL)
        server()._stop()
        start()


_started: list[dict[str, str]] = []
"""The environment that the forkserver was started with, if we have."""
_modules = memory_file("modules")
"""What it is to import before it first forks."""
_told: list[int] = []
"""Which forkserver knows it, by its pid."""


def environment() -> dict[str, str]:
    """What can be of weight for an import."""
    return {name: value for name, value in os.environ.items() if name not in LEFT_OUT}


def server() -> Any:
    """Multiprocessing's, of this process."""
    return forkserver._forkserver


def start() -> None:
    """Starts the forkserver, if it does not run; it imports torch."""
    before = server()._forkserver_pid
    forkserver.set_forkserver_preload([__name__ + "ed"])
    kept = os.environ.copy()
    default: Any = context._default_context
    method = default._actual_context
    os.environ[_MODULES] = f"/proc/{os.getpid()}/fd/{_modules}"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(kept)
        default._actual_context = method  # to start asks for the default method, which nobody can choose after that
    if server()._forkserver_pid != before:
        _started[:] = [environment()]


def preload(session: pytest.Session) -> None:
    """Starts the forkserver, if it does not run, and tells it what this session's tests are defined in."""
    start()
    if _told == [server()._forkserver_pid]:
        return
    modules = {}
    for item in session.items:
        module = item.getparent(pytest.Module)
        name = getattr(getattr(module, "_obj", None), "__name__", "")
        while name and name not in modules:
            home = sys.modules.get(name)
            modules[name] = getattr(home, "__file__", None), list(getattr(home, "__path__", None) or ()) or None
            name = name.rpartition(".")[0]
    os.truncate(_modules, 0)
    os.pwrite(_modules, json.dumps((sys.path, modules), default=str).encode(), 0)
    _told[:] = [server()._forkserver_pid]


def import_first() -> None:
    """In the forkserver: torch at once, and the rest when it is first asked to fork."""
    told = os.environ.pop(_MODULES, "")
    import_each(_HEAVY)
    plain = os.fork

    def fork() -> int:
        known = import_all(told)
        pid = plain()
        if known or not pid:
            os.fork = plain
        return pid

    os.fork = fork


def import_all(told: str) -> bool:
    """The modules of the tests, if they are known by now."""
    try:
        text = Path(told).read_text()
    except OSError:  # the process of the tests has just ended
        text = ""
    if not text:
        return False
    sys.path[:], named = json.loads(text)
    finder.modules = {name: ModuleHome(path, search and tuple(search), False) for name, (path, search) in named.items()}
    sys.meta_path.append(finder)  # after the path: only what it does not find, as under ``--import-mode=importlib``
    import_each(named)
    gc.collect()
    gc.freeze()
    return True


def import_each(names: Iterable[str]) -> None:
    """That a test module skips or exits when it is imported is its own matter."""
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException:  # noqa: BLE001 - the process that needs the module imports it again, and says why
            sys.modules.pop(name, None)


class Surroundings:
    """What a spawned process inherits and a forkserver's child does not; to unpickle it is to take it over."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return take_over, (dict(os.environ), [reduction.DupFd(descriptor) for descriptor in (1, 2)])


def take_over(environ: dict[str, str], streams: list[Any]) -> None:
    """In the new process: environment, output, random numbers of its own, and an end with what has started it."""
    # The forkserver ends when nobody holds this any more. If pytest alone does, it ends with it, and this process too.
    server: Any = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None
    die_with_parent(os.getppid())
    os.environ.clear()
    os.environ.update(environ)
    for descriptor, stream in enumerate(streams, 1):
        with open(stream.detach(), "rb") as inherited:
            os.dup2(inherited.fileno(), descriptor)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
