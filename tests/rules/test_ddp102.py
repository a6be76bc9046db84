"""DDP102 where the words of a device are there, but none for a rank."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

cuda = torch.cuda.is_available()
"""


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
def test_no_rank_chooses(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP102").severities == ["warning"]


@pytest.mark.parametrize("body", CHOSEN.values(), ids=CHOSEN.keys())
def test_some_sign_of_a_device_is_enough(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP102").severities == []


def test_a_device_made_before_the_barrier_is_not_chosen_yet(lint: Any) -> None:
    made = "dist.init_process_group('nccl')\ndevice = torch.device(f\"cuda:{os.environ['LOCAL_RANK']}\")\n"
    early, late = "dist.barrier()\ntorch.cuda.set_device(device)\n", "torch.cuda.set_device(device)\ndist.barrier()\n"
    for order, severities in ((early, ["warning"]), (late, [])):
        script = HEAD + made + order + "DDP(torch.nn.Linear(1, 1).to(device))"
        assert lint.body(script, "DDP102").severities == severities


@pytest.mark.parametrize(
    ("group", "severities"),
    [("None", ["warning"]), ("dist.group.WORLD", ["warning"]), ("dist.new_group([0])", [])],
)
def test_the_group_of_all_ranks_is_meant_by_none_too(lint: Any, group: str, severities: list[str]) -> None:
    script = f"dist.init_process_group('nccl')\ndist.new_group([0, 1])\ndist.barrier(group={group})\n"
    script += "torch.cuda.set_device(dist.get_rank() % 8)\n"
    assert lint.body(HEAD + script + "DDP(torch.nn.Linear(1, 1).cuda())", "DDP102").severities == severities


INIT, BARRIER, WRAP = "dist.init_process_group('nccl')\n", "dist.barrier()\n", "DDP(torch.nn.Linear(1, 1).to(device))\n"
INDEX = "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
ACCELERATOR = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
PREPARE = "model = accelerator.prepare(torch.nn.Linear(1, 1))\n"
NAMED_OTHERWISE = {
    "an index": (INIT + BARRIER + INDEX + WRAP, ["info"]),
    "an index before": (INIT + INDEX + BARRIER + WRAP, []),
    "Accelerate": (INIT + BARRIER + ACCELERATOR + PREPARE, ["info"]),
    "Accelerate before": (INIT + ACCELERATOR + BARRIER + PREPARE, []),
    "one device each": (f"os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n{INIT}{BARRIER}{INDEX}{WRAP}", []),
    "a tensor before": (INIT + "dist.all_reduce(torch.ones(1))\n" + BARRIER + INDEX + WRAP, []),
    "no group of the script's": ("dist.barrier()\n" + ACCELERATOR + PREPARE, []),
}


@pytest.mark.parametrize(("body", "severities"), NAMED_OTHERWISE.values(), ids=NAMED_OTHERWISE.keys())
def test_a_barrier_before_a_device_that_is_named_otherwise_is_advice(
    lint: Any, body: str, severities: list[str]
) -> None:
    assert lint.body(HEAD + body, "DDP102").severities == severities
