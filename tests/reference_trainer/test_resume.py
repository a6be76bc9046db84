"""A run that goes on from its checkpoint is the run that never stopped; what would make it another one is refused."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass, replace

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
from torch import nn  # noqa: E402
from validate_ddp.testing import assert_replicas_equal  # noqa: E402

from reference_trainer.buckets import settle_buckets  # noqa: E402
from reference_trainer.checkpoint import CheckpointError, latest  # noqa: E402
from reference_trainer.checkpoint.directory import Directory  # noqa: E402
from reference_trainer.checkpoint.run import RunCheckpoints  # noqa: E402
from reference_trainer.checkpoint.snapshot import Snapshot  # noqa: E402
from reference_trainer.config import (  # noqa: E402
    CheckpointConfig,
    ClubConfig,
    Config,
    DataConfig,
    DisentangleConfig,
    EmaConfig,
    OptimConfig,
)
from reference_trainer.generators import rng_state, seed_generators  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.objectives.disentangle import Disentangle  # noqa: E402
from reference_trainer.state import TrainState  # noqa: E402
from reference_trainer.trainer import Trainer, build_state, make_plan  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    steps=8,
    global_batch=12,
    seed=3,
    ema=EmaConfig(decay=0.9),
    optim=OptimConfig(warmup_steps=5, clip=5.0),
    club=ClubConfig(inner_steps=2, hidden=(8,)),
    data=DataConfig(train_samples=40, validation_samples=10),  # the epoch ends within the run
    disentangle=DisentangleConfig(hidden=(16,), features=4),
)


class Noisy(Disentangle):
    """Draws from all of the rank's own generators, as dropout and other people's code do."""

    def loss(self, forward, batch):
        found = super().loss(forward, batch)
        drawn = torch.rand(()).item() + random.random() + float(np.random.rand())
        return found._replace(sum=found.sum * (0.8 + 0.2 * drawn))


def trainer_of(config):
    """With the noisy objective, made as the trainer makes its own."""
    world = World.current()
    torch.manual_seed(5)
    objective = Noisy(config.disentangle, config.club, world, seed=config.seed)
    return Trainer(config, world, objective=objective)


def trained(config, folder, until):
    """Goes on from what is in ``folder``, up to a step, and saves there. Collective: every rank.

    Returns the whole state of this rank, its generators' among it.
    """
    world, trainer = World.current(), trainer_of(config)
    with RunCheckpoints(folder, config, trainer.plan, world) as checkpoints:
        checkpoints.begin(trainer.state)
        for _ in trainer.steps() if trainer.state.step < until else ():
            if trainer.state.step == until:
                break
        checkpoints.save(trainer.state)
    return {**trainer.state.state_dict(), "rng": rng_state(world.device)}


def same(a, b):
    """Bit by bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.world_size([1, 3])
def test_a_resumed_run_is_the_uninterrupted_one_bit_by_bit(world, tmp_path, accumulation):
    config = replace(CONFIG, accumulation=accumulation)
    whole = trained(config, tmp_path / "whole", 8)
    for until in (2, 5, 8):
        last = trained(config, tmp_path / "parts", until)
    assert last["step"] == 8 and same(last, whole)
    assert_replicas_equal({name: last[name] for name in ("model", "ema", "optimizer", "objective")})


@pytest.mark.world_size([3])
def test_the_first_step_after_a_wrap_rounds_as_the_others_do(world, tmp_path):
    # A module of more than one bucket, whose gradients come in another order than its parameters.
    config = replace(CONFIG, disentangle=DisentangleConfig(hidden=(1024, 512), features=4), steps=2)
    whole = trained(config, tmp_path / "whole", 2)
    trained(config, tmp_path / "parts", 1)
    assert same(trained(config, tmp_path / "parts", 2)["model"], whole["model"])


@pytest.mark.world_size([2])
def test_settling_the_buckets_leaves_nothing_behind(world):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)
            self.dropout = nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.dropout(self.linear(x))

    trainer = trainer_of(CONFIG)
    objective, batch = trainer.state.objective, trainer.first_batch()
    module = Counting()
    ddp = nn.parallel.DistributedDataParallel(module)
    objective.rehearse = lambda forward, batch: forward(torch.ones(3, 2)).sum()
    before, rng = {name: each.clone() for name, each in module.state_dict().items()}, rng_state(torch.device("cpu"))
    settle_buckets(ddp, objective, batch)
    assert same(dict(module.state_dict()), before) and same(rng_state(torch.device("cpu")), rng)
    assert all(each.grad is None for each in module.parameters())


