"""bf16 and fp16: autocast around every forward pass, float32 all around it, and steps that a GradScaler leaves out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from trainer_runs import everything, same  # noqa: E402
from trainer_runs import trained as go_on  # noqa: E402
from validate_ddp.testing import assert_replicas_equal  # noqa: E402

from reference_trainer.config import ClubConfig, Config, DataConfig, EmaConfig, OptimConfig  # noqa: E402
from reference_trainer.core.objective import Batch, Loss, Objective  # noqa: E402
from reference_trainer.core.step import train_step  # noqa: E402
from reference_trainer.finite import MOST_IN_A_ROW, Gate, NonFiniteError  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.monitor.records import read_log  # noqa: E402
from reference_trainer.precision import Precision  # noqa: E402
from reference_trainer.state import Ema  # noqa: E402
from reference_trainer.trainer import Trainer, wrap  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    steps=6,
    global_batch=32,
    seed=3,
    ema=EmaConfig(0.9),
    club=ClubConfig(weight=0.3, inner_steps=1, hidden=(8,)),
    optim=OptimConfig(schedule="linear", clip=5.0),
    data=DataConfig(train_samples=200, validation_samples=40),
)
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
BITS = {"bf16": 8, "fp16": 11}


def tensors(value):
    """All within nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)


def floating(value):
    """The types of the floating-point tensors within."""
    return {each.dtype for each in tensors(value) if each.is_floating_point()}


CALM = 2.0**8
"""A loss scale at which nothing overflows here."""


def begin_with(scaler, scale):
    """The scale to begin with; nothing where nothing is scaled."""
    scaler.load_state_dict(scaler.state_dict() | {"scale": scale})


def trained(config):
    """Trains here: global losses of each step, metrics of the validation part, types of all that is kept."""
    world = World.current()
    trainer, losses = Trainer(config, world), []
    begin_with(trainer.state.scaler, CALM)
    for result in trainer.steps():
        loss = result.sums["loss"].double()
        if world.group is not None:
            torch.distributed.all_reduce(loss)
        losses.append((loss / result.total).item())
    state = trainer.state
    kept = everything(state)
    assert_replicas_equal({name: kept[name] for name in ("model", "ema", "moments", "objective")})
    found = {name: floating(kept[name]) for name in ("model", "ema", "moments", "objective")}
    return losses, trainer.evaluate(trainer.data.validation), found


@pytest.fixture(scope="module")
def in_float32():
    """The oracle: float32 on one process."""
    return trained(CONFIG)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("precision", HALF)
def test_two_ranks_train_as_one_in_half_precision_and_both_as_in_float32(worlds, in_float32, precision, accumulation):
    config = replace(CONFIG, precision=precision, accumulation=accumulation)
    # Rounding of inputs and weights, over some layers and steps.
    allowed = 16 * 2.0 ** -BITS[precision]
    alone, _, _ = trained(config)
    for losses, metrics, types in worlds.run(trained, config, world_size=2):
        assert losses == pytest.approx(alone, rel=allowed)
        assert losses == pytest.approx(in_float32[0], rel=allowed)
        assert losses != in_float32[0]
        assert metrics["reconstruction"] == pytest.approx(in_float32[1]["reconstruction"], rel=allowed)
        # Weights, average, moments and the estimator of CLUB.
        assert set.union(*types.values()) == {torch.float32}


class Watched(Objective):
    """A linear layer, and the types that come into each of its methods and out of the layer."""

    def __init__(self):
        self.module = nn.Linear(4, 4)
        self.inside, self.outside = [], {}
        self.module.register_forward_hook(lambda module, given, out: self.inside.append(out.dtype))

    def called(self, where, forward, batch):
        out = forward(batch.data["image"][:, :4])
        self.outside[where] = out.dtype
        return (out**2).sum()

    def prepare(self, forward, batches, total):
        with torch.no_grad():
            self.called("prepare", forward, batches[0])

    def loss(self, forward, batch):
        return Loss(self.called("loss", forward, batch), {}, {})

    def rehearse(self, forward, batch):
        return self.called("rehearse", forward, batch)

    def evaluate(self, module, batch):
        return {"square": self.called("evaluate", module, batch)}


