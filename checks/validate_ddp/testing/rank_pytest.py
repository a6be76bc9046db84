"""pytest on a rank: rewritten assertions, the call of the test, and its picture of a failure."""

from __future__ import annotations

import functools
import hashlib
import inspect
import marshal
import os
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import SkipTest, TestCase, TestResult, TestSuite

from . import capture, held, rank_fixtures
from .outcome import Failure
from .rank import RankWorld, current_world, plain_failure
from .state import finder

if TYPE_CHECKING:
    import pytest

_prepared: list[pytest.Config] = []


def prepare(options: dict[str, Any]) -> None:
    """Once, in the forkserver: a pytest configuration with the parent's options, without its plugins and conftests."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.pop("PYTEST_PLUGINS", None)
    from _pytest.assertion import pytest_runtest_protocol
    from _pytest.assertion.rewrite import AssertionRewritingHook
    from _pytest.config import get_config

    arguments = ["-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", *options["arguments"]]
    config = get_config(arguments)
    config.parse(arguments)
    for hook in sys.meta_path:
        if isinstance(hook, AssertionRewritingHook):
            hook.mark_rewrite(*options["rewritten"])
            finder.rewriter = hook
    _prepared.append(config)
    if options.get("rewritten_code"):
        keep_rewritten(options["rewritten_code"])

    class Item:
        ihook = config.hook

    Item.config = config  # type: ignore[attr-defined]
    # Explains comparisons as in one process; it stays, as nothing but tests runs here.
    protocol = pytest_runtest_protocol(Item)  # type: ignore[arg-type]
    next(protocol)
    _prepared_protocols.append(protocol)


_prepared_protocols: list[Iterator[object]] = []


def keep_rewritten(folder: str) -> None:
    """Where no bytecode may lie beside the tests, each rank would rewrite them again: 0.1 s a file. They share this."""
    from _pytest.assertion import rewrite

    original = rewrite._rewrite_test

    def kept(path: Path, config: pytest.Config) -> tuple[None, types.CodeType]:
        file = os.path.join(folder, hashlib.sha256(f"{path}\0".encode() + path.read_bytes()).hexdigest())
        try:
            with open(file, "rb") as source:
                code: types.CodeType = marshal.load(source)
        except OSError:
            code = original(path, config)[1]
            try:
                with open(f"{file}.{os.getpid()}", "wb") as target:
                    marshal.dump(code, target)
                os.replace(target.name, file)
            except OSError:  # no space: slower, and as right
                pass
        # What stands first differs between versions of pytest, and is for the bytecode that is not written.
        return None, code

    rewrite._rewrite_test = kept  # type: ignore[assignment]


def call_test(steps: pickle.Unpickler, world: RankWorld, sections: list[tuple[str, str]]) -> None:
    """The step of a marked test: module, path to the function, attributes of its instance, then the arguments."""
    module_name, path, level, drawn, debugged, arguments = steps.load()
    owner: Any = held.imported(module_name)
    for name in path[:-1]:
        owner = getattr(owner, name)
    state = steps.load()
    with rank_fixtures.making(level, world._log) as test:
        try:
            if isinstance(owner, type):
                owner = owner(path[-1]) if issubclass(owner, TestCase) else owner()
                owner.__dict__.update(state)
            function = getattr(owner, path[-1])
            _running.append(function)
            with held.following():
                test.values = unpickled_arguments(steps)
            if isinstance(owner, TestCase):
                function = functools.partial(run_case, owner)
            elif drawn:
                function = drawn_test(function)
            with terminal(*debugged) if debugged and debugged[0] == world.rank else nullcontext():
                refuse_awaitable(function(**{name: test.values[name] for name in arguments}))
            tell_subtests(test.subtests)
        finally:
            text = test.log.handler.stream.getvalue().strip()
            if text:
                sections.append(("log", capture.shortened(text)))


_running: list[Callable[..., Any]] = []


def drawn_test(function: Any) -> Callable[..., Any]:
    """What ``@given`` has wrapped: the arguments were drawn in the parent, once for all ranks."""
    # `assume` works, but says that it is outside of a property: that is in the parent.
    warnings.filterwarnings("ignore", "Using `(assume|reject)` outside")
    inner: Callable[..., Any] = function.hypothesis.inner_test
    owner = getattr(function, "__self__", None)
    return inner if owner is None else functools.partial(inner, owner)


class CaseResult(TestResult):
    """The outcome of a method of ``unittest.TestCase``, with the exceptions themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: list[BaseException] = []

    def addError(self, test: Any, err: Any) -> None:
        """Also of ``setUpClass`` and the like."""
        self.raised.append(err[1])

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """As the test's own."""
        if err is not None:
            self.raised.append(err[1])


def run_case(case: TestCase) -> None:
    """Runs a method of ``unittest.TestCase`` with ``setUpClass``, ``setUp`` and what ends them; raises its outcome."""
    import pytest

    result = CaseResult()
    TestSuite([case]).run(result)
    if result.raised:
        raise result.raised[0]
    if result.skipped:
        pytest.skip(result.skipped[0][1])
    if result.expectedFailures:
        pytest.xfail("expectedFailure")
    if result.unexpectedSuccesses:
        pytest.fail("Unexpected success", pytrace=False)


