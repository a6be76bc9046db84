"""What ranks that were run before have made: there for this one from where it has met them, as if all ran at once."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from ..patching import Args, Handed, around, guarded

if TYPE_CHECKING:
    from ..session import Session
    from .begin import Part
    from .world import World

MADE, HIDDEN = "made.jsonl", "hidden.json"
"""In the folder of the sources: what each rank has made, a line each as [path, calls of groups before it]; and what is
kept from this rank, as [where it lies, path, calls of groups before it]."""


class Files:
    """The files and folders that this process makes, and those that are kept from it."""

    def __init__(self, session: Session, world: World, part: Part) -> None:
        self.session, self.world, self.folder = session, world, part["folder"]
        self.pid = os.getpid()
        self.hidden: list[tuple[str, str, int]] = []

    def install(self) -> None:
        """Local."""
        try:
            with open(os.path.join(self.folder, HIDDEN), encoding="utf-8") as file:
                self.hidden = [(place, path, met) for place, path, met in json.load(file)]
        except FileNotFoundError:
            pass
        self.world.meeting.append(lambda: self.show(self.world.met))
        fault = self.session.fault
        around(time, "sleep", fault, lambda args, kwargs: self.show(sys.maxsize))  # it waits for another rank
        torch: Handed = self.session.torch
        saving = lambda args, kwargs: self._made(args[1] if len(args) > 1 else kwargs.get("f"))  # noqa: E731
        around(torch.serialization, "save", fault, saving)  # opened by C++
        torch.save = torch.serialization.save
        sys.addaudithook(self._audit)

    def show(self, met: int) -> None:
        """What was made before the others made so many calls of groups is there."""
        if self.hidden and os.getpid() == self.pid:
            now = [each for each in self.hidden if each[2] < met]
            self.hidden = [each for each in self.hidden if each[2] >= met]
            self.session.quiet = True
            for place, path, _ in now:
                put_back(place, path)
            self.session.quiet = False

    def _audit(self, event: str, args: Args) -> None:
        """Quick: it cannot be taken out again."""
        if self.session.quiet or os.getpid() != self.pid:
            return
        if event == "open":
            if isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
                guarded(self.session.fault, "made", self._made, args[0])
        elif event in ("os.mkdir", "os.rename"):
            guarded(self.session.fault, "made", self._made, args[event == "os.rename"])
        elif event in ("fcntl.flock", "fcntl.lockf"):
            self.show(sys.maxsize)

    def _made(self, path: Handed) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)) or os.getpid() != self.pid:
            return
        where = os.path.abspath(os.fsdecode(path))
        if where.startswith(("/dev/", "/proc/", self.folder)) or "__pycache__" in where or os.path.lexists(where):
            return
        self.session.quiet = True
        with open(os.path.join(self.folder, MADE), "a", encoding="utf-8") as file:
            file.write(json.dumps([where, self.world.met]) + "\n")
        self.session.quiet = False


def put_back(place: str, path: str) -> None:
    """What was kept, where it was; what is there by now, as what this rank has made, stays."""
    if os.path.isdir(place) and os.path.isdir(path):
        for name in os.listdir(place):
            put_back(os.path.join(place, name), os.path.join(path, name))
    elif os.path.lexists(place) and not os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
        shutil.move(place, path)
