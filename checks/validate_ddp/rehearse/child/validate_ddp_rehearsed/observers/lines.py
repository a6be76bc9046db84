"""Which lines of the script change some tensors: seen line by line, for as long as one step takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Handed, guarded
from ..sites import SCRIPT

if TYPE_CHECKING:
    from types import FrameType

    from torch import Tensor

    from ..session import Session

_LINES, _NUMBERS = 4000, 1 << 22
"""Lines that are looked at, in tensors of so many numbers."""

Tracer = Callable[["FrameType", str, Handed], Handed]


class Lines:
    """Looks on from its start to its end. A debugger, or what counts lines, goes before it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.model = -1
        self.tensors: Callable[[], dict[int, Tensor]] | None = None
        self.left = 0
        self.frames: list[FrameType] = []
        self.before: list[int | None] = []
        self.last: protocol.Frame | None = None

    def start(self, model: int, tensors: Callable[[], dict[int, Tensor]]) -> None:
        """From now on, where nobody else looks. tensors: of a model, by place, as they are now: a line may put others
        there."""
        found = tensors()
        few = sum(each.numel() for each in found.values()) <= _NUMBERS
        if not found or not few or self.tensors or sys.gettrace() is not None:
            return
        self.model, self.tensors, self.left, self.last = model, tensors, _LINES, None
        self.before = self.session.digests(list(found.values()))
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._is_own(frame) and frame.f_trace is None:
                self.frames.append(frame)
                frame.f_trace = self._stepped
                self.last = self.last or self.session.sites.entry(frame)
            frame = frame.f_back
        sys.settrace(self._entered)

    def stop(self) -> None:
        """Looks no more."""
        if self.tensors:
            if sys.gettrace() == self._entered:
                sys.settrace(None)
            for frame in self.frames:
                frame.f_trace = None
            self.frames, self.tensors = [], None

    def _is_own(self, frame: FrameType) -> bool:
        return self.session.sites.kind(frame.f_code.co_filename) == SCRIPT

    def _entered(self, frame: FrameType, event: str, value: object) -> Tracer | None:
        return self._stepped if self.tensors and self._is_own(frame) else None

    def _stepped(self, frame: FrameType, event: str, value: object) -> Tracer | None:
        """Before a line, and when a function returns: what has changed was changed by the line before."""
        guarded(self.session.fault, "lines", self._look, frame, event)
        return self._stepped if self.tensors else None

    def _look(self, frame: FrameType, event: str) -> None:
        self.left -= 1
        if not self.tensors:
            return
        found = self.tensors()
        now = self.session.digests(list(found.values()))
        changed = [place for place, one, two in zip(found, self.before, now, strict=False) if one != two]
        if changed and self.last is not None:
            self.session.emit(protocol.Changed(model=self.model, places=changed, line=self.last))
        self.before = now
        if event == "line":
            self.last = self.session.sites.entry(frame)
        if self.left <= 0:
            self.stop()
