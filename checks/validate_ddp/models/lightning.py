"""Lightning's ``Trainer``: what ``fit`` and its like do by themselves, and the hooks of the program that they call."""

from __future__ import annotations

from validate_ddp.interpreter import facts, gradients, metrics
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag, Guard, Loop
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Batch, List, contents
from validate_ddp.interpreter.rows import Attributes, Base, api, method
from validate_ddp.interpreter.training import DEALT, LightningModule, LightningTrainer, Loader
from validate_ddp.interpreter.values import (
    NONE,
    TRUE,
    UNKNOWN,
    Class,
    Const,
    Instance,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    constant,
    join,
)
from validate_ddp.models import hosting
from validate_ddp.models.data import distributed_samplers
from validate_ddp.models.hosting import hook

_WITHIN = "lightning pytorch_lightning"
_MODULES = ("LightningModule", "LightningDataModule")
_ONE = (1, "1")
_SEVERAL = ("ddp", "fsdp", "deepspeed", "bagua", "horovod", "hpu_parallel", "xla")
_COUNTS = ("devices", "gpus", "num_processes", "tpu_cores")
_IN_TRAINING = tuple(
    """on_fit_start on_train_start on_train_epoch_start on_train_batch_start on_before_backward on_after_backward
    on_before_optimizer_step on_before_zero_grad configure_gradient_clipping on_train_batch_end training_step_end
    training_epoch_end on_train_epoch_end on_save_checkpoint on_train_end on_fit_end on_exception""".split()
)


def _trainer(machine: Machine, symbol: Symbol, call: Call) -> Value:
    made = LightningTrainer(call.site, callbacks=call.argument(-1, "callbacks"))
    if not (is_of_one(call) or hosting.is_on_one_device(machine)):
        made.several = TRUE if starts_several(call) else hosting.launched(machine)
    strategy = constant(call.argument(-1, "strategy"))
    if isinstance(strategy, str) and ("spawn" in strategy or "fork" in strategy or "notebook" in strategy):
        made.spawns = TRUE
    dealing = call.argument(-1, "use_distributed_sampler") or call.argument(-1, "replace_sampler_ddp") or TRUE
    made.dealing = dealing
    return (made,)


def is_of_one(call: Call) -> bool:
    """Whether a trainer made like this is one process, whatever starts it."""
    told = constant(_strategy(call))
    one = any(_is_one(call.argument(-1, name)) for name in _COUNTS if call.argument(-1, name))
    return not _is_on_nodes(call) and (one or (isinstance(told, str) and (told == "dp" or told.startswith("single"))))


def _is_on_nodes(call: Call) -> bool:
    nodes = call.argument(-1, "num_nodes")
    return bool(nodes) and constant(nodes) is not None and constant(nodes) not in _ONE


def _strategy(call: Call) -> Value:
    return call.argument(-1, "strategy") or call.argument(-1, "accelerator")


def starts_several(call: Call) -> bool:
    """Whether a trainer made like this is meant to start more ranks than one, which its defaults alone do not say."""
    counts = [call.argument(-1, name) for name in _COUNTS]
    strategy = _strategy(call)
    if _is_on_nodes(call) or any(
        isinstance(atom, Const) and str(atom.value).startswith(_SEVERAL) for atom in bare(strategy)
    ):
        return True  # also where a function chooses between that and one device
    return call.open or any(value and constant(value) not in (None, 0) for value in counts)


def _is_one(value: Value) -> bool:
    """Whether devices are counted or listed, and are one at most."""
    for atom in bare(value):
        if isinstance(atom, List) and "*" not in atom.fields and len(atom.fields) == 1:
            return True
    return constant(value) in _ONE


