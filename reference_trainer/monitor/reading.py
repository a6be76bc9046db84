"""What the heartbeats of a run say and how old they are, how runs scale, and what a terminal shows. Torch-free."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core import ConfigError
from ..launch import LOST
from ..progress import columns, duration
from .records import ENDED, STATES, as_json, log_path, numbers, read_log

STALE_AFTER = 3  # Heartbeats that a rank may be late before it is called stale.
_OF_THE_RUN = "step total elapsed step_seconds metrics lr samples_per_second evaluations world_size launcher".split()
_OF_A_RANK = "rank state message step host pid device usage".split()
Said = dict[str, Any]
"""What a rank has said, by the names of `heartbeat`; `age`: seconds since then."""


def read_run(folder: Path, now: float | None = None) -> dict[str, Any]:
    """The status of the run in ``folder``; None: not known (yet). ``ConfigError`` where there is none. Local.

    What rank zero says of the run; `name`, `time` (of reading), `problems`, `percentage`; `ranks`, what each says. The
    state is also "stale", where a rank has not said so for too long, or "unknown", where there is no heartbeat.
    """
    now = time.time() if now is None else now
    if not folder.is_dir():
        there = "is a file" if folder.exists() else "is not there"
        raise ConfigError(f"{folder} {there}; give a run directory, such as runs/20260101-120000")
    if not any((folder / each).exists() for each in ("status", "metrics", "config.json")):
        told = "it has no status, no metrics and no config.json; give the directory that a run has written"
        raise ConfigError(f"{folder} holds no run: {told}")
    said: dict[int, Said] = {}
    problems: list[str] = []
    for path in sorted((folder / "status").glob("rank*.json")):
        try:
            each = numbers(json.loads(path.read_bytes()))
            needed = {*_OF_THE_RUN, *_OF_A_RANK, "started", "interval", "eta", "time"}
            said[int(each["rank"])] = {name: each[name] for name in needed}
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror or error}")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problems.append(f"{path} is damaged: {type(error).__name__}; the rank writes it anew if it lives")
    found = {"name": folder.resolve().name, "time": now, "problems": problems, "ranks": [], "percentage": None}
    if not said:
        nothing = dict.fromkeys([*_OF_THE_RUN, "eta"]) | {"metrics": {}, "evaluations": {}}
        return found | nothing | {"state": "unknown", "message": "it has written no heartbeat"}
    # Rank zero speaks for all where it can be read.
    lead = said[0] if 0 in said else max(said.values(), key=lambda each: each["started"])
    ranks = [_rank(rank, said.get(rank), lead["started"], now) for rank in range(lead["world_size"])]
    state, message = _state(ranks)
    eta = lead["eta"] if state in STATES and state not in ENDED else None
    eta = 0.0 if state == "finished" else eta and max(0.0, eta - max(0.0, now - lead["time"]))
    done = 100 * lead["step"] / lead["total"] if lead["total"] else None
    own = {"state": state, "message": message, "percentage": done, "eta": eta, "ranks": ranks}
    return found | {name: lead[name] for name in _OF_THE_RUN} | own


def _rank(rank: int, said: Said | None, started: float, now: float) -> Said:
    """What a rank says of itself. Files of an earlier start say nothing."""
    if said is None or said["started"] != started:
        nothing = dict.fromkeys([*_OF_A_RANK, "age"]) | {"usage": {}}
        return nothing | {"rank": rank, "state": "unknown", "message": "no heartbeat yet"}
    found = {name: said[name] for name in _OF_A_RANK} | {"age": max(0.0, now - said["time"])}
    if found["state"] not in ENDED and found["age"] > STALE_AFTER * said["interval"] > 0:  # 0: none is to be expected
        found |= {"state": "stale", "message": f"no heartbeat for {found['age']:.0f} s, it was {said['state']}"}
    return found


def _state(ranks: Sequence[Said]) -> tuple[str, str]:
    """The state of a run, and why: a rank that failed or went stale counts for all; who lost a peer, last."""
    followed = [each for each in ranks if each["state"] == "failed" and LOST.search(each["message"])]
    rest = [each for each in ranks if each not in followed]
    silent = [each for each in rest if each["state"] not in ENDED]
    if followed and silent and all(each["state"] != "failed" for each in rest):
        return "failed", f"{_named(silent)} died without a word"
    for state in ("failed", "stale"):
        if found := [each for each in rest or ranks if each["state"] == state]:
            return state, f"{_named(found)}: " * (len(ranks) > 1) + found[0]["message"]
    return ranks[0]["state"], ranks[0]["message"]


def _named(ranks: Sequence[Said]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(str(each['rank']) for each in ranks)}"


def scaling(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """How fast each run is, also against the one on the fewest ranks: `speedup`, of samples a second, and `efficiency`,
    of samples a second and rank (1 is perfect). ``ConfigError`` where one cannot be read. Local."""
    rates = sorted((rate(folder) for folder in folders), key=lambda each: int(each["world_size"]))
    for each in rates:
        each["speedup"] = each["samples_per_second"] / rates[0]["samples_per_second"]
        each["efficiency"] = each["speedup"] * rates[0]["world_size"] / each["world_size"]
    return rates


def rate(folder: Path) -> dict[str, Any]:
    """How fast the run in ``folder`` was since its last start, without its first interval, in which it starts up:
    ``ConfigError`` where there is no other. Local."""
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
        raise ConfigError(f"{path} is no log of this trainer, or cannot be read: {error}") from error
    except ZeroDivisionError:
        told = "has no second interval yet: the first, in which a run starts up, says nothing about its rate"
        raise ConfigError(f"{path} {told}") from None
    return found | {"steps": sum(each["steps"] for each in intervals[1:])}


def show(folders: Sequence[Path], *, machine: bool) -> bool:
    """Prints the status, or the comparison of several; returns whether all is well. Local."""
    status, *_ = [read_run(folder) for folder in folders]
    if len(folders) > 1:
        runs = scaling(folders)
        print(as_json({"runs": runs}).decode().rstrip() if machine else _compared(runs))
        return True
    print(as_json(status).decode().rstrip() if machine else shown(status))
    return status["state"] not in ("failed", "stale")


def _compared(runs: Sequence[dict[str, Any]]) -> str:
    rows = ["run,ranks,global batch,samples/s,a rank,speed-up,efficiency,steps".split(",")]
    for each in runs:
        fast, many = each["samples_per_second"], each["world_size"]
        row = [each["name"], str(many), f"{each['global_batch']:,}", f"{fast:,.0f}", f"{fast / many:,.1f}"]
        rows.append([*row, f"{each['speedup']:.2f}", f"{100 * each['efficiency']:.1f} %", f"{each['steps']:,}"])
    return columns(rows, range(1, 8))


def shown(status: dict[str, Any]) -> str:
    """Everything that is known of a run."""
    done = "" if status["percentage"] is None else f" ({status['percentage']:.1f} %)"
    facts = {
        "step": f"{_number(status['step'])} of {_number(status['total'])}{done}",
        "elapsed": "-" if status["elapsed"] is None else duration(status["elapsed"]),
        "left": "-" if status["eta"] is None else duration(status["eta"]),
        "ranks": f"{_number(status['world_size'])}, {_number(status['launcher'])}",
    }
    known = {name: status[name] for name in ("step_seconds", "samples_per_second", "lr")}
    known |= dict(sorted(status["metrics"].items(), key=lambda each: each[0] != "loss"))
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
