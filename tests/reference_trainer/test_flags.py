"""Every setting changes something: each field of the configuration has an observable here, or this fails."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from trainer_runs import same  # noqa: E402

from reference_trainer import config as sections  # noqa: E402
from reference_trainer.config import Config  # noqa: E402
from reference_trainer.core.data import PlannedBatches, loader  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.trainer import Trainer, build_data  # noqa: E402

pytestmark = pytest.mark.runtime

BASE: dict[str, Any] = {
    "precision": "float64",
    "steps": 6,
    "global_batch": 32,
    "seed": 1,
    "data.train_samples": 100,
    "data.validation_samples": 10,
    "eval_every": 4,
    "log_every": 3,
    "lora.targets": ("task.0",),
}
"""What every case starts from: short, but with several log lines, evaluations and epochs. LoRA is off."""

FLOW = {"objective": "flow_matching", "flow_matching.width": 8, "flow_matching.heads": 2, "flow_matching.depth": 1}
DISTILL = {
    "objective": "distillation",
    "distillation.hidden": (8,),
    "distillation.teacher_hidden": (8, 6),
    "distillation.teacher_steps": 2,
}
LENS = {"objective": "lens", "lens.backbone_hidden": (8, 6), "lens.backbone_steps": 2, "lens.hidden": 8, "lens.code": 4}
"""The other objectives, small."""

WEIGHTS = "weights"
CASES: dict[str, tuple[dict[str, Any], str]] = {
    # field: (what is changed, what is then different)
    "seed": ({"seed": 2}, WEIGHTS),
    "precision": ({"precision": "float32"}, "dtype"),
    "steps": ({"steps": 7}, "steps"),
    "epochs": ({"steps": None, "epochs": 1}, "steps"),
    "global_batch": ({"global_batch": 16}, WEIGHTS),
    "batch_size": ({"global_batch": None, "batch_size": 8}, WEIGHTS),
    "accumulation": ({"accumulation": 2}, "micro_steps"),
    "drop_last": ({"steps": None, "epochs": 2, "drop_last": True}, "steps"),
    "repeat": ({"steps": None, "epochs": 2, "repeat": 2}, "steps"),
    "log_every": ({"log_every": 2}, "logged"),
    "eval_every": ({"eval_every": 2}, "evaluated"),
    "eval_batch": ({"eval_batch": 7}, "evaluation_sizes"),
    "optim.lr": ({"optim.lr": 2e-3}, WEIGHTS),
    "optim.betas": ({"optim.betas": (0.1, 0.9)}, WEIGHTS),
    "optim.weight_decay": ({"optim.weight_decay": 0.5}, WEIGHTS),
    "optim.clip": ({"optim.clip": 1e-3}, WEIGHTS),
    "optim.schedule": ({"optim.schedule": "cosine"}, WEIGHTS),
    "optim.step_every": ({"optim.schedule": "step", "optim.step_every": 2}, WEIGHTS),
    "optim.cooldown": ({"optim.schedule": "wsd", "optim.cooldown": 0.5}, WEIGHTS),
    "optim.warmup_steps": ({"optim.warmup_steps": 4}, WEIGHTS),
    "optim.lr_scaling": ({"optim.lr_scaling": "linear"}, WEIGHTS),
    "optim.base_batch": ({"optim.lr_scaling": "linear", "optim.base_batch": 4}, WEIGHTS),
    "ema.decay": ({"ema.decay": 0.5}, "evaluations"),
    "lora.rank": ({"lora.rank": 2}, WEIGHTS),
    "lora.alpha": ({"lora.rank": 2, "lora.alpha": 8.0}, WEIGHTS),
    "lora.dropout": ({"lora.rank": 2, "lora.dropout": 0.5}, WEIGHTS),
    "lora.targets": ({"lora.rank": 2, "lora.targets": ("task.0", "digit")}, WEIGHTS),
    "lora.within": ({"lora.rank": 2, "lora.targets": ("0",), "lora.within": "task"}, WEIGHTS),
    "data.train_samples": ({"data.train_samples": 90}, WEIGHTS),
    "data.validation_samples": ({"data.validation_samples": 20}, "evaluations"),
    "data.workers": ({"data.workers": 2}, "workers"),
    "data.pin_memory": ({"data.pin_memory": True}, "pinned"),
    "club.enabled": ({"club.enabled": False}, WEIGHTS),
    "club.weight": ({"club.weight": 0.5}, WEIGHTS),
    "club.variance": ({"club.variance": "unit"}, WEIGHTS),
    "club.update_every": ({"club.update_every": 3}, WEIGHTS),
    "club.inner_steps": ({"club.inner_steps": 2}, WEIGHTS),
    "club.lr": ({"club.lr": 0.1}, WEIGHTS),
    "club.hidden": ({"club.hidden": (8,)}, WEIGHTS),
    "club.warmup_steps": ({"club.warmup_steps": 5}, WEIGHTS),
    "club.accumulation": ({"accumulation": 2, "club.accumulation": "micro"}, WEIGHTS),
    "objective": ({"objective": "lens"}, WEIGHTS),
    "flow_matching.width": (FLOW | {"flow_matching.width": 12}, WEIGHTS),
    "flow_matching.depth": (FLOW | {"flow_matching.depth": 2}, WEIGHTS),
    "flow_matching.heads": (FLOW | {"flow_matching.heads": 1}, WEIGHTS),
    "distillation.hidden": (DISTILL | {"distillation.hidden": (6,)}, WEIGHTS),
    "distillation.teacher_hidden": (DISTILL | {"distillation.teacher_hidden": (9, 6)}, WEIGHTS),
    "distillation.teacher_steps": (DISTILL | {"distillation.teacher_steps": 3}, WEIGHTS),
    "distillation.hard": (DISTILL | {"distillation.hard": 0.5}, WEIGHTS),
    "distillation.soft": (DISTILL | {"distillation.soft": 0.5}, WEIGHTS),
    "distillation.temperature": (DISTILL | {"distillation.temperature": 8.0}, WEIGHTS),
    "distillation.feature": (DISTILL | {"distillation.feature": 0.5}, WEIGHTS),
    "lens.backbone_hidden": (LENS | {"lens.backbone_hidden": (9, 6)}, WEIGHTS),
    "lens.backbone_steps": (LENS | {"lens.backbone_steps": 3}, WEIGHTS),
    "lens.layer": (LENS | {"lens.layer": 2}, WEIGHTS),
    "lens.code": (LENS | {"lens.code": 3}, WEIGHTS),
    "lens.hidden": (LENS | {"lens.hidden": 9}, WEIGHTS),
    "lens.consistency": (LENS | {"lens.consistency": 0.1}, WEIGHTS),
    "lens.train": (LENS | {"lens.train": ("encoder",)}, WEIGHTS),
    "lens.encoder_lr": (LENS | {"lens.encoder_lr": 0.1}, WEIGHTS),
    "lens.decoder_lr": (LENS | {"lens.decoder_lr": 0.1}, WEIGHTS),
    "disentangle.hidden": ({"disentangle.hidden": (32,)}, WEIGHTS),
    "disentangle.features": ({"disentangle.features": 8}, WEIGHTS),
    "disentangle.noise": ({"disentangle.noise": 0.1}, WEIGHTS),
    "disentangle.reconstruction": ({"disentangle.reconstruction": 0.1}, WEIGHTS),
}
ELSEWHERE = {
    "nonfinite": "test_finite.py: what is skipped under one value stops the run under the other",
    "flow_matching.sampling_steps": "test_flow_matching.py::test_more_sampling_steps_draw_something_else",
    "distillation.teacher": "test_distillation.py::test_a_teacher_is_loaded_from_whatever_holds_it",
    "lens.backbone": "test_lens.py::test_a_backbone_is_loaded",
    "run_dir": "test_trainer.py",
    "device": "test_launch.py",
    "activation_checkpointing": "test_activation_checkpointing.py: each block is called twice as often",
    "profile.start": "test_profiling.py",
    "profile.steps": "test_profiling.py",
    "dist.strategy": "test_strategy.py, test_sharding.py",
    "half": "test_lora.py::test_what_is_frozen_or_all_is_held_in_bfloat16",
    "checkpoint.adapter_only": "test_lora.py::test_an_adapter_is_saved_alone_and_its_base_by_path_and_hash",
    "data.source": "test_own.py",
    "own": "test_own.py: another width is another run",
    "own_data": "test_own.py",
    "dist.backend": "test_launch_start.py::test_the_backend_is_that_of_the_device_unless_another_is_asked_for",
    "dist.start_timeout": "test_launch_start.py::test_a_rank_that_does_not_come_is_told_after_the_timeout",
    "dist.train_timeout": "test_trainer.py::test_a_run_logs_the_same_means_on_every_rank_at_the_steps_asked_for",
    "club.path": "test_estimator.py: on several ranks what is sent differs, and nothing else",
    "log.heartbeat": "test_monitor_heartbeat.py: how often a rank writes, and never at 0",
    "checkpoint.save_every": "test_resume_settings.py::test_checkpoints_come_as_often_as_is_asked",
    "checkpoint.keep": "test_resume_settings.py::test_checkpoints_come_as_often_as_is_asked",
    "checkpoint.background": "test_resume_settings.py::test_a_checkpoint_is_written_beside_training",
    "checkpoint.best": "test_resume_settings.py::test_the_best_checkpoint_is_kept_and_survives_a_resume",
    "checkpoint.best_mode": "test_resume_settings.py::test_the_least_or_the_greatest_value_is_best",
    "checkpoint.resume": "test_resume_settings.py::test_to_begin_anew_among_checkpoints_is_refused",
    "checkpoint.init_from": "test_resume_settings.py::test_weights_of_another_run_begin_a_new_one_and_its_average",
}


def build(changes: dict[str, Any]) -> Config:
    """A configuration of BASE and ``changes``, by dotted names."""
    top: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in (BASE | changes).items():
        section, _, field = name.rpartition(".")
        if section:
            nested.setdefault(section, {})[field] = value
        else:
            top[field] = value
    default = Config()
    return Config(**top, **{name: dataclasses.replace(getattr(default, name), **each) for name, each in nested.items()})


def names(kind: type, prefix: str = "") -> list[str]:
    """All fields, dotted."""
    found = []
    for field in dataclasses.fields(kind):
        section = getattr(sections, str(field.type), None)
        if dataclasses.is_dataclass(section):
            found += names(section, f"{prefix}{field.name}.")
        else:
            found.append(prefix + field.name)
    return found


def observe(config: Config, what: str) -> Any:
    """What a run shows of ``what``."""
    trainer = Trainer(config, World())
    objective, seen = trainer.state.objective, []
    if what == "micro_steps":
        original = objective.loss
        objective.loss = lambda forward, batch: seen.append(len(batch)) or original(forward, batch)
    elif what == "evaluation_sizes":
        original_evaluate = objective.evaluate
        objective.evaluate = lambda module, batch: seen.append(len(batch)) or original_evaluate(module, batch)
    elif what in ("workers", "pinned"):
        data = config.data
        sampler = PlannedBatches(trainer.plan, 0, seed=config.seed)
        made = loader(build_data(config).train, sampler, workers=data.workers, pin_memory=data.pin_memory)
        return made.num_workers if what == "workers" else made.pin_memory

    logged, evaluated, evaluations = [], [], []
    for _ in trainer.steps():
        if trainer.due(config.log_every):
            logged.append(trainer.state.step)
        if trainer.due(config.eval_every):
            evaluated.append(trainer.state.step)
            evaluations.append(trainer.evaluate(trainer.data.validation))
    weights = [each.detach().clone() for each in objective.module.parameters()]
    return {
        "weights": weights,
        "dtype": weights[0].dtype,
        "steps": trainer.state.step,
        "logged": logged,
        "evaluated": evaluated,
        "evaluations": evaluations,
        "micro_steps": seen,
        "evaluation_sizes": seen,
    }[what]


def test_every_field_has_an_observable():
    listed = {*CASES, *ELSEWHERE}
    assert sorted(names(Config)) == sorted(listed)


@pytest.fixture(scope="module")
def base():
    """Observations of runs without the change under test, made once each."""
    kept: dict[Any, Any] = {}

    def observed(changes, what):
        key = (tuple(sorted(changes.items())), what)
        if key not in kept:
            kept[key] = observe(build(changes), what)
        return kept[key]

    return observed


@pytest.mark.parametrize("field", CASES)
def test_a_field_changes_what_it_says(base, field):
    changes, what = CASES[field]
    # What the field needs to matter is in both runs: its own change is the only difference.
    others = {name: value for name, value in changes.items() if name != field}
    small = next((each for each in (FLOW, DISTILL, LENS) if each["objective"] == changes.get("objective")), {})
    if field in small:
        others[field] = small[field]
    if field in ("epochs", "batch_size", "objective"):
        others = {}
    assert not same(observe(build(changes), what), base(others, what))


def test_the_same_settings_give_the_same_run(base):
    # Otherwise every field above would "change" something.
    assert same(observe(build({}), WEIGHTS), base({}, WEIGHTS))
