"""Mistakes in an objective, or data, of one's own: one clear line each, at the start where it can be."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from reference_trainer.cli import main  # noqa: E402
from reference_trainer.config import Config, ConfigError  # noqa: E402
from reference_trainer.core.objective import Batch, Loss, Objective  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.sources import Data  # noqa: E402
from reference_trainer.state import settle_buckets  # noqa: E402
from reference_trainer.trainer import Trainer, wrap  # noqa: E402

pytestmark = pytest.mark.runtime

MODULE = """
import sys
import torch
from torch import nn
from reference_trainer import Objective
from reference_trainer.core.objective import Loss


class Line(Objective):
    def __init__(self, seed: int) -> None:
        self.module = nn.Linear(1, 1)

    def error(self, forward, batch):
        return (forward(batch.data["x"]) - batch.data["y"]).square()

    def loss(self, forward, batch):
        return Loss(self.error(forward, batch).sum(), {}, {})

    def evaluate(self, module, batch):
        return {"error": self.error(module, batch).sum()}


class NoLoss(Objective):
    def __init__(self):
        self.module = nn.Linear(1, 1)


class NoEvaluate(NoLoss):
    loss = Line.loss
    error = Line.error


class Bare(Line):
    def loss(self, forward, batch):
        return self.error(forward, batch).sum()


class Vector(Line):
    def loss(self, forward, batch):
        return Loss(self.error(forward, batch), {}, {})


class Graphless(Line):
    def loss(self, forward, batch):
        return Loss(self.error(forward, batch).sum().detach(), {}, {})


class Number(Line):
    def loss(self, forward, batch):
        return Loss(self.error(forward, batch).sum(), {"accuracy": 0.5}, {})


class WrongKey(Line):
    def loss(self, forward, batch):
        return Loss((forward(batch.data["x"]) - batch.data["target"]).sum(), {}, {})


class Float(Line):
    def evaluate(self, module, batch):
        return {"error": self.error(module, batch).sum().item()}


class Alone(Line):
    def evaluate(self, module, batch):
        return self.error(module, batch).sum()


class Quits(Line):
    def loss(self, forward, batch):
        sys.exit(0)


class QuitsLate(Line):
    def evaluate(self, module, batch):
        sys.exit("enough")


def points():
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    return torch.utils.data.TensorDataset(x, 2 * x)


def quitting():
    sys.exit()
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("wrong", None)


WORDS = [
    "train",
    "--data",
    "wrong:points",
    "--global-batch",
    "8",
    "--steps",
    "2",
    "--log-every",
    "1",
    "--run-dir",
    "run",
]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NoLoss", "NoLoss has no method loss, and a run needs one"),
        ("NoEvaluate", "NoEvaluate has no method evaluate, and a run needs one"),
        ("Bare", "Bare.loss returned a tensor of shape (); it must be Loss(sum, metrics, values)"),
        ("Vector", "Vector.loss: Loss: sum is a tensor of shape (8, 1); it must be a tensor of no dimension"),
        ("Graphless", "Graphless.loss: Loss.sum has no graph"),
        ("Number", "Number.loss: Loss.metrics: accuracy is a float; it must be a tensor of no dimension"),
        ("WrongKey", "the batch has no 'target'; its data has 'x', 'y'"),
    ],
)
def test_it_is_told_in_a_line_before_the_first_step_is_done(name, told, capfd):
    assert main([*WORDS, "--objective", f"wrong:{name}"]) == 2
    err = capfd.readouterr().err
    assert f"reference-trainer: error: {told}" in err and "Traceback" not in err and "step 1/2" not in err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Float", "Float.evaluate: error is a float; it must be a tensor of no dimension, a sum"),
        ("Alone", "Alone.evaluate is a tensor of shape (); it must be tensors by name"),
    ],
)
def test_what_an_evaluation_returns_is_looked_at_when_it_is_first_made(name, told, capfd):
    assert main([*WORDS, "--objective", f"wrong:{name}", "--eval-every", "1"]) == 2
    err = capfd.readouterr().err
    assert told in err and "Traceback" not in err and "step 2/2" not in err