def _parsed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``Trainer.from_argparse_args(args)``."""
    if symbol.name.split(".")[-2:-1] != ["Trainer"]:
        return UNKNOWN
    made = LightningTrainer(call.site, several=TRUE, dealing=TRUE, callbacks=call.argument(-1, "callbacks"))
    return (made,)


def _based(machine: Machine, base: Symbol, call: Call, cls: Class | None) -> Resource | None:
    """What Lightning makes of an instance of a class of the program."""
    if base.name.partition(".")[0] not in _WITHIN.split():
        return None
    if base.last == "Trainer":
        made = bare(_trainer(machine, base, call))[0]
        return made if isinstance(made, Resource) else None
    return LightningModule(call.site) if base.last in _MODULES else None


def _modules(call: Call) -> list[Instance]:
    """The modules of the program among what a trainer is given, each with its class from Lightning."""
    return [atom for atom in hosting.instances(call.given) if isinstance(atom.base, LightningModule)]


def run(machine: Machine, trainer: LightningTrainer, call: Call) -> Value:
    """``fit``, ``validate``, ``test`` and ``predict``: within them ranks meet, and each runs the hooks."""
    hosting.meet(machine, call)
    if trainer.several:
        if not trainer.spawns:
            _first_rank_came_alone(machine)
        name = "spawn" if trainer.spawns else "lightning"
        machine.record(facts.Launch(name, launched=trainer.several == hosting.LAUNCHED), call.site)
        flags = (Flag.SPAWNED,) if trainer.spawns else ()
        with machine.flagged(*flags):
            _host(machine, trainer, call)
    return UNKNOWN


def _first_rank_came_alone(machine: Machine) -> None:
    """Mark what stands ahead of this run: the first rank has done it by the time that it starts the others here, who
    then do it as well.

    What is behind an earlier run, all ranks do at once; the run of another branch is no earlier one.
    """
    now = tuple(machine.guards)
    runs = [fact for fact in machine.facts if isinstance(fact, facts.Launch) and fact.name == "lightning"]
    if any(_begins(now, run.guards) for run in runs):
        return
    for fact in machine.facts:
        if Flag.PROCESS_FIRST in fact.flags or (runs and not _begins(fact.guards, now)):
            continue
        if not any(run.order < fact.order and _begins(fact.guards, run.guards) for run in runs):
            fact.flags |= {Flag.PROCESS_FIRST, Flag.RUN_AGAIN}


def _begins(guards: tuple[Guard, ...], others: tuple[Guard, ...]) -> bool:
    """Whether code under these guards is in the branch that the others lead to: the very ones, as two branches of one
    condition have equal ones."""
    return len(others) <= len(guards) and all(own is other for own, other in zip(guards, others, strict=False))


def _run_by_unknown(machine: Machine, atom: object, call: Call) -> Value | None:
    """A trainer out of sight, as one that hydra makes, that is given a module of Lightning: a run says where."""
    if not _modules(call):
        return None
    trainer = LightningTrainer(call.site, several=TRUE, dealing=TRUE)
    return run(machine, trainer, call)


def _host(machine: Machine, trainer: LightningTrainer, call: Call) -> None:
    modules = _modules(call)
    for module in modules:
        assert module.base is not None
        module.base.fields["trainer"] = (trainer,)
    for module in modules:
        with machine.guarded("local-zero"):  # each node's first rank prepares what all of it read
            hook(machine, module, "prepare_data", call.site)
    for module in modules:
        for name in ("setup", "configure_model", "configure_sharded_model", "configure_optimizers"):
            hook(machine, module, name, call.site)
    evaluated: Value = _loaders(call.argument(2, "val_dataloaders") if call.name == "fit" else call.given)
    trained: Value = tuple(atom for atom in _loaders(call.given) if not any(atom is other for other in evaluated))
    for module in modules:
        trained = join(trained, hook(machine, module, "train_dataloader", call.site))
        for name in ("val_dataloader", "test_dataloader", "predict_dataloader"):
            evaluated = join(evaluated, hook(machine, module, name, call.site))
    _deal(machine, trainer, trained, call)
    _deal(machine, trainer, evaluated, call)
    holders = [*modules, *hosting.instances(trainer.callbacks)]
    told: dict[str, Value] = {"trainer": (trainer,), "pl_module": tuple(modules) or UNKNOWN}
    kinds = ("training",) if call.name == "fit" else ()
    for holder in holders:
        for kind in (*kinds, *(("validation",) if call.name in ("fit", "validate") else (call.name,))):
            _turn(machine, holder, kind, trained if kind == "training" else evaluated, told, call)


def _loaders(value: Value) -> tuple[Loader, ...]:
    return tuple(atom for atom in (*bare(value), *contents(value)) if isinstance(atom, Loader))


def _turn(machine: Machine, holder: Instance, kind: str, loaders: Value, told: dict[str, Value], call: Call) -> None:
    """The hooks of training, or of an evaluation, which keeps no gradients."""
    found = _loaders(loaders)
    drawn = found or (Loader(call.site, prepared=TRUE),)
    batch: Value = (Opaque("batch", tuple(Batch(loader.site, loader=(loader,)) for loader in drawn[:1])),)
    machine.activations += 1
    loop = Loop(call.site, "", False, False, machine.activations)
    named = {"training": "train"}.get(kind, kind)
    flags = () if kind == "training" else (Flag.NO_GRAD,)
    with machine.flagged(*flags):
        with machine.looping(loop):
            known = len(machine.facts)
            loss = hook(machine, holder, f"{kind}_step", call.site, batch=batch)
            by_hand = any(isinstance(fact, facts.Backward) for fact in machine.facts[known:])
            if kind == "training" and loss and not by_hand:
                machine.record(facts.Backward("lightning", loss=loss), call.site)
        _tell_after(machine, known)
        for loader in drawn if kind != "training" or loss else ():
            machine.record(facts.Iterate("for", loader=(loader,), serial=loop.serial), call.site)
        own = _IN_TRAINING if kind == "training" else hosting.methods(holder, f"on_{named}_")
        for name in own:
            hook(machine, holder, name, call.site, **told)
        for name in (f"{kind}_step_end", f"{kind}_epoch_end"):
            if kind != "training":
                hook(machine, holder, name, call.site)


def _deal(machine: Machine, trainer: LightningTrainer, loaders: Value, call: Call) -> None:
    """Lightning splits what a loader reads, unless it was told not to or the loader has a sampler that does."""
    for atom in (*bare(loaders), *contents(loaders)):
        if not isinstance(atom, Loader):
            continue
        for sampler in distributed_samplers((atom,)):
            machine.record(facts.SetEpoch("set_epoch", target=(sampler,)), call.site)
        if constant(trainer.dealing) is not False and not distributed_samplers((atom,)):
            atom.prepared = DEALT


def _seed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``seed_everything``: alike on every rank; with ``workers=True``, the workers of loaders are seeded by rank."""
    seed, workers = call.value("seed"), call.value("workers")
    machine.record(facts.Seed(symbol.last, seed=seed, library="lightning", workers_apart=workers), call.site)
    return NONE


