"""The command `reference-trainer`. Exit codes: 0 done; 1 a check failed, or training; 2 bad input; 130 Ctrl-C."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from .config import Config, ConfigError, DistConfig
from .core.plan import PlanError, rows_per_rank
from .launch import LOST, World, alone_by_mistake, detect, with_accelerate
from .monitor.records import as_json
from .progress import shown, table
from .settings import OWN, Layer, in_new_form, made, own_types, parsed, read_layers, show_help, typed, types_of

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
STAND_BACK = 5.0
"""Seconds for which the other ranks of a machine wait before they tell an error: most are the same on all ranks, and a
launcher ends the others when the first has ended."""
_HELP = """\
usage: reference-trainer COMMAND [OPTIONS]

  train     train a model: on one process, or on each rank of torchrun, srun or accelerate launch
  plan      what a run will do: steps, batches, learning rate, duration
  doctor    try out these machines: gathering, club, data, checkpoint
  status    how a run is doing; of several runs, how well they scale
  serve     the same as a page in the browser
  evaluate  what the model that a run has saved comes to, on any number of ranks
  export    the weights of a run as one .safetensors file

reference-trainer COMMAND --help shows the options of a command.
  torchrun --nproc-per-node 2 -m reference_trainer train --config base.yaml optim.lr=3e-4 --steps 100
  reference-trainer plan --samples 170180 --gpus 2 --epochs 5
  reference-trainer serve runs/20260101-120000
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Collective under a launcher: every rank."""
    # `python -m torch.distributed.launch` adds what the environment tells.
    given = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in given if not word.startswith(("--local-rank=", "--local_rank="))]
    commands = {each.__name__: each for each in (train, plan, doctor, status, serve, evaluate, export)}
    try:
        if not words or words[0] in ("-h", "--help"):
            print(_HELP, end="")
            return OK if words else BAD_INPUT
        if words[0] not in commands:
            raise ConfigError(f"unknown command {words[0]!r}; there are {', '.join(commands)}")
        return commands[words[0]](words[1:])
    except SystemExit as error:
        if {"-h", "--help"} & set(words):  # a parser has printed its help
            return OK
        raise _left(error) from error
    except ConfigError as error:
        tell(error)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def _left(error: SystemExit) -> RuntimeError:
    """For code of the user's that ends the process: to a launcher, and to a shell, that looks like success. Local."""
    return RuntimeError(f"sys.exit({'' if error.code is None else repr(error.code)}) was called before all was done")


def tell(error: Exception) -> None:
    """Prints an error in one line, with the rank where there are several. Local."""
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) != "0":
        time.sleep(STAND_BACK)
    where = f"rank {rank}: " if rank != "0" else ""
    print(f"reference-trainer: error: {where}{' '.join(str(error).split())}", file=sys.stderr, flush=True)


def run() -> NoReturn:
    """The command as a process. Where it failed it ends at once: peers may sit in a collective, and to take a group
    apart in that state can wait for them until the time-out. They lose their peer when all has been told."""
    # Where ranks do not meet, torch warns with pages of its own frames around our one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        code = main()
        if sys.stdout is not None:  # closed, as a daemon's
            sys.stdout.flush()
    except BrokenPipeError:  # nobody reads: `train --help | head -5`
        code = FAILED
    except Exception as error:  # noqa: BLE001 - it is told, and the process ends
        several = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1")) != "1"
        if several and isinstance(error, RuntimeError) and LOST.search(str(error)):
            told = f"a peer has gone: {' '.join(str(error).split())}"
            tell(RuntimeError(f"{told}; the rank that failed first tells why, or was killed"))
        else:
            traceback.print_exc()
        code = FAILED
    if code != OK:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def needs(*packages: str) -> None:
    """Refuses, in one line, to begin without these packages; imports none of them. Local."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ConfigError(f"{', '.join(missing)} missing: pip install 'validate-ddp[trainer]'")


def read_config(words: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The configuration that words describe, or ``ConfigError``; rank zero tells older names. Local; every rank."""
    if {"-h", "--help"} & set(words):
        print("usage: reference-trainer train [OPTIONS]\n")
        told = (
            "Settings come from, and the later one wins: the defaults shown here; --config FILE.yaml, which may begin "
        )
        show_help(Config, told + "with `defaults: [other.yaml]`; key=value, such as optim.lr=3e-4; options, as here.")
    return config_of(parsed(words, types_of(Config)), environ)


