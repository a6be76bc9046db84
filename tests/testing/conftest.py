"""Runs pytest on small suites in processes of their own, and counts what they leave behind."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from validate_ddp.testing import Pool, World


def plugin_options() -> list[str]:
    """Loads the plugin where no installation does it."""
    installed = any(
        each.value == "validate_ddp.testing.plugin" for each in importlib.metadata.entry_points(group="pytest11")
    )
    return [] if installed else ["-p", "validate_ddp.testing.plugin"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """``suite(source, *options)``: the result of pytest on it, with a mark of its own in the environment."""
    monkeypatch.setenv("WORLDS_TEST_MARK", pytester.path.name)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)

    def run(source: str = "", *options: str) -> pytest.RunResult:
        if source:
            pytester.makepyfile(test_it="import os, pytest\n" + source)
        return pytester.runpytest_subprocess(*plugin_options(), *options)

    return run


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Of one world at a time, so that tests know which processes they get."""
    made = Pool(live_ranks=2)
    yield made
    made.close()


@pytest.fixture
def two(pool: Pool) -> World:
    """A world of two ranks."""
    return World(2, pool=pool)


@pytest.fixture
def processes() -> ModuleType:
    """This module: test files are imported in a way that cannot name it."""
    return sys.modules[__name__]


def marked_processes(mark: str) -> list[int]:
    """Processes whose environment had the mark when they were started."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"WORLDS_TEST_MARK={mark}\0".encode() in file.read() + b"\0" and int(name) != os.getpid():
                    found.append(int(name))
        except (OSError, ValueError):
            continue
    return found


def wait_until_gone(mark: str, seconds: float = 5.0) -> list[int]:
    """The marked processes that are left after so long."""
    deadline = time.monotonic() + seconds
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
