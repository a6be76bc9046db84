"""The trainer: builds a run from its configuration and executes exactly its plan."""

from __future__ import annotations

import inspect
import itertools
import math
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from .checkpoint import RunCheckpoints
from .checkpoint.weights import fingerprint
from .config import Config, ConfigError
from .core.data import PlannedBatches, Source, loader
from .core.objective import Batch, Objective
from .core.plan import Plan
from .core.step import StepResult, train_step
from .finite import Gate
from .launch import World, refuse_strategy, set_timeout, told_timeout
from .lora import inject_lora
from .metrics import RunLog, run_folder
from .mistakes import look_once, refuse_missing
from .objectives import build_objective
from .observe import draw, evaluate, profiled
from .precision import Precision, recompute_blocks
from .randomness import seed_generators, seed_of
from .signals import Stop, ignore
from .sources import Data, build_data
from .state import Ema, TrainState, settle_buckets, whole

_KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"
"""Off: no buffer here is moved by a forward pass, and the tests hold them equal. Torch 2.13 has renamed it."""


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    step: int
    train: dict[str, float]  # The last interval's means.
    test: dict[str, float]  # Empty where the run was stopped before its end.
    stopped: str = ""  # The signal that the run was stopped by.


class Trainer:
    """One run. Making one and every method that is not said to be local are collective: every rank."""

    def __init__(
        self, config: Config, world: World, *, data: Data | None = None, objective: Objective | None = None
    ) -> None:
        self.config, self.world = config, world
        self.precision = Precision.of(config.precision, config.half)
        gpus = torch.cuda.device_count() if world.device.type == "cuda" else 0
        refuse_strategy(config.dist.strategy, world_size=world.size, gpus=gpus)
        self.data = data or build_data(config)
        self.plan = config.plan(samples=len(self.data.train), world_size=world.size, gpus=gpus)
        # The same weights on every rank; what the model draws later (dropout) must differ between ranks.
        torch.manual_seed(seed_of(config.seed, "weights"))
        objective = objective or build_objective(config, world)
        if config.lora.rank:
            inject_lora(objective.module, config.lora, seed=config.seed)
        if config.activation_checkpointing:
            recompute_blocks(objective)
        self.precision.place(objective.module, world.device)
        self.sharded = config.dist.strategy == "fsdp2" and world.size > 1
        self.model = wrap(objective.module, world, config.dist.strategy, objective.blocks())
        seed_generators(seed_of(config.seed, "rank", world.rank))
        look_once(objective)
        self.cautions = [settle_buckets(self.model, objective, self.first_batch(), self.precision)]
        self.state = build_state(objective, config, self.plan)
        self.gate = Gate(objective, self.state.optimizer, world, policy=config.nonfinite, scaler=self.state.scaler)
        self.stop = Stop(World(), timeout=0)  # Whoever is asked about stopping; nobody outside of ``run``.
        self.tell: Callable[[str], None] = lambda line: None  # Where a note goes; nowhere outside of ``run``.
        self.stopped: signal.Signals | None = None
        self.lr = math.nan  # Learning rate of the last step that was taken; a group's own may be a multiple of it.
        self.state.optimizer.register_step_pre_hook(self._note_lr)

    def run(self) -> Summary:
        """Trains from where its checkpoints are to the end of the plan, or until a signal; and evaluates."""
        config, state, world, train = self.config, self.state, self.world, {}
        refuse_missing(state.objective, "evaluate")
        folder, test = run_folder(config, world), {}
        with (
            Stop(world, timeout=config.dist.start_timeout) as self.stop,
            RunCheckpoints(folder, config, self.plan, world) as checkpoints,
        ):
            resumed = checkpoints.begin(state)
            if world.is_main:
                state.objective.begin(folder)
            with (
                RunLog(folder, config, self.plan, world, step=state.step) as log,
                profiled(config.profile, folder / "profile", world, log.show) as profiled_step,
            ):
                self.gate.tell, self.tell = partial(log.tell, "warning"), partial(log.tell, "note")
                for caution in filter(None, [self.precision.caution(world.device), *self.cautions]):
                    log.tell("warning", caution)
                if resumed and self.due(config.eval_every) and state.evaluated < state.step:
                    self.validate(log, checkpoints)  # it was cut short
                for result in self.steps():
                    profiled_step()
                    log.add(result, lr=self.lr)
                    if self.due(config.log_every):
                        train = log.interval(state.step)
                    best = self.due(config.eval_every) and not self.stopped and self.validate(log, checkpoints)
                    if best or self.stopped or self.due(config.checkpoint.save_every or self.plan.optimizer_steps):
                        self.gate.settle()
                        with log.doing("saving"):
                            last = self.stopped or state.step == self.plan.optimizer_steps
                            checkpoints.save(state, wait=bool(last) or not config.checkpoint.background)
                if not self.stopped:
                    with log.doing("evaluating"):
                        test = self.evaluate(self.data.test)
                if not config.eval_every:
                    self.draw(log)
                if self.stopped:
                    said = f"stopped at step {state.step} of {self.plan.optimizer_steps} on {self.stopped.name}"
                    log.stopped(f"{said}; the same command with run_dir {folder} goes on from there")
                else:
                    log.evaluation(state.step, "test", test)
                log.weights(state.step, fingerprint(state.objective.module.state_dict()))
        return Summary(state.step, train, {} if self.stopped else test, self.stopped.name if self.stopped else "")

    def validate(self, log: RunLog, checkpoints: RunCheckpoints) -> bool:
        """Evaluates while training; returns whether this is the best so far. Nothing, where it was cut short."""
        with log.doing("evaluating"):
            metrics = self.evaluate(self.data.validation)
        if self.stopped:
            return False
        self.state.evaluated = self.state.step
        log.evaluation(self.state.step, "validation", metrics)
        self.draw(log)
        return checkpoints.is_best(self.state, metrics)

    def draw(self, log: RunLog) -> None:
        """Has the objective draw what it has learned, on rank zero; not where the model is sharded, or told to stop."""
        if self.world.is_main and not self.sharded and not self.stopped:
            with self.precision.drawing(self.world.device):
                line = draw(self.state.objective, self.state.ema, log.folder, self.state.step, self.world.device)
            if line:
                log.tell("drawn", line)

    def steps(self) -> Iterator[StepResult]:
        """Executes the plan from where the state is; yields after each optimizer step."""
        state, config, begun = self.state, self.config, False
        sampler = PlannedBatches(self.plan, self.world.rank, seed=config.seed, start_step=state.step)
        how: dict[str, Any] = {"workers": config.data.workers, "pin_memory": config.data.pin_memory}
        stream = iter(loader(self.data.train, sampler, **how, in_worker=ignore))
        forward = self.precision.forward(self.model)
        around = {"clip": config.optim.clip, "scheduler": state.scheduler, "ema": state.ema, "forward": forward}
        while state.step < self.plan.optimizer_steps and not self.stopped:
            self.stop.begin_step()
            micro = itertools.islice(stream, self.plan.accumulation)
            batches = [batch.to(self.world.device, self.precision.weights) for batch in micro]
            result = train_step(self.model, state.objective, self.gate, batches, world=self.world, **around)
            state.step += 1
            if not begun:
                begun = True
                self.shorten_timeouts()
            self.stopped = self.stop.end_step()
            yield result._replace(grad_norm=whole(result.grad_norm)) if self.sharded else result

    def shorten_timeouts(self) -> None:
        """From the start's to training's, also for those who wait while rank zero saves or draws. Local, on all."""
        dist = self.config.dist
        effective = set_timeout(self.world, dist.train_timeout)
        self.stop.set_timeout(dist.train_timeout)
        if self.world.group is not None:
            self.tell(told_timeout(dist.train_timeout, effective, dist.start_timeout))

    def first_batch(self) -> Batch:
        """The first micro-batch of the plan. Local."""
        first = next(iter(PlannedBatches(self.plan, self.world.rank, seed=self.config.seed)))
        data = self.data.train.fetch(first.index, first.epoch)
        return Batch(first.index, first.epoch, first.step, data).to(self.world.device, self.precision.weights)

    def _note_lr(self, optimizer: Optimizer, *_: Any) -> None:
        self.lr = self.plan.lr * optimizer.param_groups[0]["lr"] / self.state.scheduler.base_lrs[0]

    def due(self, every: int) -> bool:
        """Whether something that happens every n steps happens now; the last step counts. Local."""
        return every > 0 and (self.state.step % every == 0 or self.state.step == self.plan.optimizer_steps)

    def evaluate(self, source: Source) -> dict[str, float]:
        """The objective's metrics on a source, with the averaged weights; where it is ``stopped`` then, on a part."""
        state = self.state
        self.gate.settle()
        # Forward passes of a sharded model are collective: all make as many, and all stop at the same.
        interrupted = self.stop.agree if self.sharded else lambda: self.stop.received
        how: dict[str, Any] = {"batch_size": self.config.eval_batch, "precision": self.precision}
        how |= {"interrupted": interrupted, "together": self.sharded}
        with state.ema.swapped(state.objective.module) if state.ema else nullcontext():
            found = evaluate(state.objective, source, world=self.world, **how)
        self.stopped = self.stopped or self.stop.agree()
        return found