def config_of(given: Layer, environ: Mapping[str, str]) -> Config:
    """The same, of words that were taken apart. Local."""
    kinds, values, renamed, launch = types_of(Config), Layer(), list[str](), detect(environ)
    layers = [layer for file in given.pop("config", []) for layer in read_layers(Path(file))]
    layers.append(("command line", given))
    named = {name: value for _, layer in layers for name, value in layer.items()}
    for section, setting in OWN.items():
        if ":" in named.get(setting, ""):
            kinds |= own_types(named[setting], setting, section)
    for place, layer in layers:
        found, told = in_new_form(layer, place, launched=launch.launcher != "single")
        renamed += told
        values |= typed(found, kinds, place)
    if renamed and launch.rank == 0:
        print(f"reference-trainer: older names in their new form: {', '.join(renamed)}", file=sys.stderr)
    return made(Config(), values)


def train(words: list[str]) -> int:
    """Trains; returns the exit code. Collective under a launcher: every rank."""
    config = with_accelerate(read_config(words, os.environ), os.environ)
    if warning := alone_by_mistake(os.environ):
        print(f"reference-trainer: warning: {warning}", file=sys.stderr)
    needs("torch", "numpy", "safetensors", "psutil", "PIL")
    # Known before the ranks meet, and before torch is imported.
    rows_per_rank(config.global_batch_or_default, config.batch_size, detect(os.environ).world_size, config.accumulation)
    from torch.distributed.elastic.multiprocessing.errors import record

    from .finite import NonFiniteError
    from .signals import ignore
    from .trainer import Trainer

    @record  # so that torchrun shows which failure was the first of all ranks; one that is told in a line is none
    def run() -> int:
        try:
            with World.from_env(dist=config.dist, device=config.device) as world:
                if stopped := Trainer(config, world).run().stopped:
                    ignore()  # the end of the process is under way, and its exit code is to say so
        except (ConfigError, NonFiniteError) as error:
            tell(error)
            return BAD_INPUT if isinstance(error, ConfigError) else FAILED
        except SystemExit as error:  # `record` would take 0 for a return
            raise _left(error) from error
        return INTERRUPTED if stopped == "SIGINT" else OK  # so that `train && export` does not go on

    code: int = run()
    return code


def plan(words: list[str]) -> int:
    """What a run will do, before anyone pays for it: steps, batches, learning rate, duration. Takes what `train` takes
    too; with --samples and no --config a batch is 1 a GPU."""
    parser = _parser(plan, machine=True)
    parser.add_argument("--samples", type=int, help="of the data; by default those that the run trains on")
    parser.add_argument("--gpus", type=int, default=1, help="ranks: processes, one a GPU (default: 1)")
    parser.add_argument("--steps-per-second", type=float, help="optimizer steps, as measured: gives the duration")
    options, rest = parser.parse_known_args(words)
    rate, samples, given = options.steps_per_second, options.samples, parsed(rest, types_of(Config))
    if rate is not None and not 0 < rate < float("inf"):
        raise PlanError(f"steps_per_second is {rate}; it must be above 0")
    if samples is not None and not {"config", "batch_size", "global_batch"} & set(given):
        given["batch_size"] = "1"
    config = config_of(given, {})
    if samples is None:
        samples = config.data.train_samples
        if config.data.source:  # of data of one's own, by making it
            from .sources import build_data

            samples = len(build_data(config).train)
    found = config.plan(samples=samples, world_size=options.gpus)
    if options.format == "json":
        seconds = {} if rate is None else {"seconds": found.optimizer_steps / rate}
        keys = "samples_per_rank padded dropped micro_steps_per_epoch optimizer_steps_per_epoch optimizer_steps"
        own = {key: getattr(found, key) for key in (*keys.split(), "effective_batch_size", "lr")}  # tools rely on them
        print(json.dumps(own | seconds, indent=2))
    else:
        print(table(found, rate))
    return OK


def doctor(words: list[str]) -> int:
    """Tries out these machines, under the launcher that will train on them: every rank. Exit code 1 where a check
    fails."""
    parser = _parser(doctor)
    checks = ["all", "gathering", "club", "data", "checkpoint"]
    parser.add_argument("check", nargs="?", choices=checks, default="all", help="which one (default: all)")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where runs will be written (default: runs)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that ranks wait for each other")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--dist.backend", choices=["auto", "gloo", "nccl"], default="auto", dest="backend")
    options = parser.parse_args(words)
    if not options.timeout > 0:
        raise ConfigError("--timeout must be above 0")
    needs("torch", "numpy", "safetensors", "psutil")
    with World.from_env(dist=DistConfig(backend=options.backend), device=options.device) as world:
        from .doctor import diagnose, table
        from .metrics import world_in_words

        verdicts = diagnose(world, options.check, options.folder, options.timeout)
        if world.is_main:
            print(world_in_words(world), table(verdicts), sep="\n", flush=True)
        if any(verdict.broken for verdict in verdicts):
            os._exit(FAILED)  # the group is out of step: it ends with the process only
        return OK if all(verdict.passed for verdict in verdicts) else FAILED


