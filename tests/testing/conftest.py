"""Runs pytest on small suites in processes of their own, and counts what they leave behind."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator

import pytest
from validate_ddp.testing import Pool, World


@pytest.fixture(scope="session")
def plugin_options() -> list[str]:
    """They load the plugin where no installation does it."""
    installed = any(
        each.value == "validate_ddp.testing.plugin" for each in importlib.metadata.entry_points(group="pytest11")
    )
    return [] if installed else ["-p", "validate_ddp.testing.plugin"]


@pytest.fixture
def suite(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugin_options: list[str]
) -> Callable[..., pytest.RunResult]:
    """``suite(source, *options)``: the result of pytest on it, with a mark of its own in the environment."""
    monkeypatch.setenv("WORLDS_TEST_MARK", pytester.path.name)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)

    def run(source: str = "", *options: str) -> pytest.RunResult:
        if source:
            pytester.makepyfile(test_it="import os, pytest\n" + source)
        return pytester.runpytest_subprocess(*plugin_options, *options)

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
