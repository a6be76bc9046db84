"""What is walked at all: functions of one telling word, imports far above a script, schedules of libraries."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = "import os\nimport torch\nimport torch.distributed as dist\n"
START = 'dist.init_process_group("nccl")\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\nmodel = torch.nn.Linear(2, 2)\n'
END = "dist.destroy_process_group()\n"
SAVE = 'import torch\n\n\ndef save(model, path="m.pt"):\n    torch.save(model.state_dict(), path)\n'
AUGMENTS = """
import torch.distributed
from elsewhere import make_transform

def build(train):
    if train:
        transform = make_transform(size=224, color_jitter=0.4, re_prob=0.25)
        return transform
    steps = []
    steps.append("resize")
    return steps
"""
TRAINS = """
from data import build
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder

torch.manual_seed(3)
model = DDP(model.cuda())
images = ImageFolder("data", transform=build(True))
sampler = DistributedSampler(images)
loader = DataLoader(images, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        model(batch).sum().backward()
"""


def test_a_function_is_walked_whose_only_word_is_an_option_that_augments(lint: Any) -> None:
    lint.write({"data.py": AUGMENTS, "train.py": HEAD + START + TRAINS + END})
    assert "DDP205" in lint.run("train.py").codes


@pytest.mark.parametrize("mark", ["pyproject.toml", "setup.py", ""])
def test_imports_are_looked_for_up_to_the_projects_root(mark: str, lint: Any) -> None:
    folder = "recipes/speech/self-supervised/large/base"
    script = HEAD + START + "from engine import save\nsave(model)\n" + END
    lint.write({"engine.py": SAVE, f"{folder}/train.py": script, **({mark: ""} if mark else {})})
    found = [finding.code for finding in lint.run(f"{folder}/train.py")]
    assert found == (["DDP502"] if mark else [])


SCHEDULE = """
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from torch.utils.data import DataLoader, DistributedSampler

def step(batches, model):
    return model(next(batches)["tokens"]), print

model = DistributedDataParallel(None, None, model.cuda())
batches = iter(DataLoader(torch.ones(64, 2), {sampler}))
run = get_forward_backward_func()
for turn in range(5):
    run(forward_step_func=step, data_iterator=batches, model=model, forward_only={only})
"""


@pytest.mark.parametrize(
    ("sampler", "only", "expected"),
    [
        ("shuffle=True", "False", {"DDP202"}),
        ("shuffle=True", "True", set()),
        ("sampler=DistributedSampler(torch.ones(64, 2), shuffle=False)", "False", set()),
    ],
)
def test_a_schedule_of_megatron_trains_on_what_its_iterator_gives(
    sampler: str, only: str, expected: set[str], lint: Any
) -> None:
    script = HEAD + START + SCHEDULE.format(sampler=sampler, only=only) + END
    assert lint(script).codes & {"DDP202"} == expected


def test_a_variable_that_an_imported_module_sets_is_told(lint: Any) -> None:
    lint.write(
        {
            "setup_nccl.py": 'import os\n\n\ndef prepare():\n    os.environ["NCCL_ASYNC_ERROR_HANDLING"] = "1"\n',
            "train.py": HEAD + "from setup_nccl import prepare\nprepare()\n" + START + END,
        }
    )
    (finding,) = lint.run("train.py").of("DDP108")
    assert finding.path == "setup_nccl.py"


KEEPER = """
class Keeper:
    def __init__(self, store, label):
        self.store = store
        self.label = label
        self.kept = []

    def keep(self):
        self.store.write()
"""
STORE = """
import torch


class Store:
    def __init__(self, model):
        self.model = model

    def write(self):
        torch.save(self.model.state_dict(), "m.pt")
"""


def test_what_keeps_an_object_that_saves_is_known_to_keep_it(lint: Any) -> None:
    script = "from keeper import Keeper\nfrom store import Store\n" + START
    script += 'Keeper(Store(model), "last").keep()\n'
    lint.write({"keeper.py": "import torch.distributed\n" + KEEPER, "store.py": STORE, "train.py": HEAD + script + END})
    assert "DDP502" in lint.run("train.py").codes


CLOSURE = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

{}
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = TensorDataset(torch.zeros(10, 2))
    model = DDP(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(data, sampler=DistributedSampler(data, drop_last=True))
    val = DataLoader(data, sampler=DistributedSampler(data, shuffle=False, drop_last=True))

    @torch.no_grad()
    def estimate():
        total = 0.0
        for (x,) in val:
            total += model(x).mean().item()
        return total / len(val)

    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        loss = estimate()
        if rank == 0:
            print(loss)
    dist.destroy_process_group()

{}
"""


@pytest.mark.parametrize("around", [("def main():", "main()"), ("if True:", "")])
def test_a_function_that_evaluates_what_the_code_around_it_has_is_walked(lint: Any, around: tuple[str, str]) -> None:
    lint.write(train=CLOSURE.format(*around))
    assert {finding.code for finding in lint.run("train.py")} == {"DDP601"}


def test_one_whose_own_parameter_has_such_a_name_is_not_for_that(lint: Any) -> None:
    plain = CLOSURE.replace("def estimate():", "def estimate(val, model):").replace("estimate()", "estimate([], abs)")
    lint.write(train=plain.format("def main():", "main()"))
    assert {finding.code for finding in lint.run("train.py")} == set()
