"""DDP506 on models that ``fully_shard`` has sharded in place, and DDP404 on their training steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

SCRIPT = """
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x)

dist.init_process_group("gloo")
model = Net()
SHARD
for step in range(9):
    loss = model(torch.ones(1, 1)).sum()
    SKIP
    loss.backward()
if dist.get_rank() == 0:
    state = get_model_state_dict(model, options=OPTIONS)
dist.destroy_process_group()
"""


def found(folder: Path, options: str, shard: str = "fully_shard(model)", skip: str = "pass") -> list[tuple[str, str]]:
    script = SCRIPT.replace("SHARD", shard).replace("OPTIONS", options).replace("SKIP", skip)
    (folder / "train.py").write_text(script)
    settings = Settings(cache_dir=None, root=str(folder), select=("DDP404", "DDP506"))
    return [(finding.code, finding.severity) for finding in check([str(folder / "train.py")], settings).findings]


def test_the_whole_state_needs_every_rank(tmp_path: Path) -> None:
    assert found(tmp_path, "StateDictOptions(full_state_dict=True)") == [("DDP506", "error")]


def test_an_optional_sharding_is_advice(tmp_path: Path) -> None:
    shard = "import sys\nif sys.argv[1]:\n    fully_shard(model)"
    assert found(tmp_path, "StateDictOptions(full_state_dict=True)", shard) == [("DDP506", "info")]


@pytest.mark.parametrize("given", ["", "cpu_offload=True", "full_state_dict=unknown"])
def test_shards_alone_need_nobody_else(tmp_path: Path, given: str) -> None:
    assert found(tmp_path, f"StateDictOptions({given})") == []


def test_a_model_that_is_not_sharded_has_its_state(tmp_path: Path) -> None:
    assert found(tmp_path, "StateDictOptions(full_state_dict=True)", "pass") == []


def test_a_rank_that_skips_a_step_of_a_sharded_model(tmp_path: Path) -> None:
    skip = "if torch.isnan(loss):\n        continue"
    assert found(tmp_path, "None", skip=skip) == [("DDP404", "error")]
    assert found(tmp_path, "None", "pass", skip) == []
