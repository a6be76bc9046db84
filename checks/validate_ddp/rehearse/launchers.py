"""Command lines of torchrun and accelerate: which script they start, on how many processes, with what environment."""

from __future__ import annotations

import os
import shlex
from collections.abc import Container
from dataclasses import replace

from validate_ddp.console import UsageError
from validate_ddp.launch.options import FLAGS
from validate_ddp.rehearse.plan import Plan

_TORCHRUN_VALUES = {
    "nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts",
    "monitor_interval", "start_method", "role", "log_dir", "r", "redirects", "t", "tee", "local_ranks_filter",
    "node_rank", "master_addr", "master_port", "local_addr", "logs_specs", "numa_binding", "event_log_handler",
    "duplicate_stdout_filters", "duplicate_stderr_filters", "shutdown_timeout", "signals_to_handle", "rdzv_timeout",
}  # fmt: skip


def understood(line: tuple[str, ...], plan: Plan) -> Plan:
    """``plan`` with the script, the counts and the environment that a launcher's line gives.

    Raises UsageError for a line that starts with no launcher known here, or that lacks a script.
    """
    words = list(line)
    pairs = []
    while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
        name, _, value = words.pop(0).partition("=")
        pairs.append((name, value))
    plan = replace(plan, environment=(*plan.environment, *pairs))
    first = os.path.basename(words[0]) if words else ""
    if first == "torchrun":
        return _torchrun(words[1:], plan)
    if first == "accelerate" and words[1:2] == ["launch"]:
        return _accelerate(words[2:], plan)
    if first.startswith("python"):
        if words[1:3] == ["-m", "torch.distributed.run"]:
            return _torchrun(words[3:], plan)
        if words[1:3] == ["-m", "torch.distributed.launch"]:
            started = _torchrun(words[3:], plan)
            if "--use_env" in words or "--use-env" in words:
                return started
            # It passes each rank its own; the number is filled in where the rank is started.
            return replace(started, arguments=("--local-rank=0", *started.arguments))
        if words[1:3] == ["-m", "accelerate.commands.launch"]:
            return _accelerate(words[3:], plan)
        return _script(words[1:], plan, module=False)
    raise UsageError(
        f"`{shlex.join(line)}` is no line of a launcher that is known here: after `--` write `torchrun ...`, "
        "`accelerate launch ...` or `python ...`"
    )


def _torchrun(words: list[str], plan: Plan) -> Plan:
    given, rest = _options(words, FLAGS["launch"], _TORCHRUN_VALUES)
    if "no_python" in given:
        raise UsageError("`torchrun --no-python` starts no Python script: there is nothing to observe")
    plan = replace(plan, launcher="env")
    for name in ("nproc_per_node", "nnodes"):
        text = given.get(name, "").rpartition(":")[2]  # 1:4 means up to four nodes
        if text.isdigit() and int(text) > 0:
            plan = replace(plan, **{name: int(text)})  # type: ignore[arg-type]
    return _script(rest, plan, module="m" in given or "module" in given)


def _accelerate(words: list[str], plan: Plan) -> Plan:
    given, rest = _options(words, FLAGS["accelerate"], None)
    processes = given.get("num_processes", "")
    machines = given.get("num_machines", "1")
    if processes.isdigit() and machines.isdigit() and int(machines) > 0 and int(processes) > 0:
        plan = replace(plan, nproc_per_node=max(1, int(processes) // int(machines)), nnodes=int(machines))
    pairs = []
    for option, name in (
        ("mixed_precision", "ACCELERATE_MIXED_PRECISION"),
        ("gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    ):
        if option in given:
            pairs.append((name, given[option]))
    plan = replace(plan, launcher="env", environment=(*plan.environment, *pairs))
    return _script(rest, plan, module="m" in given or "module" in given)


def _options(words: list[str], flags: Container[str], values: set[str] | None) -> tuple[dict[str, str], list[str]]:
    """The launcher's options by name, with underscores, and what comes after them."""
    given: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].lstrip("-").partition("=")
        name = name.replace("-", "_")
        at += 1
        if name in flags:
            given[name] = ""
            continue
        if values is not None and name not in values:
            raise UsageError(f"`--{name.replace('_', '-')}` is no option of torchrun that is known here")
        if not equals:
            if at >= len(words):
                raise UsageError(f"the launcher's `{words[-1]}` lacks its value")
            value = words[at]
            at += 1
        given[name] = value
    return given, words[at:]


def _script(words: list[str], plan: Plan, module: bool) -> Plan:
    if words[:1] == ["-u"]:
        words = words[1:]
    if words[:1] == ["-m"]:
        module, words = True, words[1:]
    if not words or words[0].startswith("-"):
        raise UsageError("the launcher's line names no script")
    script = ("-m", words[0]) if module else (words[0],)
    return replace(plan, script=script, arguments=tuple(words[1:]))
