"""The command line of ``validate-ddp run``: our options, the script, and what follows, which is the script's."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple

from validate_ddp.config import FAIL_ON, Settings
from validate_ddp.console import UsageError
from validate_ddp.options import (
    COLORS,
    DATA,
    DUMPS,
    FILE,
    LINKS,
    LOG,
    NUMBER,
    NUMBERS,
    POSITIONAL,
    SECONDS,
    SWITCH,
    VARIABLES,
    WORDS,
    Option,
    choice,
    combined,
    filed,
    said,
    table,
)
from validate_ddp.output_files import objection
from validate_ddp.rehearse import simulated
from validate_ddp.rehearse.fake_data import KINDS
from validate_ddp.rehearse.launchers import understood
from validate_ddp.rehearse.plan import Plan
from validate_ddp.rehearse.reading import file_of

_USAGE = """validate-ddp run [options] train.py [args]
       validate-ddp run [options] -m package.train [args]
       validate-ddp run [options] -- torchrun --nproc-per-node 2 train.py [args]
       validate-ddp run [options] --replay LOG"""
_EPILOG = """exit codes: 0 nothing at or above --fail-on; 1 findings; 2 bad usage; 3 the script failed or timed out

Interpreters started with -I, -E or -S, and processes that clear PYTHONPATH, are not observed.
"""
_TRACED = """each dump is what one rank wrote, the rank at the end of its name, as PyTorch has it; jobs write them with

  TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=dumps/rank_

exit codes: 0 the ranks called the same; 1 they did not, or wait; 2 bad usage, or what is no dump
"""


class Options(NamedTuple):
    """fail_on: None for that of the settings. fake_data: what to make before the run. timeout: seconds for which a run
    may be judged, as for the run itself. script: from the first word that is no option of ours. plan: None with
    ``replay``. above: what the command line says, by field."""

    nproc_per_node: Annotated[int, Option(NUMBER, "ranks a node (2)", alias="--nproc_per_node")] = 2
    nnodes: Annotated[int, Option(NUMBER, "nodes, each with ranks of its own, on this machine")] = 1
    as_world: Annotated[
        tuple[int, ...], Option(NUMBERS, "a few ranks of so many, each alone on torch's fake backend", no_key="act")
    ] = ()
    as_ranks: Annotated[tuple[int, ...], Option(NUMBERS, "which of them (six, over nodes)", no_key="act")] = ()
    per_node: Annotated[int, Option(NUMBER, "ranks a node there (8)")] = 8
    link: Annotated[
        tuple[tuple[str, float], ...], Option(LINKS, "what a rank there can send: the least time of its calls a step")
    ] = ()
    max_steps: Annotated[int | None, Option(NUMBER, "end each iteration over a loader after N batches")] = None
    stop_after: Annotated[int | None, Option(NUMBER, "end the run after N optimizer steps")] = None
    partition: Annotated[
        bool | None,
        Option(SWITCH, "the first gradient beside that of one process, in short runs more (where that is cheap)"),
    ] = None
    restart_at: Annotated[
        int | None, Option(NUMBER, "stop after N steps and a save, go on from that, and compare", no_key="input")
    ] = None
    restart_args: Annotated[
        str, Option(WORDS, "more arguments for the run that goes on; {last} is the newest path saved", no_key="input")
    ] = ""
    restart_nproc: Annotated[int | None, Option(NUMBER, "ranks a node of the run that goes on", no_key="input")] = None
    timeout: Annotated[float, Option(SECONDS, "end the run, and its analysis, after S seconds (600)")] = 600.0
    hang: Annotated[float, Option(SECONDS, "a rank that stood still so long is stuck (60)")] = 60.0
    env: Annotated[tuple[tuple[str, str], ...], Option(VARIABLES, "environment of every rank", adds=True)] = ()
    fake_data: Annotated[tuple[str, ...], Option(DATA, f"make small data: {', '.join(KINDS)}", adds=True)] = ()
    launcher: Annotated[str, Option(choice("auto", "env", "slurm", "single"), "how ranks are started (auto)")] = "auto"
    shim: Annotated[bool, Option(SWITCH, "leave CUDA as it is: on a machine with GPUs")] = True
    static: Annotated[bool, Option(SWITCH, "do not read the script before it is run")] = True
    fail_on: Annotated[str | None, Option(FAIL_ON, "least severity that gives exit code 1 (error)")] = None
    report: Annotated[
        str | None, Option(FILE, "write the report there too: FILE.html or FILE.json", no_key="writes")
    ] = None
    log: Annotated[str | None, Option(FILE, "keep the events, for --replay", no_key="writes")] = None
    replay: Annotated[
        str | None, Option(LOG, "judge the events of an earlier run; nothing is started", no_key="input")
    ] = None
    live: Annotated[bool, Option(SWITCH, "no table while it runs, also on a terminal")] = True
    color: Annotated[str, Option(COLORS, "auto; NO_COLOR is honoured")] = "auto"
    script: tuple[str, ...] = ()
    plan: Plan | None = None
    above: Mapping[str, object] = {}


class Traced(NamedTuple):
    """Those of ``validate-ddp trace``."""

    dumps: Annotated[tuple[str, ...], Option(DUMPS, "files, or folders of them", group=POSITIONAL)] = ()
    report: Annotated[
        str | None, Option(FILE, "write the report there too: FILE.html or FILE.json", no_key="writes")
    ] = None
    color: Annotated[str, Option(COLORS, "auto; NO_COLOR is honoured")] = "auto"


def read_trace(arguments: list[str]) -> Traced:
    """Raises UsageError."""
    about = "Reads what PyTorch's flight recorder left of a job that hung, and names the lines that do not meet."
    options = combined(Traced(), said(Traced, arguments, prog="validate-ddp trace", description=about, epilog=_TRACED))
    if options.report is not None:
        _writable(options.report)
    return options


def read(arguments: list[str]) -> Options:
    """Our options and the plan. Raises UsageError."""
    valued = {flag for each in table(Options).values() if each.kind is not SWITCH for flag in each.flags}
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] not in ("--", "-m"):
        at += 2 if arguments[at] in valued else 1
    about = "Rehearses a training script for GPUs on CPU processes, and reports what went wrong."
    above = said(
        Options, _joined(arguments[:at]), prog="validate-ddp run", usage=_USAGE, description=about, epilog=_EPILOG
    )
    options = _planned(combined(Options(script=tuple(arguments[at:]), above=above), above))
    if options.report is not None:
        _writable(options.report)
    if options.restart_at is None and (options.restart_args or options.restart_nproc):
        raise UsageError("--restart-args and --restart-nproc say how --restart-at goes on: give that too")
    asked = [("--restart-at", options.restart_at), ("--partition", options.partition), ("--as-world", options.as_world)]
    two = [flag for flag, value in asked if value]
    if len(two) > 1:
        raise UsageError(f"{two[0]} and {two[1]} are two checks: run them one after the other")
    _keep_inputs(options)
    return options


def _writable(report: str) -> None:
    """Raises UsageError."""
    if not report.endswith((".html", ".json")):
        raise UsageError(f"--report {report}: the name has to end in .html or .json, which says what is written")
    if not os.path.isdir(os.path.dirname(report) or "."):
        raise UsageError(f"--report {report}: there is no folder {os.path.dirname(report)}")


def _joined(arguments: list[str]) -> list[str]:
    """With what follows ``--restart-args`` in one word with it: it begins as an option does."""
    flag = "--restart-args"
    if flag not in arguments[:-1]:
        return arguments
    at = arguments.index(flag)
    return [*arguments[:at], f"{flag}={arguments[at + 1]}", *arguments[at + 2 :]]


def on_top(options: Options, settings: Settings) -> Options:
    """The options on top of those that the project's file says for every run of it. Raises ConfigError."""
    path = os.path.join(settings.root, "pyproject.toml")
    base = combined(Options(), filed(Options, settings.run, path, "tool.validate-ddp.run"))
    return _planned(combined(base, options.above)._replace(script=options.script, above=options.above))


