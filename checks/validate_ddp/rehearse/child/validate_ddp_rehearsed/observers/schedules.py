"""Learning-rate schedules with an end: for how many steps they were made, and how many they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Kwargs, Numbering, around

if TYPE_CHECKING:
    from ..session import Session


def install(session: Session) -> None:
    """Local. Events ``schedule`` and ``scheduled``."""
    numbers = Numbering()
    module = session.torch.optim.lr_scheduler
    base = getattr(module, "LRScheduler", None) or module._LRScheduler

    def made(scheduler: object, result: object) -> None:
        steps = getattr(scheduler, "T_max", None) or getattr(scheduler, "total_steps", None)
        if isinstance(steps, (int, float)):
            number, kind = numbers.of(scheduler), type(scheduler).__name__
            session.emit(protocol.Schedule(schedule=number, kind=kind, steps=steps, site=session.here()))

    def stepped(args: Args, kwargs: Kwargs) -> None:
        number = numbers.get(args[0])
        if number is not None:
            session.emit(protocol.Scheduled(schedule=number))

    around(base, "__init__", session.fault, lambda args, kwargs: args[0], made)
    around(base, "step", session.fault, stepped)
