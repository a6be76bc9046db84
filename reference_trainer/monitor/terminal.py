"""`reference-trainer status`: how a run is doing, or how well several scale. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..progress import columns, duration
from ..records import as_json, log_path, read_log
from .reading import MonitorError, read_run


def scaling(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """How fast each run is, also against the one on the fewest ranks: `speedup`, of samples a second, and `efficiency`,
    of samples a second and rank (1 is perfect). ``MonitorError`` where one cannot be read. Local."""
    rates = sorted((rate(folder) for folder in folders), key=lambda each: int(each["world_size"]))
    for each in rates:
        each["speedup"] = each["samples_per_second"] / rates[0]["samples_per_second"]
        each["efficiency"] = each["speedup"] * rates[0]["world_size"] / each["world_size"]
    return rates


def rate(folder: Path) -> dict[str, Any]:
    """How fast the run in ``folder`` was since its last start, without its first interval, in which it starts up:
    ``MonitorError`` where there is no other. Local."""
    path, plan, intervals = log_path(folder, 0), dict[str, Any](), list[dict[str, Any]]()
    try:
        for record in read_log(path):
            if record.get("event") == "plan":
                plan, intervals = record, []
            elif record.get("kind") == "interval":
                intervals.append(record)
        seconds = sum(each["seconds"] for each in intervals[1:])
        samples = sum(each["samples_per_second"] * each["seconds"] for each in intervals[1:])
        found = {"name": folder.resolve().name, "world_size": plan["world_size"]}
        found["global_batch"] = plan["batch_size"] * plan["accumulation"] * plan["world_size"]
        found["samples_per_second"] = samples / seconds
    except (OSError, KeyError, TypeError) as error:
        raise MonitorError(f"{path} is no log of this trainer, or cannot be read: {error}") from error
    except ZeroDivisionError:
        told = "has no second interval yet: the first, in which a run starts up, says nothing about its rate"
        raise MonitorError(f"{path} {told}") from None
    return found | {"steps": sum(each["steps"] for each in intervals[1:])}


def show(folders: Sequence[Path], *, json: bool) -> bool:
    """Prints the status, or the comparison of several; returns whether all is well. Local."""
    status, *_ = [read_run(folder) for folder in folders]
    if len(folders) > 1:
        runs = scaling(folders)
        print(as_json({"runs": runs}).decode().rstrip() if json else _compared(runs))
        return True
    print(as_json(status).decode().rstrip() if json else _shown(status))
    return status["state"] not in ("failed", "stale")


def _compared(runs: Sequence[dict[str, Any]]) -> str:
    rows = ["run,ranks,global batch,samples/s,a rank,speed-up,efficiency,steps".split(",")]
    for each in runs:
        fast, many = each["samples_per_second"], each["world_size"]
        row = [each["name"], str(many), f"{each['global_batch']:,}", f"{fast:,.0f}", f"{fast / many:,.1f}"]
        rows.append([*row, f"{each['speedup']:.2f}", f"{100 * each['efficiency']:.1f} %", f"{each['steps']:,}"])
    return columns(rows, range(1, 8))


def _shown(status: dict[str, Any]) -> str:
    """Everything that is known of a run."""
    done = "" if status["percentage"] is None else f" ({status['percentage']:.1f} %)"
    facts = {
        "step": f"{_number(status['step'])} of {_number(status['total'])}{done}",
        "elapsed": "-" if status["elapsed"] is None else duration(status["elapsed"]),
        "left": "-" if status["eta"] is None else duration(status["eta"]),
        "ranks": f"{_number(status['world_size'])}, {_number(status['launcher'])}",
    }
    known = {name: status[name] for name in ("step_seconds", "samples_per_second", "lr")} | status["metrics"]
    facts |= {name.replace("_", " "): _number(value) for name, value in known.items()}
    for data, each in status["evaluations"].items():
        for name, value in each["metrics"].items():
            facts[f"{data} {name}".replace("_", " ")] = f"{_number(value)} at step {each['step']:,}"
    rows = ["rank,state,step,heartbeat,host,device,CPU,memory,busy,GPU memory".split(",")]
    for rank in status["ranks"]:
        used = rank["usage"]
        age = "-" if rank["age"] is None else f"{rank['age']:.0f} s ago"
        where = f"{_number(rank['host'])} ({_number(rank['pid']).replace(',', '')})"
        row = [str(rank["rank"]), rank["state"], _number(rank["step"]), age, where, _number(rank["device"])]
        row += [_percent(used.get("cpu_percent")), _mib(used.get("memory_bytes")), _percent(used.get("device_percent"))]
        memory = [_mib(used.get(f"device_{name}_bytes")) for name in ("memory", "total")]
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
