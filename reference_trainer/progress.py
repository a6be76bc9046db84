"""What people see of a plan and of progress: plain lines. Torch-free."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from .core.plan import Plan


def columns(rows: Iterable[Sequence[object]], right: Container[int] = ()) -> str:
    """Rows of cells below each other. right: the columns that are set to the right. Local."""
    cells = [[str(each) for each in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    ways = [">" if at in right else "<" for at in range(len(widths))]
    lines = ([f"{each:{way}{wide}}" for each, way, wide in zip(row, ways, widths, strict=True)] for row in cells)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def table(plan: Plan, steps_per_second: float | None = None) -> str:
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
    return columns([(name, f"{each:,}" if isinstance(each, int) else each, why) for name, each, why in rows], {1})


def duration(seconds: float) -> str:
    """Such as "2 d 03:04:05", "03:04:05"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days} d ' if days else ''}{hour:02}:{minute:02}:{second:02}"


def shown(metrics: Mapping[str, float]) -> str:
    """On a line, the loss first."""
    names = sorted(metrics, key=lambda name: (name != "loss", name))
    return "  ".join(f"{name} {metrics[name]:.4g}" for name in names) or "no step was taken"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
