"""What SLURM tells a task of a step (`srun`): its rank, its machine's share, the first host, a port. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SlurmError", "Step", "first_host", "in_step", "step", "tasks_per_node"]

_FIRST_PORT, _PORTS = 12_000, 20_000
"""Ports from the job's number: below those that Linux gives to outgoing connections (from 32768)."""


class SlurmError(ValueError):
    """A step whose variables make no sense; the message is one line."""


@dataclass(frozen=True)
class Step:
    """One task of a job step."""

    rank: int
    local_rank: int
    tasks: int
    local_tasks: int
    first_host: str
    port: int
    """The same for all tasks of the step, another for other jobs and steps (in most cases)."""
    name: str
    """Such as "4711.0"."""


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether this process is a task of a step. A shell in `salloc`, or a batch script itself, is none."""
    return all(name in environ for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"))


def step(environ: Mapping[str, str]) -> Step:
    """The task's place in its step; ``SlurmError`` where a variable is missing or nonsense. Local."""
    rank, local_rank, tasks = (
        _number(environ, name) for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
    )
    if rank >= tasks:
        raise SlurmError(f"SLURM_PROCID is {rank} and SLURM_STEP_NUM_TASKS {tasks}: tasks count from 0")
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not hosts:
        raise SlurmError("SLURM_STEP_NODELIST is not set; start the ranks with srun")
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or "0"
    number = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or "0"
    mixed = sum(int(digits) for digits in re.findall(r"\d+", f"{job} {number}"))
    node = _number(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else 0
    per_node = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or "")
    return Step(
        rank=rank,
        local_rank=local_rank,
        tasks=tasks,
        local_tasks=per_node[node] if node < len(per_node) else local_rank + 1,
        first_host=first_host(hosts),
        port=_FIRST_PORT + mixed % _PORTS,
        name=f"{job}.{number}",
    )


def first_host(nodes: str) -> str:
    """The first host of a node list such as "gpu[03-05,9],login1" (gpu03) or "rack[1-2]n[01-08]" (rack1n01)."""
    name, depth = "", 0
    for character in nodes.strip():
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            break
        name += character
    host = re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", name)
    if not host or depth or set(host) & set("[], "):
        raise SlurmError(f"the node list {nodes!r} cannot be read; set MASTER_ADDR to the first host")
    return host


def tasks_per_node(text: str) -> list[int]:
    """Such as [2, 2, 2, 1] of "2(x3),1"; empty where it cannot be read."""
    counts: list[int] = []
    for part in text.split(",") if text else []:
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not text.isdecimal():
        raise SlurmError(f"{name} is {text!r}; it must be a number from 0")
    return int(text)
