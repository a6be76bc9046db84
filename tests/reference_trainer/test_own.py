"""A model and data of one's own from the command line: settings, plan, training, resuming, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest

torch = pytest.importorskip("torch")
from reference_trainer.checkpoint import latest  # noqa: E402
from reference_trainer.cli import main  # noqa: E402
from reference_trainer.config import Config, ConfigError, DataConfig  # noqa: E402
from reference_trainer.sources import build_data  # noqa: E402

pytestmark = pytest.mark.runtime

MODULE = """
import torch
from torch import nn
from reference_trainer import Objective
from reference_trainer.core.objective import Loss


class Line(Objective):
    def __init__(self, width: int = 4, *, seed: int) -> None:
        torch.manual_seed(seed)
        self.module = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))

    def error(self, forward, batch):
        return (forward(batch.data["x"]) - batch.data["y"]).square().sum()

    def loss(self, forward, batch):
        return Loss(self.error(forward, batch), {}, {})

    def evaluate(self, module, batch):
        return {"squared_error": self.error(module, batch)}


def points(count: int = 40, slope: float = 2.0):
    x = torch.linspace(-1, 1, count).unsqueeze(1)
    return torch.utils.data.TensorDataset(x, slope * x)


def nothing(needed: int):
    return None
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mine", None)


OWN = ["--objective", "mine:Line", "--data", "mine:points", "--own-data.count", "50", "own.width=8"]


def test_it_is_planned_trained_and_goes_on(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(
        "objective: mine:Line\nown: {width: 8}\ndata.source: mine:points\nown_data.count: 50\n"
    )
    assert main(["plan", "--config", "run.yaml", "--steps", "4", "--global-batch", "8", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["optimizer_steps_per_epoch"] == 5  # 40 of 50 are trained on
    train = ["train", *OWN, "--global-batch", "8", "--run-dir", "run"]
    assert main([*train, "--steps", "4"]) == 0
    assert main([*train, "--steps", "6"]) == 0
    assert latest(tmp_path / "run").name == "step-00000006" and "after step 4 of 6" in capsys.readouterr().err
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (written["own"], written["own_data"]) == ({"width": 8}, {"count": 50})
    assert main([*train[:-4], "--config", "run/config.json", "--run-dir", "again", "--steps", "1"]) == 0
    assert main([*train, "--own.width", "9", "--steps", "7"]) == 2
    assert "own.width was 8 and is 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--objective", "mine:Lime"], "module 'mine' has no attribute 'Lime'"),
        (["--objective", "nowhere:Line"], "objective is nowhere:Line: No module named 'nowhere'"),
        (["--objective", "disentangled"], "it must be disentangle, flow_matching"),
        (["--objective", "mine:Line", "--own.width", "wide"], "own.width is 'wide'; it must be a whole number"),
        (["--objective", "mine:Line", "--own.depth", "3"], "there is no setting own.depth"),
        (
            ["--data", "mine:nothing"],
            "data.source mine:nothing: missing a required argument: 'needed'; give --own-data.NAME",
        ),
        (["--data", "mine:nothing", "--own-data.needed", "1"], "made a NoneType; expected Data, or samples"),
        (["--objective", "mine:points"], "made a TensorDataset; expected an Objective"),
    ],
)
def test_what_cannot_be_made_is_one_line(words, told, capsys):
    assert main(["train", *words, "--run-dir", "run"]) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err


def data(function, **own):
    source = f"reference_trainer.sources:{function}"
    return build_data(Config(data=DataConfig(source=source), own_data={name: str(each) for name, each in own.items()}))


def test_ready_made_sources_read_texts_tables_and_images(tmp_path):
    (tmp_path / "prompts.txt").write_text("\n\n".join(f"prompt {at}" for at in range(20)))
    found = data("text_lines", path=tmp_path / "prompts.txt")
    batch = found.train.fetch(torch.arange(3), 0)["text"]
    assert (len(found.train), len(found.validation), len(found.test), batch.shape) == (16, 2, 2, (3, 256))
    assert bytes(batch[0].tolist()).startswith(b"prompt ")

    (tmp_path / "table.csv").write_text("size,share,name\n" + "".join(f"{at},{at / 4},n{at}\n" for at in range(5)))
    batch = data("metadata", path=tmp_path / "table.csv").train.fetch(torch.arange(3), 0)
    assert (batch["size"].dtype, batch["share"].dtype) == (torch.int64, torch.float64)
    assert torch.equal(batch["size"] / 4, batch["share"]) and batch["name"].shape == (3, 256)
    assert data("metadata", path=tmp_path / "table.csv").train.fetch(torch.arange(0), 0)["name"].shape == (0, 256)

    image = pytest.importorskip("PIL.Image")
    for at in range(4):
        (tmp_path / "photos" / "ab"[at % 2]).mkdir(parents=True, exist_ok=True)
        image.new("RGB", (9, 5), (255, 0, 51)).save(tmp_path / "photos" / "ab"[at % 2] / f"{at}.png")
    batch = data("image_folder", path=tmp_path / "photos").train.fetch(torch.arange(2), 0)
    assert batch["image"].shape == (2, 3, 64, 64) and batch["image"][0, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
    with pytest.raises(ConfigError, match=r"own_data\.path nowhere is not there"):
        data("text_lines", path="nowhere")
