"""Curves of a run, drawn from the log of rank zero. matplotlib is imported when a picture is wanted."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from .records import log_path, read_log

__all__ = ["curves", "plot_run"]

_COLUMNS = 3
_COLORS = {"training": "#4878a8", "validation": "#e08a2e", "test": "#b03a48"}

Curves = dict[str, dict[str, list[tuple[int, float]]]]
"""Metric, data ("training", "validation", "test"), points of (optimizer step, value)."""


def plot_run(folder: Path) -> Path | None:
    """Writes RUN/curves.png and returns its path; None where matplotlib is missing or nothing was logged.

    Rank zero only.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    found = curves(folder)
    if not found:
        return None
    rows = -(-len(found) // _COLUMNS)
    # Without pyplot: a figure of its own is drawn by Agg, whatever the environment says of screens.
    figure = Figure(figsize=(4.2 * _COLUMNS, 2.7 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for panel, (name, lines) in zip(panels, found.items(), strict=False):
        _panel(panel, name, lines)
    for panel in panels[len(found) :]:
        panel.set_visible(False)
    path = folder / "curves.png"
    figure.savefig(path, dpi=110)
    return path


def curves(folder: Path) -> Curves:
    """What there is to draw: the loss first, then the other metrics, then what belongs to the optimizer. Local."""
    found: Curves = defaultdict(lambda: defaultdict(list))
    for record in read_log(log_path(folder, 0)):
        if record["kind"] == "event":
            continue
        training = record["kind"] == "interval"
        beside = {name: record[name] for name in ("lr", "samples_per_second")} if training else {}
        for name, value in {**record["metrics"], **beside}.items():
            found[name]["training" if training else record["data"]].append((record["step"], value))
    last = ("grad_norm", "lr", "samples_per_second")
    order = sorted(found, key=lambda name: (name != "loss", name in last, name))
    return {name: {data: list(points) for data, points in found[name].items()} for name in order}


def _panel(panel: Any, name: str, lines: dict[str, list[tuple[int, float]]]) -> None:
    """One metric: training as a line, evaluations as points on it."""
    for data, points in lines.items():
        # A value that is not finite would take the whole axis with it: the line has a gap there.
        steps = [step for step, _ in points]
        values = [value if math.isfinite(value) else math.nan for _, value in points]
        marker = "" if data == "training" and len(points) > 1 else "o"
        line = "-" if len(points) > 1 else "none"
        color = _COLORS.get(data, "#555555")
        panel.plot(steps, values, line, marker=marker, markersize=4, linewidth=1.4, color=color, label=data)
    panel.set_title(name.replace("_", " "), fontsize=10)
    panel.set_xlabel("optimizer step", fontsize=8)
    panel.tick_params(labelsize=8)
    panel.margins(x=0.02)
    panel.grid(alpha=0.25)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    if len(lines) > 1:
        panel.legend(fontsize=7, frameon=False)
