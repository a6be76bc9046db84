"""The process group of a large world, of which one process is a rank: groups of the fake backend, stores of its own."""

from __future__ import annotations

import datetime
import inspect
import os
import pickle
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Handed, Original, everywhere, patch
from . import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

    from ..session import Session
    from .begin import Part

_LONGEST = 1 << 20
"""Bytes of a broadcast that are kept for ranks that are run later."""


class World:
    """Which groups there are, and what the sources of broadcasts gave. size: of all ranks, once they are joined."""

    def __init__(self, session: Session, part: Part) -> None:
        self.session, self.part = session, part
        self.dist = session.torch.distributed
        self.c10d = self.dist.distributed_c10d
        self.known: dict[int, tuple[ProcessGroup, str, list[int], int, int]] = {}
        self.counts: dict[str, int] = {}
        self.met = 0
        """Calls of groups that this rank has made."""
        self.meeting: list[Callable[[], None]] = []
        """Called at each of them."""
        self.per_node = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)

    def install(self) -> None:
        """Local. Patches what joins and makes groups, and stores."""
        from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

        stubs: dict[int, object] = {}
        for name in ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"):
            original = getattr(self.dist, name, None)
            if original is not None:
                patch(self.dist, name, self._joined if name == "init_process_group" else self._made)
                stubs[id(original)] = getattr(self.dist, name)
        original = self.dist.get_backend
        patch(self.dist, "get_backend", self._named_as_real)
        stubs[id(original)] = self.dist.get_backend
        for name in ("TCPStore", "FileStore"):
            stubs[id(getattr(self.dist, name))] = self._store
            setattr(self.dist, name, self._store)
        everywhere(stubs)
        self._told_short()
        counted.install(self)

    def _store(self, *args: object, **kwargs: object) -> Handed:
        """A store of this rank alone. A key that another rank would set ends it, with the store's own exception."""
        store = self.dist.HashStore()
        store.set_timeout(datetime.timedelta(seconds=1))
        return store

    def _joined(self, original: Original) -> Original:
        names = list(inspect.signature(inspect.unwrap(original)).parameters)

        def init_process_group(*args: object, **kwargs: object) -> object:
            given = dict(zip(names, args, strict=False)) | kwargs
            rank, size = (
                number if isinstance(number := given.get(name), int) and number >= 0 else int(os.environ[variable])
                for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE"))
            )
            self.session.note("one process stands for a rank: nobody answers it, and what is assumed is not true")
            return original(backend="fake", store=self._store(), rank=rank, world_size=size)

        return init_process_group

    def _made(self, original: Original) -> Original:
        takes = "backend" in inspect.signature(inspect.unwrap(original)).parameters

        def group(*args: object, **kwargs: object) -> object:
            args = tuple("fake" if isinstance(each, str) and each in _BACKENDS else each for each in args)
            if takes and not any(each == "fake" for each in args if isinstance(each, str)):
                kwargs["backend"] = "fake"
            return original(*args, **kwargs)

        return group

    def _named_as_real(self, original: Original) -> Original:
        """The script, and torch's meshes, go on as in a rehearsal of real ranks."""

        def get_backend(*args: object, **kwargs: object) -> object:
            found = original(*args, **kwargs)
            return self.dist.Backend.GLOO if found == "fake" else found

        return get_backend

    def _told_short(self) -> None:
        """Events name the members of a group that are run: all of them would be thousands of numbers a call."""
        session, group_name = self.session, self.group

        def short(group: ProcessGroup | None) -> tuple[str, list[int]] | None:
            found = group_name(group)
            return None if found is None else (found[0], found[1])

        session.named = short

    def group(self, group: ProcessGroup | None) -> tuple[str, list[int], int, int] | None:
        """A group's name, those of its members that are run, how many it has, and on how many nodes; None where this
        rank is in none."""
        try:
            if group is None or group is self.c10d.GroupMember.WORLD:
                group = self.c10d._get_default_group()
            held = self.known.get(id(group))
            if held is None or held[0] is not group:
                members = self.c10d.get_process_group_ranks(group)
                run = [rank for rank in self.part["ranks"] if rank in set(members)]
                nodes = len({rank // self.per_node for rank in members})
                held = (group, str(self.c10d._get_process_group_name(group)), sorted(run), len(members), nodes)
                self.known[id(group)] = held
            return held[1:]
        except (ValueError, KeyError, TypeError, RuntimeError, AttributeError):
            return None

    def size(self, group: ProcessGroup | None) -> int:
        """Members of a group; 1 where this rank is not in it."""
        found = self.group(group)
        return 1 if found is None else found[2]

    def meet(self) -> None:
        """This rank makes a call that others make too."""
        self.met += 1
        for each in self.meeting:
            each()

    def moved(self, kind: str, count: int, group: ProcessGroup | None) -> None:
        """Tells of a call and its bytes."""
        self.meet()
        found = self.group(group)
        if found is not None:
            told = protocol.Moved(op=kind, bytes=count, group=found[0], size=found[2], nodes=found[3])
            self.session.emit(told)

    def broadcast(self, group: ProcessGroup | None, source: object, own: Handed) -> tuple[bool, Handed]:
        """What the source gave at this broadcast of the group, and whether it is known; the source leaves its own."""
        found = self.group(group)
        if found is None:
            return False, None
        count = self.counts[found[0]] = self.counts.get(found[0], 0) + 1
        name = "".join(letter if letter.isalnum() else "_" for letter in found[0])[:80]
        path = os.path.join(self.part["folder"], f"{name}-{count}")
        if source == self.dist.get_rank():
            try:
                data = pickle.dumps(own)
            except Exception:  # noqa: BLE001 - whatever an object of the script raises; the others keep their own
                return True, own
            if len(data) <= _LONGEST:
                with open(path, "wb") as file:
                    file.write(data)
            return True, own
        if not os.path.exists(path):
            return False, None
        with open(path, "rb") as file:
            return True, pickle.load(file)  # noqa: S301 - of this script, in this run


_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "cpu:gloo,cuda:nccl")
