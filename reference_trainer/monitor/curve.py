"""The loss of a run by its steps, as a picture for the page. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path

from ..records import log_path, numbers

WIDTH, HEIGHT = 640, 160
_FINEST = 2 * WIDTH  # Points; of more the eye sees none.


class Curve:
    """The losses that rank zero of a run logs; each look reads on where the last one ended."""

    def __init__(self, folder: Path) -> None:
        self.path = log_path(folder, 0)
        self.points: list[tuple[int, float]] = []
        self._end = 0

    def read(self) -> None:
        """Takes in the whole lines that have come. A run that goes on from an earlier step draws that part anew."""
        if not self.path.is_file():
            return
        with open(self.path, "rb") as file:
            if file.seek(0, 2) < self._end:  # another run writes here
                self.points, self._end = [], 0
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._end += len(line)
                if b'"interval"' in line:
                    self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            record = numbers(json.loads(line))
            step, loss = int(record["step"]), float(record["metrics"]["loss"])
        except (ValueError, TypeError, KeyError):
            return
        while self.points and self.points[-1][0] >= step:
            self.points.pop()
        if abs(loss) < float("inf"):
            self.points.append((step, loss))

    def svg(self) -> str:
        """The picture; empty where there is no line to draw yet."""
        shown = self.points[:: 1 + len(self.points) // _FINEST]
        if len(shown) < 2:
            return ""
        shown[-1] = self.points[-1]
        first, last = shown[0][0], shown[-1][0]
        low, high = min(loss for _, loss in shown), max(loss for _, loss in shown)
        across, up = WIDTH / (last - first), HEIGHT / ((high - low) or 1.0)
        line = " ".join(f"{(step - first) * across:.1f},{HEIGHT - (loss - low) * up:.1f}" for step, loss in shown)
        said = f"loss {high:.4g} to {low:.4g}, steps {first:,} to {last:,}; now {shown[-1][1]:.4g}"
        drawn = f'<polyline points="{line}" fill="none" stroke="currentColor" vector-effect="non-scaling-stroke"/>'
        box = f'viewBox="0 -2 {WIDTH} {HEIGHT + 4}" preserveAspectRatio="none"'
        style = f"width:100%;max-width:{WIDTH}px;height:{HEIGHT}px;display:block"
        picture = f'<svg {box} style="{style}" role="img" aria-label="{said}">{drawn}</svg>'
        return f'<figure style="margin:1em 0">{picture}<figcaption>{said}</figcaption></figure>'
