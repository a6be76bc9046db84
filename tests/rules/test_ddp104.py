"""DDP104 on ranks that have nothing but their names."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
from somewhere import envs
"""


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
def test_a_local_rank_with_a_global_one_beside_it(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP104").severities == ["warning"]


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT.keys())
def test_what_may_be_the_rank_is_left_alone(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP104").severities == []


def test_a_command_line_for_one_node_is_no_evidence_of_several(lint: Any) -> None:
    body = "rank = int(os.environ['LOCAL_RANK'])\nsize = int(os.environ['WORLD_SIZE'])\n" + START.format("rank", "size")
    for usage, severity in (
        ("# torchrun --nnodes=2\n", "error"),
        ('"""torchrun --nnodes=12 --nproc_per_node=2 train.py"""\n', "error"),
        ("# torchrun --standalone --nnodes=1\n", "warning"),
        ('"""torchrun --standalone --nnodes=1 --nproc_per_node=2 train.py"""\n', "warning"),
    ):
        assert lint.body(HEAD + usage + body, "DDP104").severities == [severity]


def test_a_list_of_nodes_is_evidence_of_several(lint: Any) -> None:
    body = "nodes = os.environ['SLURM_JOB_NODELIST']\nrank = int(os.environ['RANK'])\n"
    assert lint.body(HEAD + body + START.format("rank", "torch.cuda.device_count()"), "DDP104").severities == ["error"]
    assert lint.body(HEAD + body + START.format("rank", "int(os.environ['WORLD_SIZE'])"), "DDP104").severities == []