def tell_subtests(failed: list[tuple[str, BaseException]]) -> None:
    """Fails with what went wrong in the subtests."""
    import pytest

    texts = [f"subtest {name}\n{describe(error, is_test=True).text}" for name, error in failed]
    if texts:
        pytest.fail("\n\n".join(texts), pytrace=False)


@contextmanager
def terminal(rank: int, pid: int) -> Iterator[None]:
    """pdb on the terminal of pytest, where this rank's test fails or calls ``breakpoint``."""
    import pdb

    with open(f"/proc/{pid}/fd/0", "rb", buffering=0) as keyboard, open(f"/proc/{pid}/fd/1", "a") as screen:
        # Line by line: what a buffer would hold is typed for the parent, or for the next test.
        lines: Any = types.SimpleNamespace(readline=lambda: keyboard.readline().decode())
        debugger = pdb.Pdb(stdin=lines, stdout=screen, nosigint=True)
        debugger.prompt = f"(rank {rank}) "
        kept = sys.breakpointhook

        def stop() -> None:
            debugger.set_trace(sys._getframe(1))

        sys.breakpointhook = stop
        try:
            yield
        except Exception as error:
            print(f">>> rank {rank}: {type(error).__name__}: {error}", file=screen)
            debugger.reset()
            debugger.interaction(None, error.__traceback__)
            raise
        finally:
            sys.breakpointhook = kept


def refuse_awaitable(result: object) -> None:
    """Fails a test that is ``async def``, as pytest does: nothing of it has run, and no plugin for it is here."""
    import pytest

    if inspect.isgenerator(result):
        result.close()
        pytest.fail(
            "the test has a `yield`, so nothing of it has run: a test on ranks is a plain function", pytrace=False
        )
    if hasattr(result, "__await__") or hasattr(result, "__aiter__"):
        if hasattr(result, "close"):
            result.close()  # or it is warned of as never awaited
        pytest.fail(
            "async def functions are not natively supported on ranks: nobody awaits this one. "
            "Let the test be a plain function that calls `asyncio.run`",
            pytrace=False,
        )


def unpickled_arguments(steps: pickle.Unpickler) -> dict[str, Any]:
    """The fixtures' values, those of ``usefixtures`` first, and arguments that were drawn."""
    values = {}
    for _ in range(steps.load()):
        name = steps.load()
        try:
            values[name] = steps.load()
        except rank_fixtures.Raised as raised:
            raise raised.error from None
        except Exception as error:
            kind = type(error).__name__
            raise TypeError(
                f"fixture {name!r} came to the ranks, but cannot be unpickled there ({kind}: {error})"
            ) from error
    return values


class ParentWorld:
    """What a fixture sees as ``world``: it runs in the parent, where there is no rank. On a rank it is the real one."""

    def __init__(self, size: Callable[[], int]) -> None:
        self._size = size

    @property
    def size(self) -> int:
        """The number of ranks of the test that runs."""
        return self._size()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"`world.{name}` exists on the ranks only, and fixtures are made in the parent process; use it in the test"
        )

    def __reduce__(self) -> tuple[Callable[[], RankWorld], tuple[()]]:
        return current_world, ()


def describe(error: BaseException, is_test: bool) -> Failure:
    """An exception as pytest shows it, for the parent."""
    import pytest
    from _pytest.outcomes import XFailed

    if isinstance(error, SkipTest):
        return Failure("skipped", f"skipped: {error}", str(error), error=pickle.dumps(str(error)))
    if isinstance(error, pytest.skip.Exception):
        return Failure("skipped", f"skipped: {error.msg}", str(error.msg), error=pickle.dumps(str(error.msg)))
    if isinstance(error, XFailed):
        return Failure("xfailed", f"xfailed: {error.msg}", str(error.msg), error=pickle.dumps(str(error.msg)))
    if not _prepared or not is_test or (isinstance(error, pytest.fail.Exception) and not error.pytrace):
        return plain_failure(error, text=str(error) if isinstance(error, pytest.fail.Exception) else "")
    config = _prepared[0]
    info = pytest.ExceptionInfo.from_exception(error)
    style = config.getoption("tbstyle", "auto")
    try:
        rendered = info.getrepr(
            funcargs=True,
            showlocals=config.getoption("showlocals", False),
            style="long" if style == "auto" else style,
            tbfilter=shortened,
            truncate_locals=config.get_verbosity() < 2,
        )
        return plain_failure(error, str(rendered), pickle.dumps(rendered))
    except Exception:  # noqa: BLE001 - a user's __repr__ or a class of pytest that has moved; the plain text is as true
        return plain_failure(error)


def shortened(info: pytest.ExceptionInfo[BaseException]) -> Any:
    """The traceback from the test function on, as pytest cuts it in one process."""
    from _pytest._code import Traceback
    from _pytest.python import Function

    from .stacks import is_torch

    if not _running:
        return info.traceback

    class Item:
        obj = _obj = staticmethod(_running[-1])
        config = _prepared[0]

    entries = list(Function._traceback_filter(Item, info))  # type: ignore[arg-type]
    # A whole function of torch, docstring and all, hides the line of the test.
    style = _prepared[0].getoption("tbstyle", "auto")
    if style == "auto":
        entries = [each.with_repr_style("short") if is_torch(str(each.path)) else each for each in entries]
    return Traceback(entries)
