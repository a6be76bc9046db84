"""The ``Trainer`` of transformers and those of trl: their loop, their options, and what the program overrides."""

from __future__ import annotations

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Batch
from validate_ddp.interpreter.rows import Attributes, Base, api, method
from validate_ddp.interpreter.training import Accelerator, Loader, Trainer, TrainerState, TrainingArguments
from validate_ddp.interpreter.values import (
    NONE,
    TRUE,
    UNKNOWN,
    Class,
    Instance,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Symbol,
    Value,
    WorldSize,
    constant,
    join,
)
from validate_ddp.models import hosting, networks
from validate_ddp.models.hosting import LAUNCHED, hook

_WITHIN = "transformers trl"
_TRAINERS = frozenset(
    """Trainer Seq2SeqTrainer SFTTrainer DPOTrainer GRPOTrainer RewardTrainer KTOTrainer ORPOTrainer CPOTrainer
    BCOTrainer RLOOTrainer OnlineDPOTrainer XPOTrainer NashMDTrainer GKDTrainer PRMTrainer
    IterativeSFTTrainer""".split()
)
_ARGUMENTS = frozenset({"TrainingArguments", "Seq2SeqTrainingArguments"})
_OF_TRL = frozenset(
    """SFTConfig DPOConfig GRPOConfig RewardConfig KTOConfig ORPOConfig
    CPOConfig BCOConfig RLOOConfig OnlineDPOConfig XPOConfig NashMDConfig GKDConfig PRMConfig""".split()
)
_OF_SEVERAL = frozenset(
    """local_rank ddp_backend ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_timeout deepspeed
    fsdp fsdp_config""".split()
)
"""Options that nobody sets for one process."""

_SETTING_UP = """get_train_dataloader _get_train_sampler get_train_sampler get_eval_dataloader _get_eval_sampler
    create_optimizer create_scheduler create_optimizer_and_scheduler""".split()
_TRAINING = "_inner_training_loop training_step compute_loss log _maybe_log_save_evaluate".split()
_EVALUATING = "evaluate evaluation_loop prediction_loop prediction_step".split()
_SAVING = "_save_checkpoint save_model _save_optimizer_and_scheduler _rotate_checkpoints".split()


def _arguments(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (_options(call),)


def _options(call: Call) -> TrainingArguments:
    given = {name for name, value in call.keywords.items() if constant(value) not in (None, "", -1)}
    return TrainingArguments(call.site, dict(call.keywords), call.open or not _OF_SEVERAL.isdisjoint(given))


def _made(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (_trainer(machine, call),)


def _trainer(machine: Machine, call: Call) -> Trainer:
    made = Trainer(call.site, callbacks=call.argument(-1, "callbacks"))
    made.metrics = call.argument(-1, "compute_metrics")
    for atom in call.given:
        held = atom.base if isinstance(atom, Instance) else atom
        if isinstance(held, TrainingArguments):
            made.args = (atom,)
            made.several = TRUE if held.several else ()
    accelerator = Accelerator(call.site)
    made.several = made.several or hosting.launched(machine)
    if hosting.is_on_one_device(machine):
        made.several = ()
    if not made.several:
        accelerator.single = TRUE
    made.fields["accelerator"] = (accelerator,)
    made.fields["state"] = (TrainerState(call.site),)
    return made


def _based(machine: Machine, base: Symbol, call: Call, cls: Class | None) -> Resource | None:
    """The trainer, or the options, that an instance of a class of the program is."""
    if base.name.partition(".")[0] not in _WITHIN.split():
        return None
    if base.last in _TRAINERS:
        return _trainer(machine, call)
    return _options(call) if base.last in _ARGUMENTS | _OF_TRL else None


def _train(machine: Machine, trainer: Trainer, call: Call) -> Value:
    """The loop: it wraps and deals out by Accelerate, and calls what the program overrides on every rank."""
    hosting.meet(machine, call)
    if trainer.several and constant(trainer.hosting) is not True:
        trainer.hosting = TRUE
        machine.record(facts.Launch("trainer", launched=trainer.several == LAUNCHED), trainer.site)
        _host(machine, trainer, call)
    return (Opaque("TrainOutput"),)


def _host(machine: Machine, trainer: Trainer, call: Call) -> None:
    batch: Value = (Opaque("inputs", (Batch(call.site, loader=(Loader(call.site, prepared=TRUE),)),)),)
    for own in hosting.owners(trainer):
        for name in _SETTING_UP:
            hook(machine, own, name, call.site)
        for name in _TRAINING:
            hook(machine, own, name, call.site, inputs=batch)
        with machine.flagged(Flag.NO_GRAD):
            for name in _EVALUATING:
                hook(machine, own, name, call.site)
        for name in _SAVING:
            hook(machine, own, name, call.site)
        with machine.guarded("zero"):  # save_model asks for `args.should_save`
            hook(machine, own, "_save", call.site)
    hosting.function(machine, trainer.metrics, call.site)
    told: dict[str, Value] = {"args": trainer.args or UNKNOWN, "state": trainer.fields["state"]}
    for callback in hosting.instances(trainer.callbacks):
        for name in hosting.methods(callback, "on_"):
            hook(machine, callback, name, call.site, **told)


def _meet(machine: Machine, trainer: Trainer, call: Call) -> Value:
    hosting.meet(machine, call)
    return (Opaque(call.name + "()"),)


def _add(machine: Machine, trainer: Trainer, call: Call) -> Value:
    trainer.callbacks = join(trainer.callbacks, call.argument(0, "callback"))
    return NONE


def _save(machine: Machine, trainer: Trainer, call: Call) -> Value:
    """``_save`` writes wherever it is called; ``save_model`` asks which rank it is."""
    path = call.argument(0, "output_dir")
    held: Value = (Opaque("model"),)
    machine.record(facts.Save(call.name, object=held, path=path, role="checkpoint"), call.site)
    return NONE


_ZERO, _LOCAL_ZERO = (RankTest("zero"),), (RankTest("local-zero"),)
_OF_STATE: dict[str, Value] = {"is_world_process_zero": _ZERO, "is_local_process_zero": _LOCAL_ZERO}
_OF_ARGUMENTS: dict[str, Value] = {
    "should_save": _ZERO,
    "should_log": _ZERO,
    "local_rank": (Rank("local"),),
    "local_process_index": (Rank("local"),),
    "process_index": (Rank("global"),),
    "world_size": (WorldSize(),),
    "device": (Opaque("device"),),
}

DECLARED = (
    api(_ARGUMENTS, _arguments, within="transformers", fact=facts.Launch),
    api(_OF_TRL, _arguments, within="trl"),
    api(_TRAINERS, _made, within=_WITHIN),
    Base(_based),
    method("train", _train, of=Trainer, fact=facts.Launch),
    method("evaluate predict hyperparameter_search", _meet, of=Trainer),
    method("add_callback", _add, of=Trainer),
    method("is_world_process_zero", of=Trainer, result=_ZERO),
    method("is_local_process_zero", of=Trainer, result=_LOCAL_ZERO),
    method("_save", _save, of=Trainer, fact=facts.Save),
    method(
        """save_model save_state save_metrics log_metrics push_to_hub create_model_card log _save_checkpoint
        remove_callback pop_callback""",
        of=Trainer,
        result=NONE,
    ),
    method("main_process_first", networks.entered, of=TrainingArguments),
    Attributes(TrainingArguments, _OF_ARGUMENTS),
    Attributes(TrainerState, _OF_STATE),
)
