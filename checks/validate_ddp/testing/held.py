"""What a process has once, and a test may leave changed: read before tests, put back after each.

Modules set some of it when they are imported (``torch.set_default_dtype``, ``sys.setrecursionlimit``), once in a
process. A test finds what its module has set, and what those have that its module imports, whichever test came first.
"""

from __future__ import annotations

import builtins
import ctypes
import decimal
import gc
import importlib.util
import locale
import logging
import multiprocessing.context
import os
import pickle
import random
import resource
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""How it is read, and how it is put back; the second raises where it cannot be."""

_settings: list[Setting] = []
_set_by: dict[str, dict[int, Any]] = {}
"""What became different while a module was imported, by its place in ``_settings``."""
_functions: dict[str, dict[str, Any]] = {}
"""Of modules that tests replace functions of, by name: as they were when the last test began."""


def begin() -> None:
    """Once in a rank, with torch imported."""
    _settings[:] = [*of_process(), *of_python(), *of_torch()]
    _functions.update(functions())


def values() -> list[Any]:
    """What is set now."""
    return [get() for get, _ in _settings]


def put_back(wanted: list[Any]) -> str:
    """Sets what differs. Why this process cannot be as it was, else an empty string."""
    for (get, put), value in zip(_settings, wanted, strict=True):
        try:
            if get() != value:
                put(value)
        except Exception as error:  # noqa: BLE001 - whatever it is, this process is replaced
            return f"what it was left with cannot be put back: {error}"
    return ""


def imported(name: str) -> types.ModuleType:
    """A module whose test begins, with what it has set when it was imported."""
    with following():
        follow(name)
    _functions.update(functions())
    return sys.modules[name]


@contextmanager
def following() -> Iterator[None]:
    """While a test's modules are imported: what each sets is noted, and set again where one is here already."""
    kept = builtins.__import__
    builtins.__import__ = follow
    try:
        yield
    finally:
        if builtins.__import__ is follow:  # else a module has replaced it, to stay
            builtins.__import__ = kept


def follow(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> types.ModuleType:
    """``import``. What a library imports is a part of the library."""
    __tracebackhide__ = True
    space = globals or {}
    package = str(space.get("__package__") or "")
    library = str(space.get("__file__")).startswith(_LIBRARIES) and package != __package__
    if library or (level and not package):
        return plain(name, globals, locals, fromlist, level)
    whole = importlib.util.resolve_name("." * level + name, package)
    for end in [at for at, letter in enumerate(whole + ".") if letter == "."]:
        with noted([whole[:end]]):
            importlib.import_module(whole[:end])
    with noted([f"{whole}.{each}" for each in fromlist or ()]):
        return plain(name, globals, locals, fromlist, level)


plain = builtins.__import__
_LIBRARIES = tuple(path + os.sep for path in set(sysconfig.get_paths().values()))


@contextmanager
def noted(names: list[str]) -> Iterator[None]:
    """Around the import of modules: what those set that are new is noted, what the others did when they were is set."""
    new = [name for name in names if name not in sys.modules]
    for name in names:
        if name in _set_by:
            put_back([_set_by[name].get(number, value) for number, value in enumerate(values())])
    before = values() if new else []
    yield
    if new:
        now = values()
        differing = {number: value for number, value in enumerate(now) if value != before[number]}
        _set_by.update({name: differing for name in new if name in sys.modules and differing})


def functions() -> dict[str, dict[str, Any]]:
    """The functions and classes of some modules, by name."""
    return {
        each: {name: value for name, value in vars(sys.modules[each]).items() if callable(value)} for each in _WATCHED
    }


def replaced() -> str:
    """A function that the test has replaced, else an empty string.

    It is not put back: it may be a library that does so when it is imported, and that is imported once.
    """
    for module, found in functions().items():
        before = _functions[module]
        changed = [name for name in before if found.get(name) is not before[name]]
        if changed:
            return f"{module}.{changed[0]} was left replaced"
    return ""


_WATCHED = ("builtins", "os", "time", "torch.distributed", "torch.distributed.distributed_c10d")


def of_process() -> list[Setting]:
    """Of the kernel."""
    found: list[Setting] = [
        (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []), partial(signal.pthread_sigmask, signal.SIG_SETMASK)),
        (handlers, restore_handlers),
        (lambda: os.getpriority(os.PRIO_PROCESS, 0), partial(os.setpriority, os.PRIO_PROCESS, 0)),
        (umask, os.umask),
    ]
    if hasattr(os, "sched_getaffinity"):
        found.append((lambda: os.sched_getaffinity(0), partial(os.sched_setaffinity, 0)))
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        found.append((partial(signal.getitimer, timer), partial(restore_timer, timer)))
    for name in ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK"):
        limit = getattr(resource, f"RLIMIT_{name}", None)
        if limit is not None:
            found.append((partial(resource.getrlimit, limit), partial(resource.setrlimit, limit)))
    return found