@pytest.mark.world_size([2])
def test_an_objective_whose_rehearsal_moves_its_state_is_told(world):
    class Moving(Noisy):
        def rehearse(self, forward, batch):
            self.club.step += 1
            return super().rehearse(forward, batch)

    objective = Moving(CONFIG.disentangle, CONFIG.club, World.current(), seed=0)
    with pytest.raises(RuntimeError, match=r"^Moving.rehearse moved the objective's state; override it"):
        Trainer(CONFIG, World.current(), objective=objective)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_run_goes_on_with_another_number_of_ranks_up_to_rounding(worlds, tmp_path, before, after, capfd):
    config = replace(CONFIG, precision="float64")
    # Without noise of the ranks' own, which no other number of ranks can have.
    parts = [(before, 4), (after, 8)]
    for size, until in parts:
        last = worlds.run(plain_trained, config, tmp_path / "parts", until, world_size=size)[0]
    whole = worlds.run(plain_trained, config, tmp_path / "whole", 8, world_size=1)[0]
    for name, weight in whole["model"].items():
        torch.testing.assert_close(last["model"][name], weight, rtol=0, atol=1e-12)


def plain_trained(config, folder, until):
    """As ``trained``, with the objective as it is."""
    world = World.current()
    trainer = Trainer(config, world)
    with RunCheckpoints(folder, config, trainer.plan, world) as checkpoints:
        checkpoints.begin(trainer.state)
        for _ in trainer.steps():
            if trainer.state.step == until:
                break
        checkpoints.save(trainer.state)
    return trainer.state.state_dict()


def test_ranks_that_did_not_exist_get_new_generators_and_it_is_said(worlds, tmp_path):
    worlds.run(trained, CONFIG, tmp_path, 2, world_size=2)
    said = worlds.run(resumed_generators, CONFIG, tmp_path, world_size=3)
    assert "saved by 2 ranks, goes on with 3: equal but for rounding; the random numbers of ranks 2 to 2 begin" in said[0][1]
    kept = Snapshot.read(latest(tmp_path)).training["rng"]
    assert [each[0]["torch"].tolist() for each in said[:2]] == [each["torch"].tolist() for each in kept]
    assert said[2][0]["torch"].tolist() not in [each["torch"].tolist() for each in kept]


def resumed_generators(config, folder):
    """The generators' state after resuming, and what was said."""
    import contextlib
    import io

    world, trainer, said = World.current(), trainer_of(config), io.StringIO()
    with RunCheckpoints(folder, config, trainer.plan, world) as checkpoints, contextlib.redirect_stderr(said):
        checkpoints.begin(trainer.state)
    return rng_state(world.device), said.getvalue()


def test_the_number_of_threads_is_put_back_because_sums_depend_on_it(tmp_path, capsys):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        trained(CONFIG, tmp_path, 1)
        torch.set_num_threads(1)
        trained(CONFIG, tmp_path, 2)
        assert torch.get_num_threads() == 2 and "2 threads a rank, as it was saved" in capsys.readouterr().err
    finally:
        torch.set_num_threads(threads)


REFUSED = {
    "seed": replace(CONFIG, seed=4),
    "precision": replace(CONFIG, precision="float64"),
    "global_batch": replace(CONFIG, global_batch=20),
    "optim.lr": replace(CONFIG, optim=replace(CONFIG.optim, lr=0.5)),
    "ema.decay": replace(CONFIG, ema=EmaConfig(decay=0.5)),
    "data.train_samples": replace(CONFIG, data=replace(CONFIG.data, train_samples=50)),
    "club.inner_steps": replace(CONFIG, club=replace(CONFIG.club, inner_steps=3)),
    "drop_last": replace(CONFIG, drop_last=True),
}
ACCEPTED = {
    "steps": replace(CONFIG, steps=9),
    "global_batch, said otherwise": replace(CONFIG, global_batch=None, batch_size=12),
    "accumulation": replace(CONFIG, accumulation=2),
    "log_every": replace(CONFIG, log_every=3),
    "data.workers": replace(CONFIG, data=replace(CONFIG.data, workers=1)),
    "checkpoint.keep": replace(CONFIG, checkpoint=CheckpointConfig(keep=5)),
}


