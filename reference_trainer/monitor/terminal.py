"""`reference-trainer status`: how a run is doing, or how well several scale. Torch-free."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..progress import console, duration, grid
from ..records import finite, log_path, read_log
from ..settings import flat
from .reading import MonitorError, RankStatus, RunStatus, read_run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_MAY_DIFFER = ("run_dir", "log.", "checkpoint.")
_NOT_SPEED = ("seed", "steps", "epochs", "global_batch", "batch_size", "log_every", "optim.lr")
"""In these runs may differ and still be compared; of batches the plan counts."""
_STYLES = {"finished": "green", "failed": "red", "stale": "yellow", "stopped": "yellow", "unknown": "dim"}
_NONE = "-"


def show(folders: Sequence[Path], *, as_json: bool) -> bool:
    """Prints the status; returns whether all is well. Local."""
    if len(folders) > 1:
        runs, unlike = scaling(folders), differences(folders)
        if as_json:
            found = {"runs": [dataclasses.asdict(each) for each in runs], "differences": unlike}
            print(json.dumps(finite(found), indent=2))
        else:
            console().print(_scaling_table(runs))
            print(*(f"not alike: {line}" for line in unlike), sep="\n", end="\n" * bool(unlike), file=sys.stderr)
        return True
    status = read_run(folders[0])
    if as_json:
        print(json.dumps(finite(dataclasses.asdict(status))), flush=True)
    else:
        console().print(shown(status))
    return status.state not in ("failed", "stale")


@dataclass(frozen=True)
class Rate:
    """How fast a run was, since its last start."""

    name: str
    world_size: int
    global_batch: int  # Samples of an optimizer step.
    samples_per_second: float  # Over all ranks, without the first interval, in which it starts up.
    steps: int  # Optimizer steps that this was measured over.
    with_start: bool  # There was one interval only: its start-up is in it.


@dataclass(frozen=True)
class Scaling:
    """A run against that on the fewest ranks."""

    rate: Rate
    speedup: float | None  # Samples a second, over the other's; None where it is ``unknown``.
    efficiency: float | None  # Samples a second and rank, over the other's: 1 is perfect; None as well.
    unknown: str = ""  # Why: the two are not alike, or one has a single interval, which says how long its start took.


def scaling(folders: Sequence[Path]) -> list[Scaling]:
    """The runs by their number of ranks, the first as measure. ``MonitorError`` where one cannot be read. Local."""
    rates = {folder: rate(folder) for folder in folders}
    ordered = sorted(rates, key=lambda folder: rates[folder].world_size)
    first, found = rates[ordered[0]], []
    for folder in ordered:
        each = rates[folder]
        unlike = any(line.partition(":")[0] not in _NOT_SPEED for line in differences([ordered[0], folder]))
        # The whole batch is the same, or each rank's share of it: else a step is other work.
        shares = first.global_batch * each.world_size == each.global_batch * first.world_size
        if unlike or not (shares or each.global_batch == first.global_batch):
            found.append(Scaling(each, None, None, "not alike"))
        elif first.with_start or each.with_start:
            found.append(Scaling(each, None, None, "one interval"))
        else:
            speedup = each.samples_per_second / first.samples_per_second
            found.append(Scaling(each, speedup, speedup * first.world_size / each.world_size))
    return found


def rate(folder: Path) -> Rate:
    """How fast the run in ``folder`` was. ``MonitorError`` where it has not logged it. Local."""
    read_run(folder)  # refuses what is no run
    path, plan, intervals = log_path(folder, 0), dict[str, Any](), list[dict[str, Any]]()
    try:
        for record in read_log(path):
            if record.get("event") == "plan":
                plan, intervals = record, []
            elif record.get("kind") == "interval":
                intervals.append(record)
        measured = intervals[1:] or intervals
        seconds = sum(each["seconds"] for each in measured)
        samples = sum(each["samples_per_second"] * each["seconds"] for each in measured)
        steps, size = sum(each["steps"] for each in measured), plan["world_size"]
        speed, batch = samples / seconds, plan["batch_size"] * plan["accumulation"] * size
    except OSError as error:
        raise MonitorError(f"{path} cannot be read: {error.strerror or error}") from error
    except (KeyError, TypeError) as error:
        raise MonitorError(f"{path} is no log of this trainer, or damaged: {error}") from error
    except ZeroDivisionError:
        raise MonitorError(f"{path} has no interval yet: the rate is not known before `log_every` steps") from None
    return Rate(folder.resolve().name, size, batch, speed, steps, with_start=len(intervals) == 1)


def differences(folders: Sequence[Path]) -> list[str]:
    """Settings in which the runs are not alike, a line each, but for where they are written and watched. Local."""
    configs = []
    for path in (folder / "config.json" for folder in folders):
        try:
            configs.append(flat(json.loads(path.read_bytes())))
        except (OSError, ValueError) as error:
            raise MonitorError(f"{path} cannot be read: {error}") from error
    return [
        f"{name}: {', '.join(str(config.get(name)) for config in configs)}"
        for name in dict.fromkeys(name for config in configs for name in config)
        if not name.startswith(_MAY_DIFFER) and any(config.get(name) != configs[0].get(name) for config in configs)
    ]


def shown(status: RunStatus) -> RenderableType:
    """Everything that is known of a run. Local."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble((status.name, "bold"), "  ", (status.state, f"bold {_STYLES.get(status.state, 'cyan')}"))
    parts: list[RenderableType] = [head.append(f"  {status.message}", "dim"), _facts(status)]
    for data, each in status.evaluations.items():
        metrics = "  ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in each["metrics"].items())
        parts.append(Text(f"{data} at step {each['step']:,}: {metrics}"))
    return Group(*parts, Text(), _ranks(status.ranks), *(Text(problem, "yellow") for problem in status.problems))


