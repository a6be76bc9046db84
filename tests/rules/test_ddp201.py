"""Which samplers need their epoch set: those that deal out training data in an order that depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.findings import ERROR, WARNING
from validate_ddp.lint import check

HEAD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(1, 1))
"""
TRAINED = """
train_sampler = DistributedSampler(range(8))
train_loader = DataLoader(range(8), sampler=train_sampler)
loader = DataLoader(range(8), sampler=DistributedSampler(range(8)))
for epoch in range(3):
    train_sampler.set_epoch(epoch)
    for batch in train_loader:
        model(batch).sum().backward()
"""
UNSEEN = """
import engine

loader = DataLoader(range(8), sampler=DistributedSampler(range(8)))
for epoch in range(3):
"""
OWN = """
class Dealing(DistributedSampler):
    def __init__(self, data, seed):
        super().__init__(data)
        self.generator = torch.Generator().manual_seed(seed)

METHODS

loader = DataLoader(range(8), sampler=Dealing(range(8), seed=1))
for turn in range(3):
    for batch in loader:
        model(batch).sum().backward()
"""
TAIL = """
dist.destroy_process_group()
"""


def found(folder: Path, script: str) -> list[str]:
    (folder / "train.py").write_text(HEAD + script + TAIL)
    outcome = check([str(folder / "train.py")], Settings(cache_dir=None, root=str(folder), select=("DDP201",)))
    return [finding.severity for finding in outcome.findings]


NO_TRAINING = {
    "validated beside training": TRAINED + "    for batch in loader:\n        print(model(batch))\n",
    "validated without gradients": (
        UNSEEN
        + "    engine.train(model)\n    with torch.no_grad():\n        for batch in loader:\n            model(batch)\n"
    ),
    "without gradients inside the loop": (
        UNSEEN + "    for batch in loader:\n        with torch.no_grad():\n            print(model(batch))\n"
    ),
    "in evaluation mode": UNSEEN + "    model.eval()\n    for batch in loader:\n        print(model(batch))\n",
    "the results of an evaluation": (
        UNSEEN + "    results = engine.evaluate(loader, model)\n    print({k: v for k, v in results.items()})\n"
    ),
}


@pytest.mark.parametrize("script", NO_TRAINING.values(), ids=NO_TRAINING.keys())
def test_a_sampler_that_feeds_no_training_is_left_alone(tmp_path: Path, script: str) -> None:
    assert found(tmp_path, script) == []


def test_a_sampler_that_feeds_a_loop_with_a_backward_is_an_error(tmp_path: Path) -> None:
    assert found(tmp_path, TRAINED + "    for batch in loader:\n        model(batch).sum().backward()\n") == [ERROR]


@pytest.mark.parametrize("mode", ["", "    model.eval()\n    model.train()\n"], ids=["plain", "back in training mode"])
def test_a_loop_whose_backward_is_out_of_sight_is_a_warning(tmp_path: Path, mode: str) -> None:
    loop = "    for batch in loader:\n        engine.step(model, batch)\n"
    assert found(tmp_path, UNSEEN + mode + loop) == [WARNING]


INDICES = "    def indices(self):\n        return torch.randperm(8, generator=self.generator)"
OWN_ORDER = {
    "a list": "    def __iter__(self):\n        return iter(torch.randperm(8, generator=self.generator))",
    "itself": "    def __iter__(self):\n        return self\n\n    def __next__(self):\n        return 1",
    "by a method": f"{INDICES}\n\n    def __iter__(self):\n        return iter(self.indices())",
}
OF_THE_EPOCH = {
    "uses it": "    def __iter__(self):\n        return iter(range(self.epoch, 8))",
    "by a method": "    def one(self):\n        return self.epoch\n\n    def __iter__(self):\n        yield self.one()",
    "goes on to the base": "    def __iter__(self):\n        return iter(list(super().__iter__())[:4])",
    "no iterator": INDICES,
    "its own set_epoch": (
        "    def set_epoch(self, number):\n        self.turn = number\n\n"
        "    def __iter__(self):\n        yield self.turn"
    ),
}


@pytest.mark.parametrize("methods", OWN_ORDER.values(), ids=OWN_ORDER.keys())
def test_an_iterator_of_its_own_has_no_epoch(tmp_path: Path, methods: str) -> None:
    assert found(tmp_path, OWN.replace("METHODS", methods)) == []


@pytest.mark.parametrize("methods", OF_THE_EPOCH.values(), ids=OF_THE_EPOCH.keys())
def test_an_iterator_that_goes_by_the_epoch_needs_it_set(tmp_path: Path, methods: str) -> None:
    assert found(tmp_path, OWN.replace("METHODS", methods)) == [ERROR]


SET_OTHERWISE = """
class Parts(DistributedSampler):
    PARTS

class Provider:
    def __init__(self):
        self.train = DataLoader(range(8), sampler=Parts(range(8)))

    def begin(self, epoch):
        if isinstance(self.train.sampler, Parts):
            self.train.sampler.METHOD(epoch, 1)

provider = Provider()
for epoch in range(3):
    provider.begin(epoch)
    for batch in provider.train:
        model(batch).sum().backward()
"""
SETTER = """def set_part(self, epoch, part):
        if part >= 0:
            self.epoch = epoch
            self.part = part

    def describe(self, epoch, part):
        print(self.epoch, epoch, part)
"""


@pytest.mark.parametrize(("method", "severities"), [("set_part", []), ("describe", [ERROR])])
def test_a_method_of_the_samplers_own_may_set_its_epoch(tmp_path: Path, method: str, severities: list[str]) -> None:
    assert found(tmp_path, SET_OTHERWISE.replace("PARTS", SETTER).replace("METHOD", method)) == severities


@pytest.mark.parametrize(
    ("statement", "severities"), [("sampler.epoch = epoch", []), ("loader.epoch = epoch", [ERROR])]
)
def test_the_epoch_is_a_field_that_may_be_written(tmp_path: Path, statement: str, severities: list[str]) -> None:
    script = f"""
sampler = DistributedSampler(range(8))
loader = DataLoader(range(8), sampler=sampler)
for epoch in range(3):
    {statement}
    for batch in loader:
        model(batch).sum().backward()
"""
    assert found(tmp_path, script) == severities
