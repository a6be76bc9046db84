"""Learning-rate schedules: for how many steps they were made, where they tell, and how many they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Kwargs, Numbering, around, one_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..session import Session

_FAR = 1 << 22
"""A step that no run of a script comes to."""


def install(session: Session) -> None:
    """Local. Events ``schedule`` and ``scheduled``."""
    numbers = Numbering()
    module = session.torch.optim.lr_scheduler
    base = getattr(module, "LRScheduler", None) or module._LRScheduler

    def made(scheduler: object, result: object) -> None:
        steps = getattr(scheduler, "T_max", None) or getattr(scheduler, "total_steps", None)
        factors = getattr(scheduler, "lr_lambdas", None)
        if steps is None and factors:
            steps = over_after(factors[0])
        told = protocol.Schedule(
            schedule=numbers.of(scheduler), kind=type(scheduler).__name__, site=session.here(),
            steps=steps if isinstance(steps, (int, float)) else None,
            optimizer=_stepped_by(session, scheduler),
        )  # fmt: skip
        session.emit(told)

    def stepped(args: Args, kwargs: Kwargs) -> None:
        number = numbers.get(args[0])
        if number is not None:
            session.emit(protocol.Scheduled(schedule=number))

    def steered(args: Args, kwargs: Kwargs) -> None:
        metric = args[1] if len(args) > 1 else kwargs.get("metrics")
        value = float(metric) if isinstance(metric, (int, float)) else one_number(metric)
        number = numbers.get(args[0])
        if number is not None:
            session.emit(protocol.Scheduled(schedule=number, metric=value, site=session.here()))

    plateau = module.ReduceLROnPlateau
    for kind in (base, plateau):
        around(kind, "__init__", session.fault, lambda args, kwargs: args[0], made)
    around(base, "step", session.fault, stepped)
    around(plateau, "step", session.fault, steered)


def over_after(factor: Callable[[int], float]) -> int | None:
    """The step from which on a factor of the rate stays as low as it has come; None where it never does."""
    try:
        end = float(factor(_FAR))
        if any(float(factor(_FAR // part)) != end for part in (2, 3)):
            return None
        before, after = 0, _FAR
        while after - before > 1:
            at = (before + after) // 2
            before, after = (before, at) if float(factor(at)) == end else (at, after)
        return after if float(factor(before)) > end else None
    except Exception:  # noqa: BLE001 - a function of the script, at steps that it may not know
        return None


def _stepped_by(session: Session, scheduler: object) -> int | None:
    """The number of the optimizer whose rates a schedule sets, which Accelerate may have wrapped."""
    holder = scheduler
    for _ in range(3):
        holder = getattr(holder, "optimizer", None)
        number = session.optimizers.get(holder)
        if number is not None:
            return number
    return None
