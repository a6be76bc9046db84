"""Files: what each rank opens for writing or renames, what it saves of which state, and what it reads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import protocol
from ..hook import when_complete
from ..patching import Args, Handed, Kwargs, around, guarded
from ..sites import SCRIPT

if TYPE_CHECKING:
    from torch.nn import Module

    from ..session import Session

    Named = str | bytes | os.PathLike[str]

_TOLD = 3
"""Events for one path: enough to see that several ranks write it, and again later."""
_READ, _PATHS = 20_000, 32
"""Reads that are looked at, and those of one place that are told: a data set may have a file for each sample."""
_NO_DATA = (".py", ".pyc", ".so", ".pyd", ".dll", ".pth", ".egg-link")
"""How the names of files end that are read to be imported."""
_DICTIONARIES = 16
"""Of one file that are compared with each other."""


def install(session: Session) -> None:
    """Local. Events ``save``, ``unsaved`` where that failed, ``renamed``, ``write``, ``read`` and ``load``."""
    torch = session.torch
    observer = _Files(session)
    original = torch.save
    around(torch, "save", session.fault, observer.saving, observer.saved, observer.failed)
    if hasattr(torch.serialization, "save") and torch.serialization.save is original:
        torch.serialization.save = torch.save
    when_complete("safetensors.torch", lambda module: guarded(session.fault, "saves", observer.follow, module))
    ddp = torch.nn.parallel.DistributedDataParallel
    around(
        ddp, "load_state_dict", session.fault,
        lambda args, kwargs: session.emit(protocol.Load(site=session.here())),
    )  # fmt: skip
    around(time, "sleep", session.fault, lambda args, kwargs: setattr(session, "waited", True))
    sys.addaudithook(observer.audit)


class _Files:
    """What this process wrote. An audit hook cannot be taken out again, so it has to be quick."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pid = os.getpid()
        self.told: dict[str, int] = {}
        self.busy = 0
        self.own = self.absolute(session.options.get("dumps") or os.devnull) + os.sep
        """The command's folder: what is written there is not the script's."""
        sources = session.options.get("sources")
        self.elsewhere = ("/dev/", "/proc/", "/sys/", self.own, *([self.absolute(sources) + os.sep] if sources else ()))
        self.reads = 0
        self.read_at: dict[int, int] = {}
        """By the number of the site."""
        self.saves: set[str] = set()
        """What was saved and has not been renamed."""

    def audit(self, event: str, args: Args) -> None:
        if self.session.quiet:
            return
        if event == "open":
            if not isinstance(args[2], int):
                return
            if not args[2] & (os.O_WRONLY | os.O_RDWR):
                self._reads(args[0])
                return
            path, mode = args[0], "append" if args[2] & os.O_APPEND else "write"
        elif event in ("fcntl.flock", "fcntl.lockf"):
            self.session.waited = True
            return
        elif event == "os.rename":
            path, mode = args[1], "rename"
            self._renamed(args[0], path)
        else:
            return
        if not self.busy and isinstance(path, (str, bytes, os.PathLike)) and os.getpid() == self.pid:
            self.busy += 1
            guarded(self.session.fault, "files", self._write, path, mode)
            self.busy -= 1

    def _write(self, path: Named, mode: str) -> None:
        where = self.absolute(path)
        if where.startswith(self.elsewhere) or ".pyc" in where:
            return
        self.told[where] = self.told.get(where, 0) + 1
        if self.told[where] <= _TOLD:
            self.session.emit(protocol.Write(path=where, mode=mode, site=self.session.here()))

    def _reads(self, path: Handed) -> None:
        if self.busy or self.reads >= _READ or not isinstance(path, str) or path.endswith(_NO_DATA):
            return
        if os.getpid() == self.pid:
            self.busy += 1
            guarded(self.session.fault, "files", self._read, path)
            self.busy -= 1

    def _read(self, path: str) -> None:
        self.reads += 1
        site = self.session.here()
        if self.read_at.get(site.number, 0) >= _PATHS:
            return
        where = self.absolute(path)
        if not where.startswith(self.elsewhere) and self.session.sites.kind(where) == SCRIPT:
            self.read_at[site.number] = self.read_at.get(site.number, 0) + 1
            self.session.emit(protocol.Read(path=where, site=site, waited=self.session.waited))

    def _renamed(self, former: Handed, path: Handed) -> None:
        """Tells the new name of what was saved, be it a file or a folder of files."""
        if self.saves and isinstance(former, (str, bytes, os.PathLike)) and isinstance(path, (str, bytes, os.PathLike)):
            guarded(self.session.fault, "files", self._tell_renamed, former, path)

    def _tell_renamed(self, former: Named, path: Named) -> None:
        source = self.absolute(former)
        if any(each == source or each.startswith(source + os.sep) for each in self.saves):
            self.saves = {each for each in self.saves if each != source and not each.startswith(source + os.sep)}
            self.session.emit(protocol.Renamed(source=source, path=self.absolute(path)))

    def absolute(self, path: Named) -> str:
        return os.path.realpath(os.path.abspath(os.fsdecode(path))).removeprefix(self.session.scratch)

    def follow(self, module: Module) -> None:
        """Sees what safetensors writes, which opens its files outside of Python."""
        around(module, "save_file", self.session.fault, self.saving, self.saved, self.failed)
        around(module, "load_file", self.session.fault, lambda args, kwargs: self._reads(args[0]))

    def saving(self, args: Args, kwargs: Kwargs) -> str | None:
        self.busy += 1  # the file that it opens is told here
        state = args[0] if args else kwargs.get("obj", kwargs.get("tensors"))
        target = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
        if isinstance(target, (str, os.PathLike)):
            path: str | None = self.absolute(target)
        else:
            name = getattr(target, "name", None)
            path = self.absolute(name) if isinstance(name, str) else None
        held = list(self.dictionaries(state, ""))
        told = protocol.Save(
            path=path, tensors=sum(len(names) for _, names in held), twins=_twins(held),
            wrapped=sum(len(names) for _, names in held if _of_wrapper(names)), site=self.session.here(),
        )  # fmt: skip
        self.session.emit(told)
        if path is not None:
            self.saves.add(path)
        return path

    def saved(self, token: str | None, result: object) -> None:
        self.busy -= 1

    def failed(self, token: str | None, error: BaseException) -> None:
        self.busy -= 1
        self.session.emit(protocol.Unsaved(path=token))

    def dictionaries(self, state: object, key: str, depth: int = 0) -> Iterator[tuple[str, list[object]]]:
        """Each dictionary of tensors in what is saved: where it lies, as "ema.weights", and its tensors' names."""
        torch = self.session.torch
        if isinstance(state, torch.nn.Module):
            # Not its state_dict(): that of a sharded module is a collective.
            yield key, [name for name, _ in (*state.named_parameters(), *state.named_buffers())]
        if not isinstance(state, dict) or depth > 3:
            return
        names = [name for name, value in state.items() if isinstance(value, torch.Tensor)]
        if names:
            yield key, names
        for name, value in state.items():
            if isinstance(value, (dict, torch.nn.Module)):
                yield from self.dictionaries(value, f"{key}.{name}" if key else str(name), depth + 1)


def _of_wrapper(names: list[object]) -> bool:
    return all(isinstance(name, str) and name.startswith("module.") for name in names)


def _twins(dictionaries: list[tuple[str, list[object]]]) -> list[protocol.Twins]:
    """Dictionaries of one file that hold the same names but for ``module.`` in front of all of them; one of the two may
    leave some out, as an average of parameters leaves out buffers.

    An optimizer's, which has a state for each number, are left out.
    """
    found: list[protocol.Twins] = []
    seen: list[tuple[str, bool, frozenset[str]]] = []
    for key, names in dictionaries:
        if len(names) < 2 or any(part.isdigit() for part in key.split(".")):
            continue
        wrapped = _of_wrapper(names)
        bare = frozenset(str(name)[len("module.") :] if wrapped else str(name) for name in names)
        for former, before, others in seen:
            few, many = sorted((bare, others), key=len)
            if few <= many and 2 * len(few) >= len(many):
                found.append(protocol.Twins(key, wrapped, former, before, len(few)))
                break
        else:
            seen.append((key, wrapped, bare))
        if len(seen) + len(found) >= _DICTIONARIES:
            break
    return found
