"""A marked test in the parent: what its marker says, what travels to the ranks, and what comes back."""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import sys
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from .outcome import GROUP, ISOLATIONS, Failure, Reply, WorldError, fold, named
from .plugin import MADE_HERE
from .pool import LIVE_RANKS, Pool
from .rank_pytest import call_test
from .server import ForkserverError
from .state import ModuleHome


@dataclass(frozen=True)
class Settings:
    """What a marker asks for."""

    size: int
    backend: str | None
    isolation: str
    timeout: float


def settings(item: pytest.Item) -> Settings:
    """The marker of a test, with the size that this instance of it is parametrised with."""
    marker = item.get_closest_marker("world_size")
    if marker is None:
        pytest.fail("`world_size` needs @pytest.mark.world_size(2) on the test", pytrace=False)
    if not isinstance(item, pytest.Function) or not hasattr(item, "_fixtureinfo") or hasattr(item, "_testcase"):
        pytest.fail(
            "world_size is for test functions and methods of plain classes, not unittest.TestCase", pytrace=False
        )
    options = dict(marker.kwargs)
    size = options.pop("sizes", marker.args[0] if marker.args else None)
    callspec = getattr(item, "callspec", None)
    if callspec is not None:
        size = callspec.params.get("world_size", size)
    backend = options.pop("backend", "gloo")
    isolation = options.pop("isolation", GROUP)
    timeout = options.pop("timeout", None)
    problem = ""
    if options or len(marker.args) > 1:
        problem = f"unknown arguments {sorted(options) or list(marker.args[1:])}"
    elif isinstance(size, bool) or not isinstance(size, int) or size < 1:
        problem = f"needs a number of ranks from 1, or a list of them, not {size!r}"
    elif isolation not in ISOLATIONS:
        problem = f"isolation is one of {', '.join(ISOLATIONS)}, not {isolation!r}"
    if problem:
        pytest.fail(f"@pytest.mark.world_size: {problem}", pytrace=False)
    return Settings(size, backend, isolation, timeout_of(item) if timeout is None else float(timeout))


def timeout_of(item: pytest.Item) -> float:
    """Seconds: the mark ``timeout``, else the setting ``world_timeout``."""
    mark = item.get_closest_marker("timeout")
    if mark is not None and (mark.args or "timeout" in mark.kwargs):
        seconds = float(mark.args[0] if mark.args else mark.kwargs["timeout"])
        if seconds > 0:
            return seconds
    return float(item.config.getini("world_timeout"))


def make_pool(config: pytest.Config) -> Pool:
    """A pool whose ranks know how this pytest rewrites and shows."""
    option = config.option
    rewriter = next((hook for hook in sys.meta_path if type(hook).__name__ == "AssertionRewritingHook"), None)
    arguments = ["--rootdir", str(config.rootpath), "--assert", option.assertmode, "--tb", option.tbstyle]
    arguments += ["-v"] * max(0, option.verbose)
    arguments += ["--showlocals"] if option.showlocals else []
    arguments += ["--full-trace"] if option.fulltrace else []
    arguments += ["-o", "python_files=" + " ".join(config.getini("python_files"))]
    for name in ("verbosity_assertions", "truncation_limit_lines", "truncation_limit_chars"):
        try:
            value = config.getini(name)
        except (KeyError, ValueError):  # older than the setting
            continue
        if value not in (None, "auto"):
            arguments += ["-o", f"{name}={value}"]
    coverage = coverage_options(config)
    if coverage:
        os.environ["VALIDATE_DDP_COVERAGE"] = coverage
    # Every xdist worker has a pool of its own.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    live = LIVE_RANKS if workers == 1 else max(4, 2 * LIVE_RANKS // workers)
    options = {"arguments": arguments, "rewritten": sorted(getattr(rewriter, "_must_rewrite", ()))}
    return Pool(live_ranks=live, pytest_options=options)


def coverage_options(config: pytest.Config) -> str:
    """How pytest-cov measures this process, as arguments of ``coverage.Coverage``; empty where it does not."""
    plugin = config.pluginmanager.getplugin("_cov")
    measured = getattr(getattr(plugin, "cov_controller", None), "cov", None)
    if measured is None:
        return ""
    source = [os.path.abspath(each) if os.path.exists(each) else each for each in measured.config.source or []]
    read = measured.config.config_file
    options = {
        "data_file": os.path.abspath(measured.config.data_file),
        "config_file": os.path.abspath(read) if read else False,
        "branch": bool(measured.config.branch),
        "source": source or None,
    }
    return json.dumps(options)


def run_item(item: pytest.Function, pool: Pool) -> None:
    """Runs one marked test; raises what the ranks have raised."""
    found = settings(item)
    modules_of(item, pool.modules)
    payload = payload_of(item)
    captured = item.config.option.capture != "no"
    replies: dict[int, Reply] = {}
    try:
        answers = pool.run(
            payload,
            item.nodeid,
            found.size,
            backend=found.backend,
            isolation=found.isolation,
            timeout=found.timeout,
            capture=captured,
            is_test=True,
        )
        replies = dict(enumerate(answers))
    except WorldError as error:
        replies = error.replies
        raise_as_one(error)
    except ForkserverError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        add_sections(item, replies)
        rewarn(replies.values())


