"""DDP102 where the words of a device are there, but none for a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

HEAD = """
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

cuda = torch.cuda.is_available()
"""


def found(folder: Path, body: str) -> list[str]:
    (folder / "train.py").write_text(HEAD + body + "\ndist.destroy_process_group()\n")
    outcome = check([str(folder / "train.py")], Settings(cache_dir=None, root=str(folder), select=("DDP102",)))
    return [finding.severity for finding in outcome.findings]


START = "if cuda:\n    pass\ndist.init_process_group('nccl')\ndevice = torch.device('cuda')\n"
NEVER = {
    "a condition called cuda": START + "model = DDP(torch.nn.Linear(1, 1).to(device))",
    "FSDP": START + "model = FSDP(torch.nn.Linear(1, 1).to(device))",
    "FSDP with a device_id without an index": START + "model = FSDP(torch.nn.Linear(1, 1), device_id=device)",
}
CHOSEN = {
    "FSDP with the current device": START + "FSDP(torch.nn.Linear(1, 1), device_id=torch.cuda.current_device())",
    "an index in a string": START + "DDP(torch.nn.Linear(1, 1).to(f'cuda:{dist.get_rank()}'))",
    "another string": START + "DDP(torch.nn.Linear(1, 1).to('cuda:%d' % dist.get_rank()))",
    "fully_shard makes a mesh, and that chooses": (
        "from torch.distributed.fsdp import fully_shard\n" + START + "fully_shard(torch.nn.Linear(1, 1))"
    ),
}


@pytest.mark.parametrize("body", NEVER.values(), ids=NEVER.keys())
def test_no_rank_chooses(tmp_path: Path, body: str) -> None:
    assert found(tmp_path, body) == ["warning"]


@pytest.mark.parametrize("body", CHOSEN.values(), ids=CHOSEN.keys())
def test_some_sign_of_a_device_is_enough(tmp_path: Path, body: str) -> None:
    assert found(tmp_path, body) == []


def test_a_device_made_before_the_barrier_is_not_chosen_yet(tmp_path: Path) -> None:
    made = "dist.init_process_group('nccl')\ndevice = torch.device(f\"cuda:{os.environ['LOCAL_RANK']}\")\n"
    wrap = "\nDDP(torch.nn.Linear(1, 1).to(device))"
    assert found(tmp_path, made + "dist.barrier()\ntorch.cuda.set_device(device)" + wrap) == ["warning"]
    assert found(tmp_path, made + "torch.cuda.set_device(device)\ndist.barrier()" + wrap) == []