@pytest.mark.parametrize("precision", ["float32", *HALF])
@pytest.mark.world_size([2])
def test_every_forward_pass_is_under_autocast_and_gives_float32(world, precision):
    torch.manual_seed(0)
    trainer = Trainer(replace(CONFIG, precision=precision, steps=1), World.current(), objective=Watched())
    for _ in trainer.steps():
        pass
    trainer.evaluate(trainer.data.validation)
    objective = trainer.state.objective
    assert set(objective.inside) == {HALF.get(precision, torch.float32)}
    assert objective.outside == dict.fromkeys(["rehearse", "prepare", "loss", "evaluate"], torch.float32)


class Pair(NamedTuple):
    a: torch.Tensor
    b: object


@dataclass(frozen=True)
class Box:
    a: torch.Tensor
    count: int


def test_what_a_module_gives_is_float32_in_whatever_container():
    half, whole = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self):
            return OrderedDict(
                pair=Pair(half, [half, whole]), box=Box(half, 3), plain=(half, None, "x"), wide=half.double()
            )

    found = Precision.of("bf16").forward(Odd())()
    assert isinstance(found, OrderedDict) and isinstance(found["pair"], Pair) and found["box"].count == 3
    assert floating([found["pair"], found["box"].a, found["plain"]]) == {torch.float32}
    assert found["wide"].dtype == torch.float64 and found["pair"].b[1] is whole and found["plain"][1:] == (None, "x")
    module = Odd()
    assert Precision.of("float64").forward(module) is module


# Steps that the scaler leaves out.


class Regression(Objective):
    """Squared error; a sample's "bad" says what is wrong with it."""

    def __init__(self):
        torch.manual_seed(0)
        self.module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(self, forward, batch):
        bad = batch.data["bad"]
        out = forward(batch.data["x"]).squeeze(1)
        error = (out - batch.data["y"]) ** 2 + torch.where(bad == 1, torch.inf, 0.0)
        # 2: a finite loss whose gradient is infinite at any scale.
        return Loss(error.sum() + (out - out.detach())[bad == 2].abs().sqrt().sum(), {}, {})


