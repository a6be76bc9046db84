"""A loss or gradient that is not finite: named, withheld, and alike on all ranks; what is finite is left alone."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from reference_trainer.config import ClubConfig, Config, DataConfig, EmaConfig, OptimConfig  # noqa: E402
from reference_trainer.core.objective import Batch, Loss, Objective  # noqa: E402
from reference_trainer.core.step import StepResult, clip_gradients, train_step  # noqa: E402
from reference_trainer.finite import MOST_IN_A_ROW, Gate, NonFiniteError  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.metrics import Interval  # noqa: E402
from reference_trainer.state import Ema  # noqa: E402
from reference_trainer.trainer import Trainer, build_data, wrap  # noqa: E402

pytestmark = pytest.mark.runtime


class Regression(Objective):
    """Squared error; a sample's "bad" says what is wrong with it."""

    def __init__(self):
        torch.manual_seed(0)
        self.module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def loss(self, forward, batch):
        bad = batch.data["bad"]
        out = forward(batch.data["x"] + torch.where(bad == 1, torch.nan, 0.0).unsqueeze(1)).squeeze(1)
        error = (out - batch.data["y"]) ** 2
        # 2: an infinite loss with a finite gradient; 3: a finite loss with an infinite gradient.
        error = error + torch.where(bad == 2, torch.inf, 0.0)
        return Loss(error.sum() + (out - out.detach())[bad == 3].abs().sqrt().sum(), {}, {})