def _log(machine: Machine, module: LightningModule, call: Call) -> Value:
    """``self.log(..., sync_dist=True)``: the ranks meet in it, now or at the end of the epoch. Without that, and with
    ``rank_zero_only=True``, which turns it off, the first rank tells its own number."""
    synced, own = constant(call.value("sync_dist")), constant(call.value("rank_zero_only")) is True
    if synced is True and not own:
        hosting.meet(machine, call)
    elif own or synced is False or not call.value("sync_dist"):
        with machine.guarded("zero"):
            _tell(machine, call)
    return NONE


def _tell_after(machine: Machine, since: int) -> None:
    """What an evaluation tells of its batches is their mean, known behind the last of them."""
    told = [fact for fact in machine.facts[since:] if isinstance(fact, facts.Report) and Flag.NO_GRAD in fact.flags]
    for fact in told:
        if fact.name in _TELLING:
            with machine.guarded("zero"):
                machine.record(facts.Report(fact.name, value=fact.value, part=fact.part), fact.site)


_TELLING = ("log", "log_dict")


def _tell(machine: Machine, call: Call) -> None:
    """The loss of a batch in training; of an evaluation, the mean over its batches."""
    if Flag.NO_GRAD not in machine.flags:
        metrics.report(machine, call)
    elif metrics.tells_loss(machine, call):
        carried = metrics.with_mark(metrics.SUMMED, carried_by(call.given))
        machine.record(facts.Report(call.name, value=(Opaque(call.name, carried),), part=0), call.site)


def _gather(machine: Machine, module: LightningModule, call: Call) -> Value:
    machine.record(facts.Collective(call.name, arguments=call.given), call.site)
    carried = gradients.collect(machine, call, call.name, call.value("data"))
    return (Opaque("all_gather()", metrics.reduced(call, carried)),)


def _print(machine: Machine, module: LightningModule, call: Call) -> Value:
    with machine.guarded("zero"):
        metrics.report(machine, call)
    return NONE


def _meet(machine: Machine, trainer: LightningTrainer, call: Call) -> Value:
    hosting.meet(machine, call)
    return NONE


_OF_RANK: dict[str, Value] = {
    "global_rank": (Rank("global"),),
    "local_rank": (Rank("local"),),
    "node_rank": (Rank("node"),),
    "is_global_zero": (RankTest("zero"),),
    "world_size": (WorldSize(),),
    "device": (Opaque("device"),),
}
_TRAINER = api("Trainer", _trainer, within=_WITHIN, fact=facts.Launch)

DECLARED = (
    _TRAINER,
    api("from_argparse_args", _parsed, within=_WITHIN, fact=facts.Launch),
    Base(_based),
    api("seed_everything", _seed, within=_WITHIN + " lightning_fabric", parameters="seed workers", fact=facts.Seed),
    method("fit validate test predict", run, of=LightningTrainer),
    method("fit", _run_by_unknown, fact=facts.Launch),
    method("validate test predict", _run_by_unknown),
    method("save_checkpoint", _meet, of=LightningTrainer),
    method("log log_dict", _log, of=LightningModule, parameters="* sync_dist rank_zero_only"),
    method("all_gather", _gather, of=LightningModule, parameters="data", fact=facts.Collective),
    method("manual_backward", of=LightningModule, parameters="loss", fact=facts.Backward, result=NONE),
    method("print", _print, of=LightningModule),
    method("save_hyperparameters toggle_optimizer untoggle_optimizer", of=LightningModule, result=NONE),
    Attributes(LightningTrainer, _OF_RANK),
    Attributes(LightningModule, _OF_RANK),
)