def batches_of(step, bad, world):
    """This rank's share of a step's 12 samples, in two micro-batches. bad: {(step, sample): what is wrong with it}."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, 3, generator=generator)
    wrong = torch.tensor([bad.get((step, sample), 0) for sample in range(12)])
    index = torch.arange(12).chunk(world.size)[world.rank]
    return [Batch(each, 0, step, {"x": x[each], "y": x[each].sum(1), "bad": wrong[each]}) for each in index.chunk(2)]


def scaled(bad=(), *, scale=CALM, steps=6, policy="stop", lagging=False):
    """Trains in fp16 here; returns what training moves, after each step, what was told and the error it ended with."""
    world, precision, objective = World.current(), Precision.of("fp16"), Regression()
    model = wrap(objective.module, world)
    optimizer = torch.optim.AdamW(objective.parameter_groups(), lr=0.05, fused=lagging)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    ema, told, error, states = Ema(objective.module, 0.5), [], "", []
    scaler = precision.scaler(world.device)
    begin_with(scaler, scale)
    options = {"policy": policy, "lagging": lagging, "scaler": scaler}
    gate = Gate(objective, optimizer, world, tell=told.append, **options)
    try:
        for step in range(steps):
            batches = batches_of(step, dict(bad), world)
            train_step(
                model,
                objective,
                gate,
                batches,
                world=world,
                clip=1.0,
                scheduler=scheduler,
                ema=ema,
                forward=precision.forward(model),
            )
            kept = [*objective.module.state_dict().values(), *ema.averages.values(), torch.tensor(scheduler.last_epoch)]
            states.append(torch.cat([each.detach().double().flatten() for each in kept]))
        gate.settle()
    except NonFiniteError as caught:
        error = str(caught)
    return {
        "states": states,
        "told": told,
        "error": error,
        "scale": scaler.get_scale(),
        "taken": scheduler.last_epoch,
        "counts": (gate.skipped, gate.overflows),
    }


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_scale_that_is_too_large_costs_its_steps_and_nothing_else_whatever_the_policy(worlds, world_size):
    calm = worlds.run(scaled, steps=2, world_size=world_size)
    for rank, without in zip(worlds.run(scaled, scale=2.0**18, world_size=world_size), calm, strict=True):
        skipped = len(rank["told"])
        assert 0 < skipped < 6 and rank["error"] == "" and rank["counts"] == (0, skipped)
        assert rank["scale"] == 2.0 ** (18 - skipped) and rank["taken"] == 6 - skipped
        for step in range(skipped):
            assert rank["told"][step] == (
                f"step {step + 1}: a gradient overflowed in float16; skipped, the loss is scaled by "
                f"{2.0 ** (17 - step):g} from here"
            )
        # Weights, average and schedule stand still.
        assert all(torch.equal(each, rank["states"][0]) for each in rank["states"][:skipped])
        assert not torch.equal(rank["states"][skipped], rank["states"][0])
        assert without["counts"] == (0, 0) and without["scale"] == CALM


def test_a_fused_optimizer_that_leaves_steps_out_by_itself_does_what_a_waiting_one_does(worlds):
    waiting, lagging = (worlds.run(scaled, scale=2.0**18, lagging=each, world_size=2)[0] for each in (False, True))
    assert lagging["told"] == waiting["told"] and len(waiting["told"]) > 0
    assert lagging["scale"] == waiting["scale"] and lagging["taken"] == waiting["taken"]
    # Fused or not differs in rounding.
    weights = slice(0, sum(each.numel() for each in Regression().module.parameters()))
    torch.testing.assert_close(lagging["states"][-1][weights], waiting["states"][-1][weights], rtol=0, atol=1e-6)


def test_a_loss_that_is_not_finite_is_no_matter_of_scale(worlds):
    for rank in worlds.run(scaled, {(3, 11): 1}, world_size=2):
        assert rank["error"].startswith("step 4: on rank 1 of 2 the loss is inf")
        assert rank["counts"] == (1, 0) and len(rank["states"]) == 3
    skipping = worlds.run(scaled, {(3, 11): 1}, policy="skip", world_size=2)[1]
    assert skipping["error"] == "" and skipping["taken"] == 5 and skipping["counts"] == (1, 0)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_gradient_that_no_scale_makes_finite_stops_the_run_by_name(policy):
    found = scaled({(step, 0): 2 for step in range(40)}, scale=2.0**16, steps=40, policy=policy)
    row = MOST_IN_A_ROW + 1
    assert len(found["told"]) == MOST_IN_A_ROW == found["counts"][1]
    assert found["error"].startswith(f"step {row}: the averaged gradient of `")
    assert found["error"].endswith(
        f"; {row} steps in a row were not finite: skipping does not help, nor does a loss scale of "
        f"{2.0 ** (16 - row):g}; bf16 has float32's range"
    )


def run_until(config, folder, until):
    """Goes on from what is in ``folder``, in which the scale is found, up to a step; returns the state."""
    world = World.current()
    trainer = Trainer(config, world)
    trainer.gate.tell = lambda line: None
    begin_with(trainer.state.scaler, 2.0**20)
    return go_on(config, folder, until, trainer), trainer.gate.overflows


@pytest.mark.slow
@pytest.mark.world_size([3])
def test_a_resumed_run_in_fp16_is_the_uninterrupted_one_bit_by_bit(world, tmp_path):
    config = replace(CONFIG, precision="fp16", global_batch=36, steps=12)
    whole, overflows = run_until(config, tmp_path / "whole", 12)
    for until in (2, 9, 12):  # first where the scale is still being found
        last, _ = run_until(config, tmp_path / "parts", until)
    assert same(last, whole) and 3 < overflows < 9


# What is said of devices.


@pytest.mark.parametrize(("capability", "told"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_bf16_on_a_gpu_before_ampere_is_told(monkeypatch, capability, told):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    line = Precision.of("bf16").caution(torch.device("cuda", 0))
    assert bool(line) == told and (not told or "Tesla T4 has no bfloat16 of its own" in line)


def test_the_caution_is_among_the_events_of_a_run(monkeypatch, tmp_path):
    monkeypatch.setattr(Precision, "caution", lambda self, device: "slow")
    config = replace(CONFIG, precision="bf16", steps=1, run_dir=str(tmp_path))
    Trainer(config, World()).run()
    events = [each for each in read_log(tmp_path / "metrics" / "rank00000.jsonl") if each["kind"] == "event"]
    assert [each["message"] for each in events if each["event"] == "warning"] == ["slow"]
