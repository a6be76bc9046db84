"""The command `reference-trainer`: its words, its options, its exit codes. Imports torch only to train or to examine.

Exit codes: 0 done; 1 a check of `doctor` failed, or training broke off; 2 bad input, in one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar

from .config import Config, ConfigError, DistConfig
from .launch import LaunchError, World, with_accelerate
from .plan import PlanError

if TYPE_CHECKING:
    from .doctor import Verdict

__all__ = ["DoctorOptions", "ExportOptions", "UsageError", "main", "run"]

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

_HELP = """\
usage: reference-trainer COMMAND [OPTIONS]

  train     train a model: on one process, or on each rank of torchrun, srun or accelerate launch
  plan      what a run will do: steps, batches, learning rate, duration
  doctor    try out these machines: gathering, club, data, checkpoint, barrier
  export    the weights of a run as one .safetensors file

reference-trainer COMMAND --help shows the options of a command.
  reference-trainer train
  torchrun --nproc-per-node 2 -m reference_trainer train --steps 100
  reference-trainer plan --samples 170180 --gpus 2 --epochs 5
  torchrun --nproc-per-node 2 -m reference_trainer doctor
  reference-trainer export runs/20260101-120000 weights.safetensors
"""

T = TypeVar("T")


class UsageError(ValueError):
    """A command line that cannot be carried out; the message is one line."""


class _HelpShown(Exception):
    """The help of a command was asked for and printed."""


@dataclass(frozen=True)
class DoctorOptions:
    """Tries out these machines, under the launcher that will train on them; exit code 1 where a check fails."""

    check: Literal["all", "gathering", "club", "data", "checkpoint", "barrier"] = "all"
    """Which check; also as the first word."""
    folder: str = "runs"
    """Where runs will be written: `checkpoint` writes, reads and renames there."""
    max_latency: float = 100.0
    """Milliseconds that the smallest message to all ranks may take."""
    timeout: float = 60.0
    """Seconds that ranks wait for each other in a check."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """ "auto": the GPU of this rank where there is one."""
    dist: DistConfig = field(default_factory=DistConfig)


@dataclass(frozen=True)
class ExportOptions:
    """Copies the weights of a run's latest checkpoint to one .safetensors file."""

    run: str
    """A run directory, or one of its checkpoints; also as the first word."""
    out: str
    """The file to write, which must not be there; also as the second word."""
    ema: bool = False
    """The averaged weights."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Collective under a launcher: every rank."""
    words = without_local_rank(list(sys.argv[1:] if argv is None else argv))
    try:
        return _dispatch(words)
    except _HelpShown:
        return OK
    except (UsageError, ConfigError, PlanError, LaunchError) as error:
        # What is wrong with the settings is wrong on every rank: once a machine is enough to be read.
        if isinstance(error, LaunchError) or _is_local_main(os.environ):
            print(f"reference-trainer: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def run() -> NoReturn:
    """The command as a process.

    Where it failed the process ends at once: peers may sit in a collective that this rank will not join, and to take a
    group apart in that state can wait for them until the time-out.
    """
    # Where ranks do not meet, torch warns with pages of its own frames around our one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        code = main()
    except Exception:  # noqa: BLE001 - it is told, and the process ends
        import traceback

        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    if code != OK:
        os._exit(code)
    sys.exit(code)


def without_local_rank(words: list[str]) -> list[str]:
    """The words without `--local-rank=0`, which `python -m torch.distributed.launch` adds and the environment tells."""
    kept: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in ("--local-rank", "--local_rank"):
            skip = not equals
        else:
            kept.append(word)
    return kept


def _dispatch(words: list[str]) -> int:
    """The command that the first word names."""
    commands = {"train": _train, "plan": _plan, "doctor": _doctor, "export": _export}
    if not words or words[0] in ("-h", "--help"):
        print(_HELP, end="")
        return OK if words else BAD_INPUT
    if words[0] not in commands:
        raise UsageError(f"unknown command {words[0]!r}; there are {', '.join(commands)} (reference-trainer --help)")
    return commands[words[0]](words[1:])


def _train(words: list[str]) -> int:
    config = with_accelerate(_parse(Config, words, "train"), os.environ)
    with World.from_env(dist=config.dist, device=config.device) as world:
        from .faults import Watch
        from .finite import NonFiniteError

        folder = Path(config.run_dir) / "faults" if config.run_dir else None
        brief = {ConfigError: BAD_INPUT, PlanError: BAD_INPUT, NonFiniteError: FAILED}
        try:
            with Watch(world, folder=folder, brief=brief):
                _run_trainer(config, world)
        except NonFiniteError as error:  # of a process alone; where there are several, the watch has told it
            print(f"reference-trainer: error: {error}", file=sys.stderr)
            return FAILED
    return OK


def _run_trainer(config: Config, world: World) -> None:
    """In a function of its own: the model is gone when the world ends."""
    from .signals import ignore
    from .trainer import Trainer

    if Trainer(config, world).run().stopped:
        ignore()  # the end of the process is under way, and its exit code is to say so


def _plan(words: list[str]) -> int:
    from .plan_command import PlanOptions, as_json, plan_of, table

    options = _parse(PlanOptions, words, "plan")
    plan = plan_of(options)
    if options.format == "json":
        print(as_json(plan, options.steps_per_second))
    else:
        from .progress import console

        console().print(table(plan, options.steps_per_second))
    return OK


def _doctor(words: list[str]) -> int:
    if words and not words[0].startswith("-"):
        words = ["--check", *words]
    options = _parse(DoctorOptions, words, "doctor")
    if not (options.max_latency > 0 and options.timeout > 0):
        raise UsageError("--max-latency and --timeout must be above 0")
    with World.from_env(dist=options.dist, device=options.device) as world:
        from .doctor import diagnose

        verdicts = diagnose(
            world, options.check, folder=options.folder, max_latency=options.max_latency, timeout=options.timeout
        )
        if world.is_main:
            _show(verdicts, world)
        failed = any(verdict.passed is False for verdict in verdicts)
        if any(verdict.broken for verdict in verdicts):
            # The group is out of step: it cannot be ended in order, only by the end of the process.
            sys.stdout.flush()
            os._exit(FAILED)
    return FAILED if failed else OK


def _export(words: list[str]) -> int:
    for place, name in enumerate(("--run", "--out")):
        if len(words) > 2 * place and not words[2 * place].startswith("-"):
            words = [*words[: 2 * place], name, *words[2 * place :]]
    options = _parse(ExportOptions, words, "export")
    from pathlib import Path

    from .checkpoint import export

    source = export(Path(options.run), Path(options.out), ema=options.ema)
    print(f"{options.out}: {'averaged ' * options.ema}weights of {source}")
    return OK


def _show(verdicts: Sequence[Verdict], world: World) -> None:
    """The verdicts as one table. Rank zero only."""
    from .doctor import table
    from .progress import console

    out = console()
    out.print(f"{world.size} rank{'s' * (world.size > 1)} on {world.device.type}, {world.launcher}")
    out.print(table(verdicts))


def _parse(kind: type[T], words: list[str], command: str) -> T:
    """The options as their dataclass; ``UsageError`` with tyro's reason in one line."""
    import contextlib
    import io

    try:
        import tyro
    except ImportError as error:
        raise UsageError("tyro is missing: pip install 'validate-ddp[trainer]'") from error
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(kind, args=words, prog=f"reference-trainer {command}")
    except SystemExit as stop:
        if not stop.code:
            raise _HelpShown from None
        raise UsageError(f"{_reason(told.getvalue())} (reference-trainer {command} --help)") from None


def _reason(box: str) -> str:
    """The reason in one line, from the box that tyro draws around it."""
    # A title, then blocks between rules: drawn with lines, or with hyphens where standard output has no lines.
    reason: list[str] = []
    for line in box.splitlines()[1:]:
        line = line.strip("│╰╯ \t")
        if line.strip("─-") and line != "Got errors:":
            reason.append(line)
        elif reason:
            break
    text = " ".join(" ".join(reason).split())
    head, colon, rest = text.partition(": ")
    if head.startswith("Missing from ") and rest.startswith("--"):
        return f"{rest.split()[0]} is missing"
    if colon and head.startswith("Error parsing "):
        name = head.removeprefix("Error parsing ")
        # A dataclass says by itself which setting it refuses; an option's reason needs its name.
        text = f"{name}: {rest}" if name.startswith("-") else rest
    return text or "the options could not be read"


def _is_local_main(environ: Mapping[str, str]) -> bool:
    """Whether this is the first rank of its machine, as far as the environment says."""
    return environ.get("LOCAL_RANK", environ.get("SLURM_LOCALID", "0")) == "0"