def restore_timer(timer: int, wanted: tuple[float, float]) -> None:
    """Sets a timer, or ends it."""
    signal.setitimer(timer, *wanted)  # type: ignore[arg-type, unused-ignore]


def handlers() -> list[Any]:
    """Of signals, as Python knows them; None where it was not Python that has set one."""
    return [signal.getsignal(number) for number in _SIGNALS]


def restore_handlers(wanted: list[Any]) -> None:
    """Puts handlers of signals back."""
    for number, handler in zip(_SIGNALS, wanted, strict=True):
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


_SIGNALS = sorted(
    number for number in signal.valid_signals() if number < 32 and number not in (signal.SIGKILL, signal.SIGSTOP)
)


def umask() -> int:
    """The process's, which can only be read by setting it."""
    os.umask(found := os.umask(0))
    return found


def of_python() -> list[Setting]:
    """Of the interpreter and its library."""
    places = [
        (sys, "excepthook"), (sys, "unraisablehook"), (sys, "displayhook"), (threading, "excepthook"),
        (tempfile, "tempdir"), (logging.root, "level"), (logging.root.manager, "disable"),
        (multiprocessing.context._default_context, "_actual_context"),
    ]  # fmt: skip
    digits = [(sys.get_int_max_str_digits, sys.set_int_max_str_digits)] if sys.version_info >= (3, 10, 7) else []
    return [
        *digits,
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (sys.getswitchinterval, sys.setswitchinterval),
        (socket.getdefaulttimeout, socket.setdefaulttimeout),
        (threading.stack_size, threading.stack_size),
        (sys.gettrace, sys.settrace),
        (sys.getprofile, sys.setprofile),
        (threading.gettrace, threading.settrace),
        (threading.getprofile, threading.setprofile),
        (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        (gc.get_threshold, lambda value: gc.set_threshold(*value)),
        (lambda: locale.setlocale(locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
        (lambda: decimal.getcontext().__reduce__(), lambda made: decimal.setcontext(made[0](*made[1]))),
        (random.getstate, random.setstate),
        *(attribute(owner, name) for owner, name in places),
        finders(),
        log_handlers(),
    ]


def of_torch() -> list[Setting]:
    """Of torch, and numpy's random numbers."""
    torch: Any = importlib.import_module("torch")
    printing, devices = torch._tensor_str.PRINT_OPTS, importlib.import_module("torch.utils._device")
    return [
        (lambda: devices.CURRENT_DEVICE, torch.set_default_device),
        (partial(torch_state, torch), partial(restore_torch, torch)),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (lambda: dict(vars(printing)), vars(printing).update),
        (torch._C._len_torch_function_stack, refuse("a mode of torch is still on")),
        (torch._C._len_torch_dispatch_stack, refuse("a mode of torch is still on")),
        (numpy_state, restore_numpy),
    ]


def torch_state(torch: Any) -> bytes:
    """Of its random numbers, as what can be compared."""
    state = torch.get_rng_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def restore_torch(torch: Any, wanted: bytes) -> None:
    """Its random numbers."""
    torch.set_rng_state(torch.frombuffer(bytearray(wanted), dtype=torch.uint8))


def numpy_state() -> bytes | None:
    """Of its random numbers, as what can be compared; None where it is not imported."""
    return pickle.dumps(sys.modules["numpy"].random.get_state()) if "numpy" in sys.modules else None


def restore_numpy(wanted: bytes | None) -> None:
    """Its random numbers; where it was not imported then, those that follow a seed of 0."""
    if wanted is None:
        sys.modules["numpy"].random.seed(0)
    else:
        sys.modules["numpy"].random.set_state(pickle.loads(wanted))  # noqa: S301 - our own


def attribute(owner: Any, name: str) -> Setting:
    """An attribute of a module or an object."""
    return partial(getattr, owner, name), partial(setattr, owner, name)


def finders() -> Setting:
    """Who finds modules: a library may add to them when it is imported, so that only what is gone comes back."""

    def put(wanted: list[Any]) -> None:
        sys.meta_path[:] = [*wanted, *(each for each in sys.meta_path if each not in wanted)]

    return lambda: sys.meta_path.copy(), put


def log_handlers() -> Setting:
    """Of the root logger."""

    def put(wanted: list[Any]) -> None:
        logging.root.handlers[:] = wanted

    return logging.root.handlers.copy, put


def refuse(why: str) -> Callable[[Any], object]:
    """For what only who has changed it can undo."""

    def put(wanted: Any) -> None:
        raise RuntimeError(why)

    return put