def begun(config, folder):
    """Begins a run; returns its state."""
    trainer = trainer_of(config)
    with RunCheckpoints(folder, config, trainer.plan, World()) as checkpoints:
        checkpoints.begin(trainer.state)
    return trainer.state


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run directory with a checkpoint after step 2."""
    folder = tmp_path_factory.mktemp("saved")
    trained(CONFIG, folder, 2)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_makes_it_another_run_is_refused_by_its_name(saved, name):
    with pytest.raises(CheckpointError, match=rf"step-00000002 is of another run: .*\b{name} was .* and is ") as told:
        begun(REFUSED[name], saved)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_setting_that_leaves_the_run_what_it_was_may_change(saved, name):
    assert begun(ACCEPTED[name], saved).step == 2


def test_another_length_is_refused_only_under_a_schedule_that_depends_on_it(tmp_path):
    config = replace(CONFIG, optim=OptimConfig(schedule="cosine"))
    trained(config, tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"steps \(optim.schedule is cosine\) was 8 and is 9"):
        begun(replace(config, steps=9), tmp_path)


def test_another_objective_is_refused(saved):
    trainer = Trainer(CONFIG, World())
    with RunCheckpoints(saved, CONFIG, trainer.plan, World()) as checkpoints:
        with pytest.raises(CheckpointError, match="objective was 'Noisy' and is 'Disentangle'"):
            checkpoints.begin(trainer.state)


# Every piece of state.


def stateful(value, where="trainer", seen=None):
    """All objects with a ``state_dict`` that can be reached, by the way to them; modules and optimizers are not entered."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (str, bytes, torch.Tensor, type)):
        return {}
    seen.add(id(value))
    found = {where: value} if hasattr(value, "state_dict") else {}
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        return found
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    else:
        inner = getattr(value, "__dict__", {}).items()
    for name, each in list(inner):
        found |= stateful(each, f"{where}.{name}", seen)
    return found


def lost(trainer, fresh, folder):
    """Saves a trained trainer, loads it into a fresh one: the pieces of state that are not equal then."""
    config, world = trainer.config, World()
    with RunCheckpoints(folder, config, trainer.plan, world) as checkpoints:
        checkpoints.begin(trainer.state)
        for _ in trainer.steps():
            pass
        trainer.state.best = None
        checkpoints.save(trainer.state)
        checkpoints.begin(fresh.state)
    before, after = stateful(trainer), stateful(fresh)
    assert before.keys() == after.keys()
    plain = [
        field.name
        for field in fields(TrainState)
        if not hasattr(getattr(trainer.state, field.name), "state_dict")
        and getattr(trainer.state, field.name) != getattr(fresh.state, field.name)
    ]
    return plain + [name for name in before if not same(before[name].state_dict(), after[name].state_dict())]


def test_no_piece_of_state_that_a_trainer_reaches_is_lost(tmp_path):
    trainer, fresh = trainer_of(CONFIG), trainer_of(CONFIG)
    assert lost(trainer, fresh, tmp_path) == []
    # The test sees what training moves: the objective, the estimator within, its network and its optimizer, ...
    assert {type(each).__name__ for each in stateful(trainer).values()} >= {
        *("Noisy", "Disentangler", "CLUBLoss", "Estimator", "GaussianQ", "Adam", "AdamW", "LambdaLR", "Ema", "TrainState")
    }


def test_a_piece_of_state_that_somebody_adds_without_saving_it_is_found(tmp_path):
    class Forgetful(Noisy):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.critic = nn.Linear(1, 1)

        def loss(self, forward, batch):
            with torch.no_grad():
                self.critic.weight += 1
            return super().loss(forward, batch)

    def made():
        torch.manual_seed(5)
        objective = Forgetful(CONFIG.disentangle, CONFIG.club, World(), seed=3)
        return Trainer(CONFIG, World(), objective=objective)

    assert lost(made(), made(), tmp_path) == ["trainer.state.objective.critic"]


def test_a_field_of_the_state_that_cannot_be_saved_is_told(tmp_path):
    state = trainer_of(CONFIG).state
    assert is_dataclass(state)
    state.best = object()
    with pytest.raises(TypeError, match=r"TrainState.best is a object, which cannot be saved"):
        state.state_dict()


# Where a run begins.


def test_weights_of_another_run_begin_a_new_one_and_its_average(saved, tmp_path):
    config = replace(CONFIG, seed=9, checkpoint=CheckpointConfig(init_from=str(saved)))
    state = begun(config, tmp_path)
    model = Snapshot.read(latest(saved)).model
    assert state.step == 0 and same(dict(state.objective.module.state_dict()), model)
    assert same(state.ema.state_dict(), model)


