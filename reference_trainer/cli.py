"""The command `reference-trainer`. Exit codes: 0 done; 1 a check failed, or training broke off; 2 bad input."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from .config import Config, ConfigError, DistConfig
from .core.plan import PlanError, rows_per_rank
from .launch import LaunchError, World, alone_by_mistake, detect, with_accelerate
from .settings import made, types_of
from .words import HELP, HelpShown, UsageError, config_of, needs, options_of, parsed, read_config, show_help, typed

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
STAND_BACK = 5.0
"""Seconds for which a rank that says nothing stays: torchrun ends all ranks when the first has ended, which must not be
before the one that speaks has spoken."""
_HELP = """\
usage: reference-trainer COMMAND [OPTIONS]

  train     train a model: on one process, or on each rank of torchrun, srun or accelerate launch
  plan      what a run will do: steps, batches, learning rate, duration
  doctor    try out these machines: gathering, club, data, checkpoint, barrier
  status    how a run is doing; of several runs, how well they scale
  serve     the same as a page in the browser
  export    the weights of a run as one .safetensors file

reference-trainer COMMAND --help shows the options of a command.
  torchrun --nproc-per-node 2 -m reference_trainer train --config base.yaml optim.lr=3e-4 --steps 100
  reference-trainer plan --samples 170180 --gpus 2 --epochs 5
  reference-trainer serve runs/20260101-120000
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Collective under a launcher: every rank."""
    words = without_local_rank(list(sys.argv[1:] if argv is None else argv))
    commands = {each.__name__: each for each in (train, plan, doctor, status, serve, export)}
    try:
        if not words or words[0] in ("-h", "--help"):
            print(_HELP, end="")
            return OK if words else BAD_INPUT
        if words[0] not in commands:
            raise UsageError(f"unknown command {words[0]!r}; there are {', '.join(commands)}")
        return commands[words[0]](words[1:])
    except HelpShown:
        return OK
    except ConfigError as error:
        # What is wrong with the settings is wrong on every rank: once a machine is enough to be read.
        local_rank = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        if isinstance(error, LaunchError) or local_rank == "0":
            print(f"reference-trainer: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        else:
            time.sleep(STAND_BACK)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def run() -> NoReturn:
    """The command as a process. Where it failed it ends at once: peers may sit in a collective, and to take a group
    apart in that state can wait for them until the time-out."""
    # Where ranks do not meet, torch warns with pages of its own frames around our one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        code = main()
        if sys.stdout is not None:  # closed, as a daemon's
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - it is told, and the process ends
        import traceback

        poll = select.poll()
        poll.register(1, 0)  # what has gone wrong is told without being asked for
        if isinstance(error, BrokenPipeError) and any(
            events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)
        ):
            os._exit(FAILED)  # nobody reads: `train --help | head -5`
        traceback.print_exc()
        code = FAILED
    if code != OK:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def without_local_rank(words: list[str]) -> list[str]:
    """The words without `--local-rank=0`, which `python -m torch.distributed.launch` adds and the environment tells."""
    names = ("--local-rank", "--local_rank")
    values = {place + 1 for place, word in enumerate(words) if word in names}
    return [w for place, w in enumerate(words) if place not in values and w.partition("=")[0] not in names]


def train(words: list[str]) -> int:
    """Trains; returns the exit code. Collective under a launcher: every rank."""
    config = with_accelerate(read_config(words), os.environ)
    if warning := alone_by_mistake(os.environ):
        print(f"reference-trainer: warning: {warning}", file=sys.stderr)
    needs("torch", "numpy", "safetensors")
    # Known before the ranks meet, and before torch is imported.
    rows_per_rank(config.global_batch_or_default, config.batch_size, detect(os.environ).world_size, config.accumulation)
    with World.from_env(dist=config.dist, device=config.device) as world:
        from .faults import Watch
        from .finite import NonFiniteError

        try:
            with Watch(world, brief={ConfigError: BAD_INPUT, NonFiniteError: FAILED}):
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


@dataclass(frozen=True)
class PlanOptions:
    """What a run will do, before anyone pays for it: steps, batches, learning rate, duration. Takes what `train` takes
    too; without --config and key=value, --samples and --epochs or --steps are needed, and a batch is 1 a GPU."""

    samples: int | None = None  # Samples of the data; with a configuration, those that it trains on.
    gpus: int = 1  # Ranks: processes, one a GPU.
    steps_per_second: float | None = None  # Optimizer steps a second, as measured: gives the duration.
    format: Literal["text", "json"] = "text"  # A table, or JSON for tools.


PLAN_KEYS = "samples_per_rank padded dropped micro_steps_per_epoch optimizer_steps_per_epoch".split()
PLAN_KEYS += ["optimizer_steps", "effective_batch_size", "lr"]
"""Of the JSON; tools rely on them."""


def plan(words: list[str]) -> int:
    """Prints what a run will do; returns the exit code. Local."""
    if {"-h", "--help"} & set(words):
        show_help(PlanOptions, "plan", HELP)
    kinds = types_of(PlanOptions)
    given = parsed(words, types_of(Config) | kinds, run=True)
    for name in ("lr", "lr_scaling", "base_batch"):
        if name in given.options:
            given.options[f"optim.{name}"] = given.options.pop(name)
    own = typed({name: given.options.pop(name) for name in kinds if name in given.options}, kinds)
    options = made(PlanOptions(), own)
    rate, samples = options.steps_per_second, options.samples
    if rate is not None and not 0 < rate < float("inf"):
        raise PlanError(f"steps_per_second is {rate}; it must be above 0")
    if not (given.files or given.overrides):
        for name, wanted in (("--samples", samples), ("--epochs or --steps", {"epochs", "steps"} & set(given.options))):
            if not wanted:
                raise UsageError(f"{name} is missing, or a configuration that tells it (--config FILE.yaml)")
        if not {"batch_size", "global_batch"} & set(given.options):
            given.options["batch_size"] = "1"
    config = config_of(given, {})
    if samples is None:
        samples = config.data.train_samples
        if config.data.source:  # of data of one's own, by making it
            from .sources import build_data

            samples = len(build_data(config).train)
    found = config.plan(samples=samples, world_size=options.gpus)
    if options.format == "json":
        seconds = {} if rate is None else {"seconds": found.optimizer_steps / rate}
        print(json.dumps({key: getattr(found, key) for key in PLAN_KEYS} | seconds, indent=2))
    else:
        from .progress import console, table

        console().print(table(found, rate))
    return OK


@dataclass(frozen=True)
class DoctorOptions:
    """Tries out these machines, under the launcher that will train on them; exit code 1 where a check fails."""

    check: Literal["all", "gathering", "club", "data", "checkpoint", "barrier"] = "all"
    """Which check; also as the first word."""
    folder: str = "runs"  # Where runs will be written: `checkpoint` writes, reads and renames there.
    max_latency: float = 100.0  # Milliseconds that the smallest message to all ranks may take.
    timeout: float = 60.0  # Seconds that ranks wait for each other in a check.
    device: Literal["auto", "cpu", "cuda"] = "auto"  # "auto": the GPU of this rank where there is one.
    dist: DistConfig = field(default_factory=DistConfig)


def doctor(words: list[str]) -> int:
    """Runs the checks and prints one table; returns the exit code. Collective under a launcher: every rank."""
    options = options_of(DoctorOptions, words, "doctor", ["check"])
    if not (options.max_latency > 0 and options.timeout > 0):
        raise UsageError("--max-latency and --timeout must be above 0")
    needs("torch", "numpy", "safetensors")
    with World.from_env(dist=options.dist, device=options.device) as world:
        from .doctor import diagnose, table
        from .metrics import world_in_words
        from .progress import console

        limits = {"max_latency": options.max_latency, "timeout": options.timeout}
        verdicts = diagnose(world, options.check, folder=options.folder, **limits)
        if world.is_main:
            console().print(world_in_words(world), table(verdicts), sep="\n")
        if any(verdict.broken for verdict in verdicts):
            # The group is out of step: it cannot be ended in order, only by the end of the process.
            sys.stdout.flush()
            os._exit(FAILED)
        return FAILED if any(verdict.passed is False for verdict in verdicts) else OK


@dataclass(frozen=True)
class StatusOptions:
    """How a run is doing, as its ranks have written; exit code 1 where it has failed or is stale. Several runs are
    compared: samples a second against the run on the fewest ranks."""

    runs: tuple[str, ...]  # Run directories; also as the first words.
    format: Literal["text", "json"] = "text"  # A table, or JSON for tools.


def status(words: list[str]) -> int:
    """Prints how runs are doing; returns the exit code. Local."""
    options = options_of(StatusOptions, words, "status", ["runs"])
    from .monitor.terminal import show

    return OK if show([Path(each) for each in options.runs], as_json=options.format == "json") else FAILED


@dataclass(frozen=True)
class ServeOptions:
    """A page on which a run can be watched, and its status for tools, read-only; until Ctrl-C."""

    run: str  # A run directory; also as the first word.
    port: int = 8765  # 0 takes one that is free.
    host: str = "127.0.0.1"
    """Address to listen at. Anything but this machine alone needs `allow_host`, for there is no password. From afar, a
    tunnel is better: ssh -L 8765:127.0.0.1:8765 MACHINE."""
    allow_host: tuple[str, ...] = ()  # Names of this machine under which browsers may ask for it, beside localhost.


def serve(words: list[str]) -> int:
    """Serves until Ctrl-C; returns the exit code. Local."""
    options = options_of(ServeOptions, words, "serve", ["run"])
    from .monitor.server import LOOPBACK, MonitorServer

    if options.host not in LOOPBACK and not options.allow_host:
        told = "lets others look, without a password; say under which names they may: --allow-host NAME"
        raise UsageError(f"--host {options.host} {told}, or leave --host out")
    try:
        server = MonitorServer(Path(options.run), host=options.host, port=options.port, allow_hosts=options.allow_host)
    except (OSError, OverflowError) as error:
        told = f"cannot be listened at: {getattr(error, 'strerror', None) or error}; give another --port"
        raise UsageError(f"{options.host}:{options.port} {told}") from error
    with server:
        print(f"{options.run} is shown at {server.url} until Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return OK


@dataclass(frozen=True)
class ExportOptions:
    """Copies the weights of a run's latest checkpoint to one .safetensors file."""

    run: str  # A run directory, or one of its checkpoints; also as the first word.
    out: str  # The file to write, which must not be there; also as the second word.
    ema: bool = False  # The averaged weights.
    lora: Literal["merged", "adapter"] | None = None
    """Of a run with LoRA: "merged" adds it to the weights; "adapter" writes it alone, to a folder that peft loads. By
    default the file has both side by side, as `checkpoint.init_from` takes it."""


def export(words: list[str]) -> int:
    """Writes the file; returns the exit code. Local."""
    options = options_of(ExportOptions, words, "export", ["run", "out"])
    needs("torch", "numpy", "safetensors")
    from . import checkpoint

    found = checkpoint.export(Path(options.run), Path(options.out), ema=options.ema, lora=options.lora)
    print(f"{options.out}: {'averaged ' * options.ema}weights{f' ({options.lora})' if options.lora else ''} of {found}")
    return OK