def batches_of(step, bad, rank, size):
    """This rank's share of a step's 12 samples. bad: {(step, sample): what is wrong with it}."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    wrong = torch.tensor([bad.get((step, sample), 0) for sample in range(12)])
    index = torch.arange(12).chunk(size)[rank]
    return [Batch(each, 0, step, {"x": x[each], "y": x[each].sum(1), "bad": wrong[each]}) for each in index.split(2)]


def trained(bad, *, steps=6, leave_out=(), policy="skip", fused=False, lagging=None, gated=True):
    """Trains here; returns everything that training moves, what was told, and the error it ended with."""
    world = World.current()
    objective = Regression()
    model = wrap(objective.module, world)
    optimizer = torch.optim.AdamW(objective.parameter_groups(), lr=0.1, fused=fused)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    ema, told, error = Ema(objective.module, 0.5), [], ""
    gate = Gate(objective, optimizer, world, policy=policy, tell=told.append, lagging=lagging) if gated else None
    taken = []
    try:
        for step in range(steps):
            if step not in leave_out:
                batches = batches_of(step, bad, world.rank, world.size)
                result = train_step(
                    model, objective, gate or optimizer, batches, world=world, clip=1.0, scheduler=scheduler, ema=ema
                )
                taken.append(None if result.taken is None else bool(result.taken))
        if gate is not None:
            gate.settle()
    except NonFiniteError as caught:
        error = str(caught)
    moments = [value for state in optimizer.state.values() for value in state.values()]
    state = [
        *objective.module.state_dict().values(),
        *ema.averages.values(),
        *moments,
        torch.tensor(scheduler.get_last_lr()),
    ]
    flat = torch.cat([each.detach().double().flatten() for each in state])
    return {"state": flat, "told": told, "error": error, "taken": taken}


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (1, "on rank {} the loss is nan"),
        (2, "on rank {} the loss is inf"),
        (3, "the averaged gradient of `0.weight` is not finite, though each rank's loss is"),
    ],
)
def test_rank_step_and_place_are_named_alike_on_every_rank(worlds, world_size, bad, named):
    sample = 10  # the last rank's
    where = f"{world_size - 1} of {world_size}"
    for rank in worlds.run(trained, {(3, sample): bad}, policy="stop", world_size=world_size):
        line = f"step 4: {named.format(where)}; the step was not taken (nonfinite=skip would go on with the next)"
        assert re.fullmatch(line.replace("(", r"\(").replace(")", r"\)"), rank["error"]), rank["error"]


@pytest.mark.parametrize("lagging", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_that_skips_is_bitwise_the_run_without_those_steps(worlds, world_size, lagging):
    options = {"fused": lagging, "world_size": world_size}
    bad = {(0, 1): 1, (3, 11): 2, (4, 6): 3}
    expected = worlds.run(trained, {}, leave_out=(0, 3, 4), **options)
    for rank, without in zip(worlds.run(trained, bad, lagging=lagging, **options), expected, strict=True):
        assert torch.equal(rank["state"], without["state"])
        assert [line.split(":")[0] for line in rank["told"]] == ["step 1", "step 4", "step 5"]
        assert rank["taken"] == [False, True, True, False, False, True]


@pytest.mark.parametrize("lagging", [False, True])
def test_a_run_that_stops_has_the_weights_of_the_step_before(worlds, lagging):
    options = {"fused": lagging, "world_size": 2}
    stopped = worlds.run(trained, {(3, 0): 1}, policy="stop", lagging=lagging, **options)
    before = worlds.run(trained, {}, steps=3, **options)
    for rank, expected in zip(stopped, before, strict=True):
        assert rank["error"].startswith("step 4: ") and torch.equal(rank["state"], expected["state"])


@pytest.mark.parametrize("fused", [False, True])
def test_what_is_finite_goes_through_unchanged(worlds, fused):
    options = {"fused": fused, "world_size": 2}
    gated = worlds.run(trained, {}, lagging=fused, **options)
    plain = worlds.run(trained, {}, gated=False, **options)
    assert [torch.equal(one["state"], other["state"]) for one, other in zip(gated, plain, strict=True)] == [True, True]
    assert all(rank["taken"] == [True] * 6 and rank["told"] == [] for rank in gated)


def test_skipping_ends_when_nothing_else_happens():
    steps = MOST_IN_A_ROW + 5
    found = trained({(step, 0): 1 for step in range(steps)}, steps=steps)
    assert len(found["told"]) == MOST_IN_A_ROW
    assert f"{MOST_IN_A_ROW + 1} steps in a row were not finite" in found["error"]
    # Now and then is not in a row.
    assert trained({(step, 0): 1 for step in range(steps) if step != 9}, steps=steps)["error"] == ""


@pytest.mark.parametrize("largest", [None, 0.01, 1e6])
def test_clipping_is_that_of_torch_and_tells_each_norm(largest):
    objective, other = Regression(), Regression()
    for each in (objective, other):
        each.loss(each.module, batches_of(0, {}, 0, 1)[0]).sum.backward()
    optimizer = torch.optim.SGD(objective.parameter_groups(), lr=1.0)
    norm, norms = clip_gradients(optimizer, largest)
    expected = [parameter.grad.norm() for parameter in other.module.parameters()]
    torch.testing.assert_close(norms, torch.stack(expected))
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(other.module.parameters(), largest or torch.inf))
    for one, two in zip(objective.module.parameters(), other.module.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=1e-15)


def test_steps_that_were_not_taken_are_no_part_of_the_logged_means():
    interval = Interval(World())
    for loss, taken in ((6.0, True), (torch.nan, False), (10.0, True)):
        number = torch.tensor(loss)
        interval.add(StepResult({"loss": number}, 4.0, {"club": number}, number, torch.tensor(taken)))
    means = interval.close()
    assert means.metrics == {"loss": 2.0, "club": 8.0, "grad_norm": 8.0} and means.counted == 8.0


class Spoiled:
    """A source of which one sample is not a number, from the second epoch on."""

    def __init__(self, source, sample):
        self.source, self.sample = source, sample

    def __len__(self):
        return len(self.source)

    def fetch(self, index, epoch):
        data = dict(self.source.fetch(index, epoch))
        if epoch:
            data["image"] = torch.where((index == self.sample).unsqueeze(1), torch.nan, data["image"])
        return data


def disentangled(policy):
    """Trains on digits of which one is spoiled, with the estimator; attempted steps, lines, whether all is finite."""
    config = Config(
        precision="float64",
        epochs=3,
        global_batch=32,
        nonfinite=policy,
        data=DataConfig(train_samples=128),
        ema=EmaConfig(0.9),
        club=ClubConfig(weight=0.3),
        optim=OptimConfig(schedule="linear"),
    )
    world, data = World.current(), build_data(config)
    trainer = Trainer(config, world, data=type(data)(Spoiled(data.train, 5), data.validation, data.test))
    told: list[str] = []
    trainer.gate.tell = told.append
    for _ in trainer.steps():
        pass
    state = trainer.state
    moved = [state.objective.module.state_dict(), state.ema.state_dict(), state.objective.state_dict()]
    finite = all(torch.isfinite(each).all() for each in flat(moved))
    metrics = trainer.evaluate(data.validation)
    return state.step, told, finite, metrics["digit_loss"], state.scheduler.last_epoch


def flat(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from flat(each)


@pytest.mark.parametrize("world_size", [1, 2])
def test_one_spoiled_sample_costs_its_steps_and_neither_model_average_nor_estimator(worlds, world_size):
    for steps, told, finite, loss, scheduled in worlds.run(disentangled, "skip", world_size=world_size):
        assert steps == 12 and scheduled == 10
        assert len(told) == 2 and all("the loss is nan" in line for line in told)
        assert finite and loss == loss


def test_one_spoiled_sample_stops_the_run_on_every_rank_where_that_is_asked(worlds):
    with pytest.raises(AssertionError, match=r"ranks 0-1 .*NonFiniteError: step \d: on rank \d of 2 the loss is nan"):
        worlds.run(disentangled, "stop", world_size=2)
