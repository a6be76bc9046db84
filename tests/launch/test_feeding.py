"""What a launch file says of the script that it starts: evidence of several nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("launch", "severity"),
    [
        ("torchrun --nnodes 2 --node_rank $R --master_addr $A --nproc_per_node 8 code/train.py\n", "error"),
        ("#SBATCH --nodes=4\nsrun torchrun --nnodes $SLURM_NNODES --rdzv_endpoint $A:$P code/train.py\n", "error"),
        ("torchrun --nnodes ${N:-2} --master_addr $A code/train.py\n", "warning"),
        ("torchrun --nnodes 1:4 --rdzv_endpoint $A:$P code/train.py\n", "warning"),
        ("torchrun --nnodes 2 --node_rank $R --master_addr $A code/other.py\n", "warning"),
        ("torchrun --nproc_per_node 8 code/train.py\n", "warning"),
    ],
)
def test_a_global_rank_as_device_is_an_error_where_several_nodes_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: str, severity: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "run.sh").write_text(launch)
    for _ in range(2):  # the second time from the cache
        found = [each for each in check(["."], Settings()).findings if each.code == "DDP103"]
        assert [each.severity for each in found] == [severity]
        assert [place.path for place in found[0].evidence] == (["run.sh"] if severity == "error" else [])
    (tmp_path / "run.sh").unlink()
    assert [each.severity for each in check(["."], Settings()).findings if each.code == "DDP103"] == ["warning"]