def payload_of(item: pytest.Function) -> bytes:
    """Everything that travels for one test, in one pickle stream; ``rank_pytest.call_test`` reads it."""
    assert item.parent is not None
    path = [node.name for node in item.listchain() if isinstance(node, pytest.Class)] + [item.originalname]
    names = item._fixtureinfo.argnames
    here = [name for name in names if name in MADE_HERE and _is_builtin(item, name)]
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    level = item.config.getoption("log_level", None) or item.config.getini("log_level")
    module = item.getparent(pytest.Module)
    assert module is not None
    pickler.dump(call_test)
    pickler.dump((module.obj.__name__, path, here, _level(level)))
    instance = item.instance if item.cls is not None else None
    state = {} if instance is None else dict(vars(instance))
    dump(pickler, state, "the attributes of the test's instance (setup_method runs in the parent)")
    travelling = [name for name in names if name not in here]
    pickler.dump(len(travelling))
    for name in travelling:
        pickler.dump(name)
        dump(pickler, item.funcargs[name], f"fixture {name!r}")
    return stream.getvalue()


def dump(pickler: pickle.Pickler, value: object, what: str) -> None:
    """Pickles one value, or fails the test and says which one it was."""
    try:
        pickler.dump(value)
        return
    except Exception as error:  # noqa: BLE001 - classes of users may fail in any way
        why = f"{type(error).__name__}: {error}"
    pytest.fail(
        f"{what} cannot travel to the ranks: {why}\n"
        "Fixtures are made once, in the parent process, and travel pickled; make this value in the test function, "
        "or let the fixture return what it is made from.",
        pytrace=False,
    )


def _is_builtin(item: pytest.Function, name: str) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.get(name, ())
    module = getattr(definitions[-1].func, "__module__", "") if definitions else ""
    return module.startswith("_pytest.") or module == "validate_ddp.testing.plugin"


def _level(level: str | None) -> int | None:
    import logging

    if not level:
        return None
    return int(level) if level.isdigit() else logging.getLevelName(level.upper())


def modules_of(item: pytest.Item, known: dict[str, ModuleHome]) -> None:
    """Tells the ranks of a test's module, the conftests, and the packages above them."""
    module = item.getparent(pytest.Module)
    plugins = item.config.pluginmanager.get_plugins()
    found = [each for each in plugins if isinstance(each, types.ModuleType) and _is_conftest(each)]
    for each in ([module.obj] if module is not None else []) + found:
        name: str = each.__name__
        while name and name not in known:
            home = sys.modules.get(name)
            if home is not None:
                known[name] = _home(home)
            name = name.rpartition(".")[0]


def _is_conftest(module: types.ModuleType) -> bool:
    return os.path.basename(getattr(module, "__file__", None) or "") == "conftest.py"


def _home(module: types.ModuleType) -> ModuleHome:
    search = getattr(module, "__path__", None)
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    path = getattr(module, "__file__", None)
    return ModuleHome(
        path, None if search is None else tuple(search), type(loader).__name__ == "AssertionRewritingHook"
    )


def raise_as_one(error: WorldError) -> None:
    """Raises the ranks' failures as one exception, of the type that the likely cause has, so that marks match it."""
    kinds = {failure.kind for failure in error.failures.values()}
    first = error.folded()[0][1]
    if len(error.failures) == error.size and kinds == {"skipped"}:
        pytest.skip(first.text)
    if len(error.failures) == error.size and kinds == {"xfailed"}:
        pytest.xfail(first.text)
    primary = original(first)
    if primary is None:
        primary = error
    primary.__dict__["_ranks"] = error
    raise primary.with_traceback(None) from None


def original(failure: Failure) -> BaseException | None:
    """The exception of a rank, if it could travel and the parent's flow may have it."""
    if failure.kind != "exception" or failure.error is None:
        return None
    try:
        error = pickle.loads(failure.error)  # noqa: S301 - of our own ranks
    except Exception:  # noqa: BLE001 - a class that only the rank could import
        return None
    return error if isinstance(error, Exception) or type(error).__module__ == "_pytest.outcomes" else None


def add_sections(item: pytest.Item, replies: dict[int, Reply]) -> None:
    """The captured output of the ranks, equal ones once."""
    for title in ("stdout", "stderr", "log"):
        texts = {rank: text for rank, reply in replies.items() for name, text in reply.sections if name == title}
        for ranks, text in fold(texts, lambda text: text):
            item.add_report_section("call", f"{title} {named(ranks)}", text)


def rewarn(replies: Sequence[Reply] | Any) -> None:
    """Warnings of the ranks, each once, for pytest's summary."""
    for each in dict.fromkeys(warning for reply in replies for warning in reply.warnings):
        module, _, name = each.category.partition(":")
        try:
            category = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            category = UserWarning
        warnings.warn_explicit(each.message, category, each.filename, each.line)
