"""Where the script called: the frames outside of torch and of ours, each distinct stack sent once and numbered."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType

from .protocol import Event, Frame, NewSite, Site

_DEPTH = 8
"""Frames of a site, innermost first; loops of epochs and the function that calls them are within reach. Where all are a
library's, the script's line that called it is the last of them."""
SCRIPT, LIBRARY, HIDDEN = 0, 1, 2


class Sites:
    """Numbers stacks. ``emit`` takes the event of a new one."""

    def __init__(self, torch_home: str, start: str, emit: Callable[[Event], None]) -> None:
        self.start = start
        self.emit = emit
        self.hidden = (torch_home + os.sep, os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen", "<string>")
        standard = os.path.dirname(os.__file__) + os.sep
        self.library = (standard, os.path.realpath(standard) + os.sep)
        self.kinds: dict[str, int] = {}
        self.sites: dict[tuple[object, ...], Site] = {}
        self.codes: list[CodeType] = []

    def kind(self, filename: str) -> int:
        """Whether a file is the script's (and its modules'), a library's, or torch's and ours."""
        known = self.kinds.get(filename)
        if known is None:
            if filename.startswith((*self.hidden, "<")):
                known = HIDDEN
            elif filename.startswith(self.library) or "site-packages" in filename or "dist-packages" in filename:
                known = LIBRARY
            else:
                known = SCRIPT
            self.kinds[filename] = known
        return known

    def frames(self, frame: FrameType | None) -> tuple[list[FrameType], str]:
        """The frames to show, innermost first, and the function of torch that the innermost of them called."""
        found: list[FrameType] = []
        via = ""
        own = False
        while frame is not None and (len(found) < _DEPTH or not own):
            code = frame.f_code
            kind = self.kind(code.co_filename)
            own = own or kind == SCRIPT
            if kind == SCRIPT or (kind == LIBRARY and len(found) < _DEPTH):
                found.append(frame)
            elif not found and not code.co_filename.startswith(self.hidden[1]) and code.co_name not in _PLUMBING:
                via = code.co_name
            frame = frame.f_back
        return found, via

    def here(self) -> Site:
        """The stack that called into torch or into a patched function just now; about 2 us."""
        frames, via = self.frames(sys._getframe(1))
        key = (via, *((id(frame.f_code), frame.f_lineno) for frame in frames))
        site = self.sites.get(key)
        if site is None:
            stack = tuple(self.entry(frame) for frame in frames)
            site = self.sites[key] = Site(stack, via, len(self.sites))
            self.codes += [frame.f_code for frame in frames]  # kept: the key holds their ids
            self.emit(NewSite(site=site.number, via=via, stack=stack))
        return site

    def entry(self, frame: FrameType) -> Frame:
        """The line that a frame stands on."""
        path = frame.f_code.co_filename
        absolute = path if os.path.isabs(path) else os.path.join(self.start, path)
        line = frame.f_lineno or frame.f_code.co_firstlineno  # None between lines, as at the start of generated code
        return Frame(os.path.normpath(absolute), line, frame.f_code.co_name, self.kind(path) == LIBRARY)

    def called_by_torch(self) -> bool:
        """Whether the patched function that asks was called by torch itself."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (
            frame.f_code.co_filename.startswith(self.hidden[1])
            # What is laid round a function, as by torch._dynamo round `manual_seed` once it is imported.
            or (frame.f_code.co_name in _PLUMBING and self.kind(frame.f_code.co_filename) == HIDDEN)
        ):
            frame = frame.f_back
        return frame is not None and self.kind(frame.f_code.co_filename) == HIDDEN

    def within(self, part: str) -> bool:
        """Whether the script called into a file of torch with ``part`` in its path, on the way here."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self.kind(frame.f_code.co_filename) == HIDDEN:
            if part in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False


_PLUMBING = {
    "wrapper", "inner", "inner_func", "decorate_context", "_call_impl", "_wrapped_call_impl", "_fn", "__call__",
}  # fmt: skip
