"""`reference-trainer status`: how a run is doing, or how well several scale. Torch-free."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..progress import columns, duration
from ..records import as_json, log_path, read_log
from ..settings import flat
from .reading import MonitorError, read_run

_NOT_SPEED = tuple("run_dir log. log_every checkpoint. seed steps epochs global_batch batch_size optim.lr".split())
"""In settings that begin so runs may differ and still be compared; of batches the plan counts."""


@dataclass(frozen=True)
class Rate:
    """How fast a run was since its last start, also against the one on the fewest ranks."""

    name: str
    world_size: int
    global_batch: int  # Samples of an optimizer step.
    samples_per_second: float  # Over all ranks, without the first interval, in which it starts up.
    steps: int  # Optimizer steps that this was measured over.
    with_start: bool  # There was one interval only: its start-up is in it.
    speedup: float | None = None  # Samples a second, over the other's; None where it is ``unknown``.
    efficiency: float | None = None  # Samples a second and rank, over the other's: 1 is perfect; None as well.
    unknown: str = ""  # Why: the two are not alike, or one has a single interval, which says how long its start took.


def scaling(folders: Sequence[Path]) -> list[Rate]:
    """The runs by their number of ranks, the first as measure. ``MonitorError`` where one cannot be read. Local."""
    rates = sorted(((rate(folder), settings(folder)) for folder in folders), key=lambda each: each[0].world_size)
    first, found = rates[0][0], []
    for each, config in rates:
        unlike = [name for name in {**rates[0][1], **config} if config.get(name) != rates[0][1].get(name)]
        # The whole batch is the same, or each rank's share of it: else a step is other work.
        shares = first.global_batch * each.world_size == each.global_batch * first.world_size
        if not (shares or each.global_batch == first.global_batch):
            unlike.append("global_batch")
        if unlike:
            found.append(replace(each, unknown=f"not alike: {', '.join(unlike)}"))
        elif first.with_start or each.with_start:
            found.append(replace(each, unknown="one interval"))
        else:
            faster = each.samples_per_second / first.samples_per_second
            found.append(replace(each, speedup=faster, efficiency=faster * first.world_size / each.world_size))
    return found


def rate(folder: Path) -> Rate:
    """How fast the run in ``folder`` was. ``MonitorError`` where it has not logged it. Local."""
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
    except (OSError, KeyError, TypeError) as error:
        raise MonitorError(f"{path} is no log of this trainer, or cannot be read: {error}") from error
    except ZeroDivisionError:
        raise MonitorError(f"{path} has no interval yet: the rate is not known before `log_every` steps") from None
    return Rate(folder.resolve().name, size, batch, speed, steps, with_start=len(intervals) == 1)


def settings(folder: Path) -> dict[str, Any]:
    """The settings of a run that have to do with its speed. Local."""
    try:
        config = flat(json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise MonitorError(f"{folder / 'config.json'} cannot be read: {error}") from error
    return {name: value for name, value in config.items() if not name.startswith(_NOT_SPEED)}


def show(folders: Sequence[Path], *, as_json: bool) -> bool:
    """Prints the status, or the comparison of several; returns whether all is well. Local."""
    status, *_ = [read_run(folder) for folder in folders]
    if len(folders) > 1:
        runs = scaling(folders)
        print(as_json_text({"runs": list(map(dataclasses.asdict, runs))}) if as_json else _compared(runs))
        return True
    print(as_json_text(status) if as_json else _shown(status))
    return status["state"] not in ("failed", "stale")


def as_json_text(value: Any) -> str:
    return as_json(value).decode().rstrip()


def _compared(runs: Sequence[Rate]) -> str:
    rows = ["run,ranks,global batch,samples/s,a rank,speed-up,efficiency,steps".split(",")]
    for each in runs:
        fast, many = each.samples_per_second, each.world_size
        row = [each.name, str(many), f"{each.global_batch:,}", f"{fast:,.0f}", f"{fast / many:,.1f}"]
        row.append("-" if each.speedup is None else f"{each.speedup:.2f}")
        row.append(each.unknown if each.efficiency is None else f"{100 * each.efficiency:.1f} %")
        rows.append([*row, f"{each.steps:,}{', with its start' * each.with_start}"])
    return columns(rows, range(1, 8))


def _shown(status: dict[str, Any]) -> str:
    """Everything that is known of a run."""
    known = {name: _number(status[name]) for name in ("step_seconds", "samples_per_second", "lr")}
    done = "" if status["percentage"] is None else f" ({status['percentage']:.1f} %)"
    facts = {
        "step": f"{_number(status['step'])} of {_number(status['total'])}{done}",
        "elapsed": "-" if status["elapsed"] is None else duration(status["elapsed"]),
        "left": "-" if status["eta"] is None else duration(status["eta"]),
        "ranks": f"{_number(status['world_size'])}, {_number(status['launcher'])}",
        **{name.replace("_", " "): value for name, value in known.items()},
        **{name.replace("_", " "): _number(value) for name, value in status["metrics"].items()},
    }
    for data, each in status["evaluations"].items():
        for name, value in each["metrics"].items():
            facts[f"{data} {name}".replace("_", " ")] = f"{_number(value)} at step {each['step']:,}"
    rows = ["rank,state,step,heartbeat,host,device,CPU,memory,busy,GPU memory".split(",")]
    for rank in status["ranks"]:
        used = rank["usage"]
        memory = [_mib(used.get(f"device_{name}_bytes")) for name in ("memory", "total")]
        age = "-" if rank["age"] is None else f"{rank['age']:.0f} s ago"
        where = f"{_number(rank['host'])} ({_number(rank['pid']).replace(',', '')})"
        row = [str(rank["rank"]), rank["state"], _number(rank["step"]), age, where, _number(rank["device"])]
        row += [_percent(used.get("cpu_percent")), _mib(used.get("memory_bytes")), _percent(used.get("device_percent"))]
        rows.append([*row, " of ".join(memory) if used.get("device_total_bytes") else "-"])
    head = f"{status['name']}  {status['state']}{': ' * bool(status['message'])}{status['message']}"
    return "\n".join([head, columns(facts.items()), "", columns(rows, {0, 2, 3, 6, 7, 8, 9}), *status["problems"]])


def _number(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**20:,.0f} MiB"