def test_a_right_one_is_looked_at_once_and_is_itself_afterwards():
    sys.path.insert(0, ".")
    from wrong import Line, points

    objective = Line(0)
    samples = [{"x": x, "y": y} for x, y in points()]

    class Source(list):
        def fetch(self, index, epoch):
            return {name: torch.stack([self[at][name] for at in index]) for name in ("x", "y")}

    trainer = Trainer(
        Config(steps=2, global_batch=8, run_dir="run"),
        World(),
        objective=objective,
        data=Data(*[Source(samples)] * 3),
    )
    assert trainer.run().step == 2 and set(vars(objective)) == {"module"}


def test_a_key_that_is_asked_for_in_vain_is_still_a_key_error(capfd):
    (where,) = {"wrong.py"}
    text = (
        MODULE.replace('- batch.data["y"]', "- self.target(batch)")
        + """
Line.target = lambda self, batch: batch.data["z"] if "z" in batch.data else batch.data.get("z", self.second(batch))
def second(self, batch):
    try:
        return batch.data["z"]
    except KeyError:
        return batch.data["y"]
Line.second = second
"""
    )
    with open(where, "w") as file:
        file.write(text)
    assert main([*WORDS, "--objective", "wrong:Line"]) == 0, capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--objective", "wrong:Quits", "--data", "wrong:points"], "0"),
        pytest.param(["--objective", "wrong:QuitsLate", "--data", "wrong:points"], "'enough'", marks=pytest.mark.slow),
        pytest.param(["--objective", "wrong:Line", "--data", "wrong:quitting"], "", marks=pytest.mark.slow),
        (["--objective", "leaves:Line", "--data", "wrong:points"], "3"),
    ],
)
def test_who_leaves_by_sys_exit_has_failed_and_the_place_is_shown(words, code, tmp_path):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    command = [sys.executable, "-m", "reference_trainer", "train", *words, "--steps", "2", "--run-dir", "run"]
    done = subprocess.run([*command, "--global-batch", "8"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert done.stderr.endswith(f"RuntimeError: sys.exit({code}) was called before all was done\n")
    assert "wrong.py" in done.stderr or "leaves.py" in done.stderr


def test_arguments_that_a_function_has_not_are_told_by_those_it_has(capfd):
    assert main([*WORDS, "--own-data.path", "x"]) == 2
    assert "no setting own_data.path; data.source names nothing that has arguments" in capfd.readouterr().err
    assert main([*WORDS, "--data", "reference_trainer.sources:text_lines", "--own-data.file", "x"]) == 2
    assert "no setting own_data.file; there is own_data.path, own_data.length" in capfd.readouterr().err


# On several ranks: what the pass that settles the buckets finds.


class Halves(Objective):
    """Two layers, of which the loss may leave one out; a sum, or a mean that is called one."""

    def __init__(self, *, unused=False, mean=False, dropout=0.0):
        torch.manual_seed(0)
        self.module = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 1)})
        self.module.forward = lambda x: self.pass_through(x, unused, dropout)
        self.mean = mean

    def pass_through(self, x, unused, dropout):
        x = nn.functional.dropout(self.module["used"](x), dropout)
        return x.sum(1, keepdim=True) if unused else self.module["idle"](x)

    def loss(self, forward, batch):
        losses = (forward(batch.data["x"]) - 1).square()
        return Loss(losses.mean() if self.mean else losses.sum(), {}, {})


def settled(world, rows=8, **how):
    objective, generator = Halves(**how), torch.Generator().manual_seed(world.rank)
    batch = Batch(torch.arange(rows), 0, 0, {"x": torch.randn(rows, 2, generator=generator)})
    return settle_buckets(wrap(objective.module, World.current()), objective, batch)


@pytest.mark.world_size(2)
def test_parameters_without_a_gradient_are_refused_by_name(world):
    told = (
        r"^idle\.weight, idle\.bias got no gradient from the loss: on several ranks every trained parameter needs one"
    )
    with pytest.raises(ConfigError, match=told):
        settled(world, unused=True)


@pytest.mark.world_size(2)
@pytest.mark.parametrize(("rows", "dropout"), [(2, 0.0), (7, 0.0), (64, 0.0), (64, 0.1)])
def test_a_mean_in_the_place_of_a_sum_is_told(world, rows, dropout):
    how = {"rows": rows, "dropout": dropout}
    assert settled(world, **how) == ""
    assert "Halves has about the same loss for half a batch" in settled(world, mean=True, **how)
