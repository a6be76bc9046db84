"""How long a run will still take: the smoothed time of a step, and of what comes between steps. Torch-free, no clock.

The first step after a start is left out: it waits for workers, kernels and caches. What comes between steps
(evaluations, saves) is not part of a step; once one was seen, those that are still to come are added. The evaluation
after the last step is on other data, and is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Eta", "Smoothed"]

SMOOTHING = 0.02
"""Weight of a new step: the average forgets in some fifty, which evens out steps that wait for the loader."""
_PAUSES = 0.3
"""Weight of a new evaluation or save: there are few."""


class Smoothed:
    """An exponentially weighted mean without a bias to its beginning: at first the plain mean, then that of the last
    ``1 / weight`` values or so. Local."""

    def __init__(self, weight: float = SMOOTHING) -> None:
        self._weight = weight
        self._sum = self._of = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self._sum += self._weight * (value - self._sum)
        self._of += self._weight * (1.0 - self._of)

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self._sum / self._of if self._of else None


class Eta:
    """Seconds to the end of ``total`` steps. Local.

    Every time is in seconds of one clock that does not jump. every: what comes between steps, and after how many.
    """

    def __init__(self, total: int, *, step: int = 0, every: Mapping[str, int] | None = None) -> None:
        self.total, self.step = total, step
        self._every = dict(every or {})
        self._pauses = {kind: Smoothed(_PAUSES) for kind in self._every}
        self._steps = Smoothed()
        self._since: float | None = None
        """When the step that is under way began; None for the first."""
        self._pause: tuple[str, float] | None = None

    def advance(self, now: float) -> None:
        """A step has ended."""
        if self._since is not None:
            self._steps.add(now - self._since)
        self.step, self._since = self.step + 1, now

    def pause(self, kind: str, now: float) -> None:
        """Something between steps begins."""
        self._pause = kind, now

    def resume(self, now: float) -> None:
        """It has ended."""
        if self._pause is None:
            return
        (kind, began), self._pause = self._pause, None
        self._pauses.setdefault(kind, Smoothed(_PAUSES)).add(now - began)
        if self._since is not None:
            self._since += now - began

    @property
    def step_seconds(self) -> float | None:
        """Of a step, smoothed; None before the second."""
        return self._steps.value

    def remaining(self, now: float) -> float | None:
        """Seconds from now to the end of the last step, and of what belongs to it; None before the second step."""
        # A heartbeat's thread asks while steps go on: each field is read once.
        each, since, pause, step = self.step_seconds, self._since, self._pause, self.step
        if each is None or since is None:
            return None
        left = (self.total - step) * each
        if pause is None:
            left -= min(max(now - since, 0.0), each)
        else:
            kind, began = pause
            left += max(self._mean(kind) - (now - began), 0.0)
        for kind, every in self._every.items():
            left += _to_come(step, self.total, every) * self._mean(kind)
        return max(left, 0.0)

    def _mean(self, kind: str) -> float:
        """Seconds of what comes between steps; 0 as long as it was not seen."""
        seen = self._pauses.get(kind)
        return (seen.value if seen else None) or 0.0


def _to_come(step: int, total: int, every: int) -> int:
    """How often something that happens every n steps, and at the last one, happens after ``step``."""
    if every <= 0 or step >= total:
        return 0
    return total // every - step // every + (total % every > 0)
