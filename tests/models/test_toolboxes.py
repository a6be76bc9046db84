"""What detectron2, fvcore and OpenMMLab's engines do with ranks is known, and no guess from names."""

from __future__ import annotations

from typing import Any

import pytest

COMMON = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(2, 2))
"""


@pytest.mark.parametrize(
    ("start", "collective"),
    [
        ("import detectron2.utils.comm as comm\nmain = comm.is_main_process()", "comm.synchronize()"),
        ("from mmengine import dist\nmain = dist.is_main_process()", "dist.collect_results([], 1)"),
        (
            "from mmcv.runner import get_dist_info, all_gather\nrank, world = get_dist_info()\nmain = rank == 0",
            "all_gather(1)",
        ),
    ],
)
def test_a_collective_of_a_toolbox_on_rank_zero_alone_is_an_error(start: str, collective: str, lint: Any) -> None:
    assert lint(f"{COMMON}{start}\nif main:\n    {collective}\n").of("DDP401").severities == ["error"]
    assert lint(f"{COMMON}{start}\n{collective}\n").of("DDP401") == []


LAUNCHED = """
import torch
from detectron2.engine import launch
from torch.nn.parallel import DistributedDataParallel as DDP

def main(out):
    model = DDP(torch.nn.Linear(2, 2))
    torch.save(model.module.state_dict(), out)

if __name__ == "__main__":
    launch(main, NUMBER, args=("model.pt",))
"""


def test_detectron2_launches_the_function_on_several_ranks_unless_it_is_told_one(lint: Any) -> None:
    assert lint(LAUNCHED.replace("NUMBER", "8")).of("DDP502").severities == ["error"]
    assert lint(LAUNCHED.replace("NUMBER", "1")) == []


def test_lhotse_seeds_all_generators_as_torch_does(lint: Any) -> None:
    """What is told of a seed of torch is told of this one."""
    code = """
import torch
import torch.distributed as dist
from lhotse.utils import fix_random_seed
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.cuda.set_device(dist.get_rank())
SEED(42)
model = DDP(torch.nn.Linear(2, 2).cuda())
sampler = DistributedSampler(range(8))
loader = DataLoader(range(8), sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        model(batch + torch.randn_like(batch)).sum().backward()
dist.destroy_process_group()
"""
    known = lint(code.replace("SEED", "torch.manual_seed")).of("DDP205")
    assert len(known) == len(lint(code.replace("SEED", "fix_random_seed")).of("DDP205")) == 1
