"""The command line of ``validate-ddp run``: our options, the script, and what follows, which is the script's."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple, NoReturn

from validate_ddp.config import FAIL_ON
from validate_ddp.console import UsageError
from validate_ddp.output_files import objection
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


class Options(NamedTuple):
    """plan: None with ``replay``. fail_on: None for that of the settings. log, report, replay: paths. static: whether
    the script is read first. live: whether a terminal may show a table while the run goes on. differential: whether the
    first step is compared with that of one process. fake_data: what to make before the run, as ``KIND:PATH``. timeout:
    seconds for which a run may be judged, as for the run itself."""

    plan: Plan | None
    fail_on: str | None
    log: str | None
    report: str | None
    replay: str | None
    color: str
    static: bool = True
    live: bool = True
    differential: bool = False
    fake_data: tuple[str, ...] = ()
    timeout: float = 600.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `validate-ddp run --help`)")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"`{text}` is no whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of seconds above 0")
    return value


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"`{text}` is not NAME=VALUE")
    return name, value


def parser() -> argparse.ArgumentParser:
    """The parser of our own options."""
    built = _Parser(
        prog="validate-ddp run",
        usage=_USAGE,
        description="Rehearses a training script for GPUs on CPU processes, and reports what went wrong.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = built.add_argument
    add("--nproc-per-node", "--nproc_per_node", type=_positive, default=2, metavar="N", help="ranks a node (2)")
    add("--nnodes", type=_positive, default=1, metavar="N", help="nodes, each with ranks of its own, on this machine")
    add("--max-steps", type=_positive, metavar="N", help="end each iteration over a loader after N batches")
    add("--stop-after", type=_positive, metavar="N", help="end the run after N optimizer steps")
    add("--differential", action="store_true", help="compare the first step with that of one process (two runs more)")
    add(
        "--timeout",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="end the run, and its analysis, after S seconds (600)",
    )
    add("--hang", type=_seconds, default=60.0, metavar="S", help="a rank that stood still so long is stuck (60)")
    add("--env", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="environment of every rank")
    add("--fake-data", action="append", default=[], metavar="KIND:PATH", help=f"make small data: {', '.join(KINDS)}")
    add("--launcher", choices=("auto", "env", "single"), default="auto", help="how ranks are started (auto)")
    add("--no-shim", dest="shim", action="store_false", help="leave CUDA as it is: on a machine with GPUs")
    add("--no-static", dest="static", action="store_false", help="do not read the script before it is run")
    add("--fail-on", choices=FAIL_ON, help="least severity that gives exit code 1 (error)")
    add("--report", metavar="FILE", help="write the report there too: FILE.html or FILE.json")
    add("--log", metavar="FILE", help="keep the events, for --replay")
    add("--replay", metavar="LOG", help="judge the events of an earlier run; nothing is started")
    add("--no-live", dest="live", action="store_false", help="no table while it runs, also on a terminal")
    add("--color", choices=("auto", "always", "never"), default="auto", help="auto; NO_COLOR is honoured")
    return built


def read(arguments: list[str]) -> Options:
    """Our options and the plan. Raises UsageError."""
    built = parser()
    ours, rest = _split(arguments, built)
    args = built.parse_args(ours)
    if args.report is not None and not args.report.endswith((".html", ".json")):
        raise UsageError(f"--report {args.report}: the name has to end in .html or .json, which says what is written")
    if args.report is not None and not os.path.isdir(os.path.dirname(args.report) or "."):
        raise UsageError(f"--report {args.report}: there is no folder {os.path.dirname(args.report)}")
    plan = None
    if args.replay is None:
        plan = _plan(args, rest)
    elif rest:
        raise UsageError("--replay starts nothing: it takes no script")
    _keep_inputs(args, plan)
    return Options(
        plan, args.fail_on, args.log, args.report, args.replay, args.color, args.static, args.live, args.differential,
        tuple(args.fake_data), args.timeout,
    )  # fmt: skip


def _keep_inputs(args: argparse.Namespace, plan: Plan | None) -> None:
    """Raises UsageError where the report or the log would go over the script, a file that it is given, or the other."""
    words = [args.replay or ""]
    if plan is not None:
        words += [file_of(plan.script) or "", *plan.arguments]
        words += [word.partition("=")[2] for word in plan.arguments]
    for option, path, other in (("--report", args.report, args.log), ("--log", args.log, "")):
        if path is not None:
            told = objection(option, path, [*words, other or ""])
            if told is not None:
                raise UsageError(told)
            if other and os.path.abspath(path) == os.path.abspath(other):
                raise UsageError(f"{option} {path}: is the file of --log too; give the report another name")


def _plan(args: argparse.Namespace, rest: list[str]) -> Plan:
    plan = Plan(
        script=(),
        nproc_per_node=args.nproc_per_node,
        nnodes=args.nnodes,
        launcher=args.launcher,
        max_steps=args.max_steps,
        stop_after=args.stop_after,
        timeout=args.timeout,
        hang=args.hang,
        environment=tuple(args.env),
        shim=args.shim,
    )
    if not rest:
        raise UsageError("run needs a script: `validate-ddp run [options] train.py [args]`")
    if rest[0] == "--":
        plan = understood(tuple(rest[1:]), plan)
    elif rest[0] == "-m":
        if len(rest) < 2:
            raise UsageError("-m needs the name of a module")
        plan = plan_of(plan, ("-m", rest[1]), rest[2:])
    else:
        plan = plan_of(plan, (rest[0],), rest[1:])
    if plan.script[0] != "-m" and not os.path.isfile(plan.script[0]):
        raise UsageError(f"{plan.script[0]}: no such script")
    return plan


def plan_of(plan: Plan, script: tuple[str, ...], arguments: list[str]) -> Plan:
    """``plan`` for that script."""
    from dataclasses import replace

    return replace(plan, script=script, arguments=tuple(arguments))


def _split(arguments: list[str], built: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Our options, and everything from the first word that is none."""
    valued = {name for action in built._actions for name in action.option_strings if action.nargs != 0}
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if not word.startswith("-") or word in ("--", "-m"):
            break
        at += 2 if word in valued else 1
    return arguments[:at], arguments[at:]