def status(words: list[str]) -> int:
    """How a run is doing, as its ranks have written; exit code 1 where it has failed or is stale. Several runs are
    compared: samples a second against the run on the fewest ranks."""
    parser = _parser(status, machine=True)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    options = parser.parse_args(words)
    from .monitor.reading import show

    return OK if show(options.runs, machine=options.format == "json") else FAILED


def serve(words: list[str]) -> int:
    """A page on which runs can be watched, and their status for tools, read-only; until Ctrl-C. There is no password:
    from afar, ssh -L 8765:127.0.0.1:8765 MACHINE is better than --host."""
    parser = _parser(serve)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--port", type=int, default=8765, help="0 takes one that is free (default: 8765)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine alone)")
    told = "a name of this machine by which others ask; needed with --host"
    parser.add_argument("--allow-host", action="append", default=[], help=told)
    options = parser.parse_args(words)
    if options.host != "127.0.0.1" and not options.allow_host:
        told = f"--host {options.host} lets others look, without a password; say by which names of this machine:"
        raise ConfigError(f"{told} --allow-host NAME")
    from .monitor.server import MonitorServer

    try:
        server = MonitorServer(*options.runs, host=options.host, port=options.port, allow_host=options.allow_host)
    except (OSError, OverflowError) as error:
        told = f"cannot be listened at: {getattr(error, 'strerror', None) or error}; give another --port"
        raise ConfigError(f"{options.host}:{options.port} {told}") from error
    with server:
        print(f"{', '.join(map(str, options.runs))} is shown at {server.url} until Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return OK


def evaluate(words: list[str]) -> int:
    """What a saved model comes to: the latest checkpoint of a run, or one that is named, on its validation and test
    part. Takes what `train` takes too, such as --device; changes nothing of the run. Under a launcher: every rank."""
    parser = _parser(evaluate, machine=True)
    parser.add_argument("run", type=Path, help="a run directory, or one of its checkpoints")
    options, rest = parser.parse_known_args(words)
    needs("torch", "numpy", "safetensors", "PIL")
    places = (options.run, *options.run.parents[1:2])  # of RUN/checkpoints/step-00000100 too
    run = next((each for each in places if (each / "config.json").is_file()), options.run)
    given = parsed(rest, types_of(Config))
    given |= {"config": [str(run / "config.json"), *given.get("config", [])], "checkpoint.resume": str(options.run)}
    config = with_accelerate(config_of(given, os.environ), os.environ)
    from .checkpoint import RunCheckpoints
    from .trainer import Trainer

    with World.from_env(dist=config.dist, device=config.device) as world, TemporaryDirectory() as elsewhere:
        trainer = Trainer(config, world)
        with RunCheckpoints(Path(elsewhere), config, trainer.plan, world) as checkpoints:
            read = checkpoints.begin(trainer.state, to_train=False)
        parts = {"validation": trainer.data.validation, "test": trainer.data.test}
        found = {name: trainer.evaluate(source) for name, source in parts.items() if len(source)}
        if world.is_main and options.format == "json":
            print(as_json({"checkpoint": str(read), "step": trainer.state.step, **found}).decode(), end="")
        elif world.is_main:
            print(*(f"{name}: {shown(metrics)}" for name, metrics in found.items()), sep="\n", flush=True)
    return OK


def export(words: list[str]) -> int:
    """Copies the weights of a run's latest checkpoint to one .safetensors file."""
    parser = _parser(export)
    parser.add_argument("run", type=Path, help="a run directory, or one of its checkpoints")
    parser.add_argument("out", type=Path, help="the file to write, which must not be there")
    parser.add_argument("--ema", action="store_true", help="the averaged weights")
    told = "of a run with LoRA: added to the weights, or alone, for peft; by default the file has both side by side"
    parser.add_argument("--lora", choices=["merged", "adapter"], help=told)
    options = parser.parse_args(words)
    needs("torch", "numpy", "safetensors")
    from . import checkpoint

    found = checkpoint.export(options.run, options.out, ema=options.ema, lora=options.lora)
    of_lora = f" ({options.lora})" if options.lora else ""
    print(f"{options.out}: {'averaged ' * options.ema}weights{of_lora} of {found}")
    return OK


class _Parser(argparse.ArgumentParser):
    """Options of a command; a mistake is one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} ({self.prog} --help)")


def _parser(command: Callable[[list[str]], int], *, machine: bool = False) -> _Parser:
    parser = _Parser(prog=f"reference-trainer {command.__name__}", description=command.__doc__, allow_abbrev=False)
    if machine:
        parser.add_argument("--format", choices=["text", "json"], default="text", help="a table, or JSON for tools")
    return parser
