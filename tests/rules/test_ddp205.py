"""DDP205 on the ways in which real scripts keep the random numbers of their ranks apart, or mean them to be equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

HEAD = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
"""
TRAIN = """
def train(generator=None):
    model = DDP(torch.nn.Linear(1, 1))
    for step in range(10):
        noise = torch.randn(4, 1, generator=generator)
        model(noise).sum().backward()
"""
START = """
dist.init_process_group("gloo")
"""
END = """
train()
dist.destroy_process_group()
"""


def _severities(script: str, folder: Path) -> list[str]:
    file = folder / "train.py"
    file.write_text(script)
    outcome = check([str(file)], Settings(cache_dir=None, root=str(folder)))
    return [finding.severity for finding in outcome.findings if finding.code == "DDP205"]


LEFT_ALONE = {
    "the seed holds the rank": "seed = 3 * dist.get_world_size() + dist.get_rank()\ntorch.manual_seed(seed)",
    "a second seed holds it": "torch.manual_seed(0)\nmodel = 1\ntorch.manual_seed(1 + dist.get_rank())",
    "only the CUDA generator is seeded": "torch.cuda.manual_seed(0)",
    "no seed of torch": "import random\nrandom.seed(0)",
    "an unknown library seeds": "from somewhere import seed_everything\nseed_everything(0)",
    "Lightning seeds": "from lightning import seed_everything\nseed_everything(0)",
    "the seed comes from somewhere": "import somewhere\ntorch.manual_seed(somewhere.find())",
    "an offset of unknown origin": "import somewhere\ntorch.manual_seed(somewhere.seed + somewhere.offset)",
    "on rank zero only": "if dist.get_rank() == 0:\n    torch.manual_seed(0)",
    "accelerate with the rank": "from accelerate.utils import set_seed\nset_seed(0, True)",
}


@pytest.mark.parametrize("body", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_ranks_that_may_draw_differently_are_left_alone(body: str, tmp_path: Path) -> None:
    assert _severities(HEAD + TRAIN + START + body + END, tmp_path) == []


FOUND = {
    "a constant": "torch.manual_seed(0)",
    "an option": "import argparse\nargs = argparse.ArgumentParser().parse_args()\ntorch.manual_seed(args.seed)",
    "a helper": "def set_seed(seed):\n    torch.manual_seed(seed)\n    torch.cuda.manual_seed_all(seed)\nset_seed(1)",
    "accelerate": "from accelerate.utils import set_seed\nset_seed(0)",
}


@pytest.mark.parametrize("body", FOUND.values(), ids=FOUND.keys())
def test_ranks_seeded_alike_are_found(body: str, tmp_path: Path) -> None:
    assert _severities(HEAD + TRAIN + START + body + END, tmp_path) == ["warning"]


def test_a_seed_that_hangs_on_an_option_is_advice(tmp_path: Path) -> None:
    parsed = "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"
    body = f"{parsed}if args.seed:\n    torch.manual_seed(args.seed)"
    assert _severities(HEAD + TRAIN + START + body + END, tmp_path) == ["info"]


def test_a_seed_of_the_parent_is_not_one_of_the_ranks(tmp_path: Path) -> None:
    script = """
def worker(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    train()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.manual_seed(0)
    mp.spawn(worker, nprocs=2)
"""
    assert _severities(HEAD + TRAIN + script, tmp_path) == []
    seeded = script.replace("    train()", "    torch.manual_seed(0)\n    train()")
    assert _severities(HEAD + TRAIN + seeded, tmp_path) == ["warning"]


def test_a_step_that_seeds_itself_means_to_be_repeated(tmp_path: Path) -> None:
    step = TRAIN.replace("        noise =", "        torch.manual_seed(0)\n        noise =")
    assert _severities(HEAD + step + START + END, tmp_path) == []


@pytest.mark.parametrize("options", ["worker_init_fn=seed_worker", "generator=generator", "**options"])
def test_workers_seeded_in_their_own_way_are_left_alone(options: str, tmp_path: Path) -> None:
    script = f"""
import random
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from somewhere import generator, options, seed_worker

class Shifted(Dataset):
    def __getitem__(self, index):
        return torch.ones(8)[random.randint(0, 4):]

dist.init_process_group("gloo")
torch.manual_seed(0)
data = Shifted()
loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False), {options})
model = DDP(torch.nn.Linear(1, 1))
for batch in loader:
    model(batch).sum().backward()
dist.destroy_process_group()
"""
    assert _severities(HEAD + script, tmp_path) == []
    assert _severities(HEAD + script.replace(options, "num_workers=2"), tmp_path) == ["warning"]