def test_what_there_is_to_resume_comes_before_weights_to_begin_with(saved, tmp_path):
    config = replace(CONFIG, checkpoint=CheckpointConfig(init_from=str(tmp_path / "gone.pt")))
    assert begun(config, saved).step == 2
    with pytest.raises(CheckpointError, match=r"gone.pt is no file with weights"):
        begun(config, tmp_path / "new")


def test_to_begin_anew_among_checkpoints_is_refused(saved, tmp_path):
    config = replace(CONFIG, checkpoint=CheckpointConfig(resume="none"))
    with pytest.raises(CheckpointError, match='has checkpoints and checkpoint.resume is "none"'):
        begun(config, saved)
    assert begun(config, tmp_path / "new").step == 0


def test_a_run_goes_back_to_a_checkpoint_and_sets_aside_what_it_saved_later(tmp_path):
    config = replace(CONFIG, checkpoint=CheckpointConfig(keep=9))
    for until in (2, 4, 6):
        trained(config, tmp_path, until)
    folder = tmp_path / "checkpoints"
    back = replace(config, checkpoint=CheckpointConfig(keep=9, resume=str(folder / "step-00000004")))
    assert begun(back, tmp_path).step == 4
    assert latest(tmp_path).name == "step-00000004"
    assert sorted(path.name for path in folder.glob("step*")) == [
        *("step-00000002", "step-00000004", "step-00000006.aside1")
    ]
    trained(config, tmp_path, 6)
    assert latest(tmp_path).name == "step-00000006"


def test_a_run_goes_on_elsewhere_and_then_from_its_own_checkpoints(saved, tmp_path, capsys):
    config = replace(CONFIG, checkpoint=CheckpointConfig(resume=str(saved)))
    assert trained(config, tmp_path, 3)["step"] == 3
    assert begun(config, tmp_path).step == 3  # the same command, queued again
    assert "has checkpoints of its own, which come before" in capsys.readouterr().err
    assert latest(saved).name == "step-00000002"


def test_the_best_checkpoint_is_kept_and_survives_a_resume(tmp_path):
    config = replace(CONFIG, eval_every=1, checkpoint=CheckpointConfig(keep=1, best="score", best_mode="max"))
    scores = iter([0.1, 0.9, float("nan"), 0.5])
    for _ in range(2):
        trainer = trainer_of(config)
        with RunCheckpoints(tmp_path, config, trainer.plan, World()) as checkpoints:
            checkpoints.begin(trainer.state)
            until = trainer.state.step + 2
            for _ in trainer.steps():
                checkpoints.is_best(trainer.state, {"score": next(scores)})
                checkpoints.save(trainer.state)
                if trainer.state.step == until:
                    break
    directory = Directory(tmp_path / "checkpoints")
    assert [path.name for path in directory.all()] == ["step-00000004", "step-00000002"]
    assert directory.pointed("best").name == "step-00000002" and trainer.state.best.value == 0.9
    with pytest.raises(CheckpointError, match="checkpoint.best is 'score'; the evaluation has accuracy"):
        checkpoints.is_best(trainer.state, {"accuracy": 1.0})


def test_a_trainer_that_runs_twice_in_one_directory_ends_where_it_had_ended(tmp_path):
    config = replace(CONFIG, steps=4, run_dir=str(tmp_path / "run"), checkpoint=CheckpointConfig(save_every=2))
    first = Trainer(config, World()).run()
    second = Trainer(config, World()).run()
    assert (first.step, first.test) == (second.step, second.test)
    longer = Trainer(replace(config, steps=6), World()).run()
    assert longer.step == 6
    whole = replace(config, steps=6, run_dir=str(tmp_path / "whole"))
    assert Trainer(whole, World()).run().test == longer.test


def test_all_generators_are_seeded_by_one_number():
    states = []
    for seed in (1, 1, 2**40):
        seed_generators(seed)
        states.append(rng_state(torch.device("cpu")))
    assert same(states[0], states[1])
    assert all(not same(states[0][name], states[2][name]) for name in ("torch", "python", "numpy"))


def test_a_state_can_be_made_without_a_trainer():
    plan = make_plan(CONFIG, samples=40, world_size=1)
    objective = Disentangle(CONFIG.disentangle, CONFIG.club, World(), seed=0)
    state = build_state(objective, CONFIG, plan)
    other = build_state(Disentangle(CONFIG.disentangle, CONFIG.club, World(), seed=0), CONFIG, plan)
    other.load_state_dict(state.state_dict())
    assert same(state.state_dict(), other.state_dict())
