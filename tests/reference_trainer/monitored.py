"""Run directories as a trainer leaves them, written without one: heartbeats and logs of any state and age."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from reference_trainer.monitor.records import RankLog, status_path

METRICS = {"loss": 0.5, "accuracy": 0.75, "grad_norm": 1.5}


def heartbeat(rank: int = 0, *, age: float = 0.0, **changes: Any) -> dict[str, Any]:
    """What a rank of two says in the middle of a run."""
    return {
        "version": 1, "rank": rank, "world_size": 2, "host": "node1", "pid": 100 + rank, "device": "cpu",
        "launcher": "torchrun", "started": 1000.0, "interval": 5.0, "total": 200, "state": "running", "message": "",
        "metrics": METRICS, "lr": 0.001, "samples_per_second": 640.0, "evaluations": {}, "time": time.time() - age,
        "elapsed": 60.0, "step": 50, "step_seconds": 0.4, "eta": 60.0,
        "usage": {"cpu_percent": 97.0, "memory_bytes": 3 << 28},
    } | changes  # fmt: skip


def write(folder: Path, *said: dict[str, Any]) -> Path:
    """The heartbeats, each in its rank's file."""
    for each in said:
        path = status_path(folder, each["rank"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(each))
    return folder


def logged(
    folder: Path, losses: list[float], *, world_size: int = 2, end: str = "", rate: float = 640.0, **config: Any
) -> Path:
    """A log with an interval of ten steps for each loss, an evaluation, and this event at the end."""
    log = RankLog(folder, 0)
    log.write("event", 0, event="start", host="node1", pid=100, device="cpu", launcher="torchrun")
    log.write("event", 0, event="plan", world_size=world_size, batch_size=16, accumulation=2, optimizer_steps=200)
    for place, loss in enumerate(losses):
        # The first interval is slow: it starts up.
        speed = rate if place else rate / 10
        log.write(
            "interval", 10 * (place + 1), metrics={"loss": loss, "grad_norm": 1.0}, lr=0.001, steps=10,
            seconds=320.0 * world_size / speed, samples_per_second=speed, memory_bytes=1 << 20,
        )  # fmt: skip
    log.write("evaluation", 10 * len(losses), data="validation", metrics={"loss": 0.25, "accuracy": 0.5})
    if end:
        log.write("event", 10 * len(losses), event=end, type="KeyError", message="'why'")
    log.close()
    (folder / "config.json").write_text(
        json.dumps({"run_dir": str(folder), "seed": 1, "log": {"heartbeat": 5.0}, **config})
    )
    return folder
