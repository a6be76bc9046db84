"""One rehearsed process: reads what the command asks for, connects, installs the shim and the observers."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from . import protocol
from .channel import Channel
from .hook import RESTART, START, VISIBLE
from .patching import Numbering, forget, guarded, remember
from .sites import Sites

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable
    from types import ModuleType

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.nn import Module

    from .observers.collectives import Calls
    from .observers.loaders import Loaders
    from .shim.devices import Devices

_SHIM = (
    "devices",
    "tensors",
    "factories",
    "cuda",
    "streams",
    "profiling",
    "precision",
    "groups",
    "futures",
    "batch_norm",
    "compiling",
    "data_parallel",
    "attention",
    "sharding",
    "datasets",
    "packages",
)
_OBSERVERS = (
    "groups", "collectives", "ddp", "steps", "loaders", "schedules", "saves", "draws", "gathers", "losses", "failures",
    "clipping", "sharding", "moving_averages", "rounding", "norms", "claims", "census", "piled",
)  # fmt: skip

current: Session | None = None


class Session:
    """What shim and observers share."""

    calls: Calls
    loaders: Loaders
    devices: Devices
    digests: Callable[[list[Tensor]], list[int | None]]
    """Of observers and shims that are installed by then, for others to use."""

    def __init__(self, torch: ModuleType, options: protocol.Orders) -> None:
        self.torch = torch
        self.options = options
        self.channel = Channel(options["socket"])
        self.sites = Sites(os.path.dirname(torch.__file__ or ""), START, self.channel.emit)
        self.emit = self.channel.emit
        self.here = self.sites.here
        self.fault = self.channel.fault
        self.noted: set[str] = set()
        self.count = 0
        self.visible = VISIBLE
        self.optimizers = Numbering()
        self.wrapped: dict[int, tuple[weakref.ref[Tensor], int, str]] = {}
        """For each parameter under DDP, by id: a weak reference to it, the number of its wrapper, and its name."""
        self.own: dict[int, weakref.ref[Tensor]] = {}
        """Parameters of each rank's own, by id: those that DDP is told to leave alone."""
        self.before_backward: list[Callable[[object], None]] = []
        """Called with what a backward is of."""
        self.after_backward: list[Callable[[], None]] = []
        self.leaving: list[Callable[[], None]] = []
        """Called when the interpreter goes."""
        self.talks: Callable[[Tensor], bool] = lambda tensor: False
        """Whether a parameter is part of a module whose calls send something to other ranks."""
        self.moving: Callable[[], set[int]] = set
        """What optimizers of this rank move, by id."""
        self.models: dict[int, tuple[weakref.ref[Module], protocol.Model]] = {}
        """By id of the module: what was told last of one that the script calls."""
        self.named: Callable[[ProcessGroup | None], tuple[str, list[int]] | None] | None = None
        """In place of what tells a group's name and members, where not all of them are run."""
        self.quiet = False
        """Whether what is done to files is ours, and no event."""
        self.waited = False
        """Whether this rank has slept or locked a file since it last met others."""
        self.scratch = ""
        """The folder under which files are written, in the runs of the restart check: what is told is without it."""
        self.training = False
        """Whether batches of a loader are being consumed with gradients on, for the observer of random draws."""

    @property
    def rank(self) -> int:
        return _number("RANK") or 0

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0") or 0)

    def next_call(self) -> int:
        """A number for a call that may wait; the event ``done`` has the same one."""
        self.count += 1
        return self.count

    def note(self, change: str, at_once: bool = False) -> None:
        """Says once what is changed for this run; at_once: while it goes on."""
        if change not in self.noted:
            self.noted.add(change)
            self.emit(protocol.Shim(change=change, at_once=at_once))

    def connect(self) -> None:
        """Introduces this process; again after a fork that made a rank."""
        hello = protocol.Hello(
            version=protocol.VERSION,
            pid=os.getpid(),
            ppid=os.getppid(),
            rank=_number("RANK"),
            local_rank=_number("LOCAL_RANK"),
            world_size=_number("WORLD_SIZE"),
            torch=str(self.torch.__version__),
            python=sys.version.split()[0],
            argv=sys.argv[:1],
        )
        self.channel.connect(hello)
        self.sites.sites.clear()


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def begin(torch: ModuleType) -> None:
    """Local. Called when torch has just been imported; a fault leaves the run as it is. One of the short runs of the
    partition check ends instead, before the script: without its scratch folder it would write over the user's files."""
    global current
    try:
        options = json.loads(os.environ["VALIDATE_DDP_REHEARSAL"])
        options["devices"] = int(os.environ.get("VALIDATE_DDP_DEVICES") or options["devices"])
        session = Session(torch, options)
        session.connect()
    except Exception:  # noqa: BLE001 - nobody to tell: the command says which ranks never reported
        if os.environ.get("VALIDATE_DDP_PARTITION") or os.environ.get(RESTART):
            os._exit(1)
        return
    current = session
    remember()
    if options.get("shim", True):
        for name in _SHIM:
            guarded(session.fault, "shim." + name, _install, "shim." + name, session)
    try:
        _install("simulated.begin", session)
    except Exception:  # noqa: BLE001 - nothing is installed in an ordinary run; of the others the command says it
        os._exit(1)
    guarded(session.fault, "scripting", _install, "scripting", session)
    for name in options.get("observers", _OBSERVERS):
        guarded(session.fault, "observers." + name, _install, "observers." + name, session)
    try:
        _install("partition.begin", session)
        _install("restart.begin", session)
    except Exception:  # noqa: BLE001 - nothing is installed in an ordinary run; the check says that it was not made
        os._exit(1)
    guarded(session.fault, "stacks", _install, "stacks", session)
    forget()


def _install(module: str, session: Session) -> None:
    import_module("." + module, __package__).install(session)


def leave() -> None:
    """Local. At the end of the process, after all that the script has registered for it."""
    if current is not None:
        for last in current.leaving:
            guarded(current.fault, "leave", last)
        module = sys.modules.get(f"{__package__}.observers.groups")
        if module is not None:
            guarded(current.fault, "leave", module.leave, current)