def build_state(objective: Objective, config: Config, plan: Plan) -> TrainState:
    """Optimizer, schedule and average for an objective. Local."""
    optim, groups, device = config.optim, objective.parameter_groups(), next(objective.module.parameters()).device
    for group in groups:
        group["lr"] = plan.lr * group.pop("lr_factor", 1.0)
    # On a GPU fused, which can leave out a step that is not finite without being waited for (see `finite`).
    how: dict[str, Any] = {"weight_decay": optim.weight_decay, "fused": device.type == "cuda" or None}
    optimizer = AdamW(groups, lr=plan.lr, betas=optim.betas or objective.betas, **how)
    scheduler = LambdaLR(optimizer, lambda step: optim.factor(step, plan.optimizer_steps))
    ema = Ema(objective.module, config.ema.decay) if config.ema.decay else None
    return TrainState(objective, optimizer, scheduler, ema, Precision.of(config.precision).scaler(device))


def wrap(module: nn.Module, world: World, strategy: str = "ddp", blocks: Iterable[nn.Module] = ()) -> nn.Module:
    """The module in DDP where there are several ranks, in shards or DataParallel where asked. Collective: every rank.

    blocks: parts that are sharded each for itself, so that no rank ever holds more than one of them whole; gradients
    are averaged into shards in each micro-step. Batch statistics are refused.
    """
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            told = "batch statistics differ between ranks; use GroupNorm or LayerNorm"
            raise ConfigError(f"{name} is a {type(part).__name__}: {told}")
    if strategy == "dp":
        return nn.DataParallel(module)
    if world.size == 1:
        return module
    if strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(world.device.type, (world.size,))
        for part in (*blocks, module):
            # The outermost too: after an evaluation its weights would stay gathered, and hide what is then changed.
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
        return module  # the same, which is another class now
    return DistributedDataParallel(
        module,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        process_group=world.group,
        gradient_as_bucket_view=True,
        **{_SYNC_BUFFERS: False},
    )
