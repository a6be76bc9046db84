"""What the script says of its batch size, by ``print`` or ``logging``; what it prints is not touched."""

from __future__ import annotations

import builtins
import logging
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Original, guarded, patch

if TYPE_CHECKING:
    from ..session import Session

_TOLD, _LONGEST = 32, 300
"""Events of a run, and characters of a line."""


def install(session: Session) -> None:
    """Local. Event ``claim``: lines that name a batch size and the word effective, global or total."""
    observer = _Claims(session)

    def printing(original: Original) -> Original:
        def printed(*args: object, **kwargs: object) -> object:
            for each in args:
                if type(each) is str and "batch" in each.lower():
                    guarded(session.fault, "claims", observer.printed, args)
                    break
            return original(*args, **kwargs)

        return printed

    def handling(original: Original) -> Original:
        def handled(logger: object, record: logging.LogRecord) -> object:
            if type(record.msg) is str and "batch" in record.msg.lower():
                guarded(session.fault, "claims", observer.logged, record)
            return original(logger, record)

        return handled

    patch(builtins, "print", printing)
    patch(logging.Logger, "handle", handling)


class _Claims:
    """The lines told so far, so that each is told once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.told: set[str] = set()

    def printed(self, args: tuple[object, ...]) -> None:
        # What is no number or text stays what it is: to write it out could be slow, or do something.
        self.said(" ".join(str(each) if type(each) in (str, int, float) else "?" for each in args))

    def logged(self, record: logging.LogRecord) -> None:
        self.said(record.getMessage())

    def said(self, text: str) -> None:
        for line in text.splitlines():
            words = line.lower()
            if "batch" not in words or not any(word in words for word in ("effective", "global", "total")):
                continue
            line = line.strip()[:_LONGEST]
            if line in self.told or len(self.told) >= _TOLD or self.session.sites.called_by_torch():
                continue
            self.told.add(line)
            self.session.emit(protocol.Claim(text=line, site=self.session.here()))
