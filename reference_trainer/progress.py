"""What people see of a plan and of progress. Rich is imported here, once: it draws from Python's global generator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from .core.plan import Plan

if TYPE_CHECKING:
    from rich.table import Table


def grid(rows: Iterable[Sequence[Any]], *, styles: Sequence[str] = (), right: int = -1) -> Table:
    """Rows of cells without lines between them. right: the column that is set to the right. Local."""
    from rich.table import Table

    drawn = Table.grid(padding=(0, 2))
    for place, row in enumerate(rows):
        for column in range(len(row) if not place else 0):
            style = styles[column] if column < len(styles) else ""
            drawn.add_column(style=style, justify="right" if column == right else "left")
        drawn.add_row(*row)
    return drawn


def table(plan: Plan, steps_per_second: float | None = None) -> Table:
    """The plan for people: name, value, where it comes from. steps_per_second: for the duration. Local."""
    effective = f"{plan.batch_size} a rank x {_many(plan.world_size, 'rank')} x "
    rows: list[tuple[str, int | str, str]] = [
        ("samples per epoch", plan.positions, f"{plan.samples:,} x {plan.repeat}" if plan.repeat > 1 else ""),
        ("effective batch size", plan.effective_batch_size, effective + _many(plan.accumulation, "micro-step")),
        ("samples per rank", plan.samples_per_rank, "in an epoch"),
        ("padded", plan.padded, "in an epoch: seen once more, to fill its last batch" if plan.padded else ""),
        ("dropped", plan.dropped, "in an epoch: not seen" if plan.dropped else ""),
        ("micro-steps per epoch", plan.micro_steps_per_epoch, "on each rank"),
        ("optimizer steps per epoch", plan.optimizer_steps_per_epoch, ""),
        ("optimizer steps", plan.optimizer_steps, f"{plan.epochs:.4g} epochs"),
        ("learning rate", f"{plan.lr:.6g}", "at its peak"),
    ]
    if steps_per_second is not None:
        seconds = duration(plan.optimizer_steps / steps_per_second)
        rows.append(("duration", seconds, f"at {steps_per_second:g} optimizer steps a second"))
    shown = [(name, value if isinstance(value, str) else f"{value:,}", note) for name, value, note in rows]
    return grid(shown, styles=("", "bold", "dim"), right=1)


def duration(seconds: float) -> str:
    """Such as "2 d 03:04:05", "03:04:05"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days} d ' if days else ''}{hour:02}:{minute:02}:{second:02}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def console(file: Any = None, *, stderr: bool = False) -> Console:
    """Where people read: colours on a terminal only, and none under NO_COLOR; elsewhere 120 columns. Local."""
    made = Console(file=file, stderr=stderr, highlight=False, soft_wrap=True)
    return made if made.is_terminal else Console(file=made.file, highlight=False, soft_wrap=True, width=120)


class Progress:
    """Optimizer steps done of all. Local; silent where it is not ``shown``. NO_COLOR is honoured."""

    def __init__(self, total: int, *, shown: bool, file: Any = None) -> None:
        self.total = total
        self._console = console(file, stderr=file is None)
        self._console.quiet, self._terminal = not shown, shown and self._console.is_terminal
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Bar(*columns, console=self._console, disable=not self._terminal)
        self._task = self._bar.add_task("step", total=total, note="")
        self.start, self.stop = self._bar.start, self._bar.stop

    def print(self, *what: RenderableType) -> None:
        for each in what:
            self._console.print(each, markup=False)

    def step(self, step: int, metrics: dict[str, float], *, lr: float, samples_per_second: float) -> None:
        tail = f"lr {lr:.3g}  {samples_per_second:,.0f} samples/s"
        if self._terminal:
            loss = {name: value for name, value in metrics.items() if name == "loss"}
            self._bar.update(self._task, completed=step, note=f"{_shown(loss)}  {tail}")
        else:
            shown = _shown(metrics) or "no step was taken"
            self.print(f"step {step:>{len(str(self.total))}}/{self.total}  {shown}  {tail}")

    def evaluation(self, step: int, data: str, metrics: dict[str, float]) -> None:
        self.print(f"step {step:>{len(str(self.total))}}/{self.total}  {data}: {_shown(metrics)}")


def _shown(metrics: dict[str, float]) -> str:
    names = sorted(metrics, key=lambda name: (name != "loss", name))
    return "  ".join(f"{name} {metrics[name]:.4g}" for name in names)
