"""DDP104 on ranks that have nothing but their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

HEAD = """
import argparse
import os
import torch
import torch.distributed as dist
from somewhere import envs
"""


def found(folder: Path, body: str) -> list[str]:
    (folder / "train.py").write_text(HEAD + body + "\ndist.destroy_process_group()\n")
    outcome = check([str(folder / "train.py")], Settings(cache_dir=None, root=str(folder), select=("DDP104",)))
    return [finding.severity for finding in outcome.findings]


NAMES = "local_rank, rank, world_size = envs()\ndist.init_process_group('nccl', rank={}, world_size={})"
FIELDS = "args = argparse.ArgumentParser().parse_args()\nargs.local_rank, args.rank, args.world_size = envs()\n"
START = "dist.init_process_group('nccl', rank={}, world_size={})"
MIXED = {
    "names": NAMES.format("local_rank", "world_size"),
    "fields": FIELDS + START.format("args.local_rank", "args.world_size"),
}
RIGHT = {
    "the rank": NAMES.format("rank", "world_size"),
    "the field": FIELDS + START.format("args.rank", "args.world_size"),
    "no other rank": "local_rank, world_size = envs()\n" + START.format("local_rank", "world_size"),
    "a world of one node": NAMES.format("local_rank", "torch.cuda.device_count()"),
}


@pytest.mark.parametrize("body", MIXED.values(), ids=MIXED.keys())
def test_a_local_rank_with_a_global_one_beside_it(tmp_path: Path, body: str) -> None:
    assert found(tmp_path, body) == ["warning"]


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT.keys())
def test_what_may_be_the_rank_is_left_alone(tmp_path: Path, body: str) -> None:
    assert found(tmp_path, body) == []


def test_a_command_line_for_one_node_is_no_evidence_of_several(tmp_path: Path) -> None:
    body = "rank = int(os.environ['LOCAL_RANK'])\nsize = int(os.environ['WORLD_SIZE'])\n" + START.format("rank", "size")
    assert found(tmp_path, "# torchrun --nnodes=2\n" + body) == ["error"]
    assert found(tmp_path, "# torchrun --standalone --nnodes=1\n" + body) == ["warning"]


def test_a_list_of_nodes_is_evidence_of_several(tmp_path: Path) -> None:
    body = "nodes = os.environ['SLURM_JOB_NODELIST']\nrank = int(os.environ['RANK'])\n"
    assert found(tmp_path, body + START.format("rank", "torch.cuda.device_count()")) == ["error"]
    assert found(tmp_path, body + START.format("rank", "int(os.environ['WORLD_SIZE'])")) == []
