"""What a usage line says of nodes: for one of them a save by the local rank is an advice."""

from __future__ import annotations

from typing import Any

import pytest

SAVE = """
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DDP(torch.nn.Linear(2, 2).cuda())
if local_rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("# torchrun --nproc_per_node=8 train.py", "info"),
        ("# torchrun --nnodes=1 --nproc_per_node=8 train.py", "info"),
        ("# torchrun --nnodes 1 --nproc_per_node=8 train.py", "info"),
        ("# torchrun --nnodes=2 --nproc_per_node=8 train.py", "warning"),
        ("# torchrun --nnodes=16 --nproc_per_node=8 train.py", "warning"),
        ("# torchrun --nnodes=$NODES --nproc_per_node=8 train.py", "warning"),
        ("nodes = args.nnodes if (args := sys.argv) else 1", "warning"),
    ],
)
def test_what_a_usage_line_says_of_nodes(lint: Any, line: str, severity: str) -> None:
    assert lint.body(line + SAVE, "DDP503").severities == [severity]
