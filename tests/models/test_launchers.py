"""Fabric, LightningLite before it, and classes of a program derived from these or from the Accelerator: what they do is
what the library does, on as many ranks."""

from __future__ import annotations

from typing import Any

import pytest

LITE = """
import torch
from pytorch_lightning.lite import LightningLite

class Lite(LightningLite):
    def run(self, folder):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer = self.setup(model, optimizer)
        loader = self.setup_dataloaders(torch.utils.data.DataLoader(torch.ones(8, 1)))
        for batch in loader:
            self.backward(model(self.to_device(batch)).sum())
            optimizer.step()
            {step}

Lite({options}).run("out")
"""
FABRIC = """
import torch
from lightning.fabric import Fabric

class Ending:
    def on_end(self, fabric):
        {callback}

fabric = Fabric(devices=2, callbacks=[Ending()])
fabric.launch()
{before}
model = fabric.setup_module(torch.nn.Linear(1, 1))
for batch in fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.ones(8, 1))):
    fabric.backward(model(batch + torch.rand_like(batch)).sum())
fabric.call("on_end", fabric)
"""
DERIVED = """
import torch
from {library} import {base}

class Own({base}):
    def gather_all(self, value):
        return super().{gather}(value)

own = Own(**{options})
model = own.{setup}(torch.nn.Linear(1, 1))
if own.{first}:
    own.gather_all(torch.ones(1))
"""


@pytest.mark.parametrize(
    ("options", "step", "wanted"),
    [
        ('devices="auto", accelerator="gpu"', "if self.global_rank == 0: self.barrier()", ["DDP401"]),
        ("strategy=object(), devices=2, num_nodes=2", "if self.is_global_zero: self.barrier()", ["DDP401"]),
        ('devices="auto"', 'torch.save(model.module.state_dict(), folder + "/model.pt")', ["DDP502"]),
        ('devices="auto"', "if self.global_rank == 0: self.save(model.state_dict(), folder)", []),
        (
            'devices=2, strategy="deepspeed"',
            "if self.global_rank == 0: self.save(model.state_dict(), folder)",
            ["DDP506"],
        ),
        ("devices=1", "if self.global_rank == 0: self.barrier()", []),
        ("", "if self.global_rank == 0: self.barrier()", []),
    ],
)
def test_what_lightning_lite_runs_is_code_of_every_rank(lint: Any, options: str, step: str, wanted: list[str]) -> None:
    found = lint(LITE.format(options=options, step=step))
    assert [each.code for each in found] == wanted


def test_the_callbacks_that_fabric_calls_are_code_of_every_rank(lint: Any) -> None:
    callback = "if fabric.is_global_zero:\n            fabric.barrier()"
    assert lint(FABRIC.format(before="", callback=callback)).told == [("DDP401", "error")]
    assert not lint(FABRIC.format(before="", callback=callback.replace("barrier()", "print(1)")))


@pytest.mark.parametrize(
    ("seed", "wanted"), [("7", ["DDP205"]), ("7 + fabric.global_rank", []), ("seed=fabric.global_rank", [])]
)
def test_fabric_seeds_every_rank_with_what_it_is_given(lint: Any, seed: str, wanted: list[str]) -> None:
    found = lint(FABRIC.format(before=f"fabric.seed_everything({seed})", callback="pass"))
    assert [each.code for each in found] == wanted


def test_the_state_of_what_fabric_set_up_is_that_of_the_model_inside(lint: Any) -> None:
    callback = 'if fabric.is_global_zero:\n            torch.save(model.state_dict(), "model.pt")'
    assert not lint(FABRIC.format(before="", callback=callback))


@pytest.mark.parametrize(
    "parts",
    [
        {
            "library": "accelerate",
            "base": "Accelerator",
            "gather": "gather",
            "setup": "prepare",
            "first": "is_main_process",
        },
        {"library": "lightning", "base": "Fabric", "gather": "all_gather", "setup": "setup", "first": "is_global_zero"},
    ],
)
@pytest.mark.parametrize("options", ["{}", "{'precision': '16'}"])
def test_a_class_derived_from_a_launcher_does_what_it_does(lint: Any, parts: dict[str, str], options: str) -> None:
    assert lint(DERIVED.format(options=options, **parts)).told == [("DDP401", "error")]


def test_what_rank_zero_does_first_is_done_once(lint: Any) -> None:
    script = """
import requests
from lightning.fabric import Fabric
from pathlib import Path


def fetch(path, url):
    if not path.exists():
        with open(path, "wb") as file:
            file.write(requests.get(url).content)


def main(fabric):
    {context}fetch(Path("data.bin"), "https://example.org/data.bin")


Fabric(devices=2).launch(main)
"""
    assert lint(script.format(context="with fabric.rank_zero_first(): "), "DDP502", "DDP208").codes == set()
    assert lint(script.format(context=""), "DDP502", "DDP208").codes != set()