def _facts(status: RunStatus) -> Table:
    percentage = "" if status.percentage is None else f" ({status.percentage:.1f} %)"
    facts = {
        "step": _NONE if status.step is None else f"{status.step:,} of {status.total:,}{percentage}",
        "seconds a step": _number(status.step_seconds),
        "elapsed": _NONE if status.elapsed is None else duration(status.elapsed),
        "left": _NONE if status.eta is None else duration(status.eta),
        "learning rate": _number(status.lr),
        "samples/s": _number(status.samples_per_second),
        "ranks": _NONE if status.world_size is None else f"{status.world_size}, {status.launcher}",
        **{name.replace("_", " "): _number(value) for name, value in status.metrics.items()},
    }
    pairs = list(facts.items())
    return grid([sum(pairs[at : at + 2], ()) for at in range(0, len(pairs), 2)], styles=("dim", "bold", "dim", "bold"))


def _ranks(ranks: Sequence[RankStatus]) -> Table:
    from rich.text import Text

    rows = []
    for each in ranks:
        memory = [_bytes(value) for value in (each.device_memory_bytes, each.device_total_bytes) if value is not None]
        state, age = (
            Text(each.state, _STYLES.get(each.state, "cyan")),
            _NONE if each.age is None else f"{each.age:.0f} s ago",
        )
        where = _NONE if each.host is None else f"{each.host} ({each.pid})"
        used = [_number(each.cpu_percent, " %"), _bytes(each.memory_bytes), _number(each.device_percent, " %")]
        row = [f"{each.rank}", state, _number(each.step), age, where, each.device or _NONE, *used]
        rows.append([*row, " of ".join(memory) or _NONE])
    return _table("rank,state,step,heartbeat,host,device,CPU,memory,busy,GPU memory", rows, "state host device")


def _scaling_table(runs: Sequence[Scaling]) -> Table:
    rows = []
    for each in runs:
        rate, fast = each.rate, each.rate.samples_per_second
        row = [
            rate.name,
            f"{rate.world_size}",
            f"{rate.global_batch:,}",
            f"{fast:,.0f}",
            f"{fast / rate.world_size:,.1f}",
        ]
        row.append(_NONE if each.speedup is None else f"{each.speedup:.2f}")
        row.append(each.unknown if each.efficiency is None else f"{100 * each.efficiency:.1f} %")
        rows.append([*row, f"{rate.steps:,}{', with its start' * rate.with_start}"])
    return _table("run,ranks,global batch,samples/s,a rank,speed-up,efficiency,steps", rows, "run")


def _table(names: str, rows: Sequence[Sequence[Any]], left: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names.split(","):
        table.add_column(name, justify="left" if name in left.split() else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _number(value: float | None, unit: str = "") -> str:
    return _NONE if value is None else f"{value:.4g}{unit}"


def _bytes(value: float | None) -> str:
    power = 0 if not value else min(4, int(math.log2(max(value, 1)) / 10))
    return _NONE if value is None else f"{value / 1024**power:.3g} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}"