def _keep_inputs(options: Options) -> None:
    """Raises UsageError where the report or the log would go over the script, a file that it is given, or the other."""
    words = [options.replay or ""]
    if options.plan is not None:
        words += [file_of(options.plan.script) or "", *options.plan.arguments]
        words += [word.partition("=")[2] for word in options.plan.arguments]
    for option, path, other in (("--report", options.report, options.log), ("--log", options.log, "")):
        if path is not None:
            told = objection(option, path, [*words, other or ""])
            if told is not None:
                raise UsageError(told)
            if other and os.path.abspath(path) == os.path.abspath(other):
                raise UsageError(f"{option} {path}: is the file of --log too; give the report another name")


def _planned(options: Options) -> Options:
    """With the plan that they make."""
    rest = options.script
    if options.replay is not None:
        if rest:
            raise UsageError("--replay starts nothing: it takes no script")
        return options
    plan = Plan(
        script=(),
        nproc_per_node=options.nproc_per_node,
        nnodes=options.nnodes,
        launcher=options.launcher,
        max_steps=options.max_steps,
        stop_after=options.stop_after,
        timeout=options.timeout,
        hang=options.hang,
        environment=options.env,
        shim=options.shim,
        link=options.link,
    )
    if not rest:
        raise UsageError("run needs a script: `validate-ddp run [options] train.py [args]`")
    if rest[0] == "--":
        plan = understood(rest[1:], plan)
    elif rest == ("-m",):
        raise UsageError("-m needs the name of a module")
    else:
        own = 2 if rest[0] == "-m" else 1
        plan = replace(plan, script=rest[:own], arguments=rest[own:])
    if plan.script[0] != "-m" and not os.path.isfile(plan.script[0]):
        raise UsageError(f"{plan.script[0]}: no such script")
    if len(options.as_world) > 1 and options.log:
        raise UsageError("--as-world with several sizes makes as many runs: give --log one size")
    if options.link and len(dict(options.link)) < 2:
        raise UsageError("--link needs both speeds: intra=GB/s,inter=GB/s")
    if options.as_world:
        plan = simulated.planned(plan, options.as_world[0], options.as_ranks, options.per_node)
    return options._replace(plan=plan)
