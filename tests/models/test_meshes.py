"""Ranks of dimensions, as values in paths and as guards; groups and options that are given by position."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import Program, trace
from validate_ddp.interpreter.values import Rank, bare, constant, reaching
from validate_ddp.interpreter.wording import described
from validate_ddp.models.known import registry
from validate_ddp.source.summaries import Summaries

HEAD = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
import helper

dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
net = torch.nn.Linear(1, 1)
"""

GUARDS = {
    "dimension": 'mesh["dp"].get_local_rank() == 0',
    "dimension by argument": 'mesh.get_local_rank("tp") == 0',
    "coordinate": "mesh.get_coordinate()[1] == 0",
    "group of a dimension": 'dist.get_rank(mesh.get_group("tp")) == 0',
    "method of a group": 'mesh["tp"].get_group().rank() == 0',
    "mesh out of sight": "helper.device_mesh.get_local_rank() == 0",
    "dimension out of sight": 'helper.device_mesh["dp"].get_local_rank() == 0',
    "group out of sight": "helper.get_rank(helper.tp_group) == 0",
    "remainder by the size of a group": "dist.get_rank() % helper.tp_size == 0",
    "getter": "helper.mpu.get_context_parallel_rank() == 0",
}


def _traced(script: str, folder: Path) -> Program:
    (folder / "train.py").write_text(HEAD + script)
    return trace(Summaries(), str(folder / "train.py"), registry())


@pytest.mark.parametrize("condition", GUARDS.values(), ids=GUARDS.keys())
def test_one_rank_of_each_group_passes_a_guard_on_a_rank_in_a_group(condition: str, tmp_path: Path) -> None:
    (save,) = _traced(f'if {condition}:\n    torch.save(net.state_dict(), "a.pt")\n', tmp_path).facts(facts.Save)
    assert save.who == "some"


RANKS = {
    "dimension": ('mesh["dp"].get_local_rank()', "the rank in a group of `dp`"),
    "group": ('dist.get_rank(mesh.get_group("tp"))', "the rank in a group of `tp`"),
    "group of a dimension": ('mesh["tp"].get_group().rank()', "the rank in a group of `tp`"),
    "all dimensions": ("mesh.get_coordinate()[0]", "the rank in a group"),
    "name": ("helper.device_mesh.get_local_rank()", "the rank in a group, going by its name"),
    "whole mesh": ("mesh.get_rank()", "the global rank"),
    "remainder": ("dist.get_rank() % helper.group_size", "the rank in a group"),
    "quotient": ("dist.get_rank() // helper.tp_size", "the rank in a group"),
    "remainder by devices": ("dist.get_rank() % torch.cuda.device_count()", "the local rank"),
}


@pytest.mark.parametrize(("rank", "said"), RANKS.values(), ids=RANKS.keys())
def test_a_rank_in_a_group_makes_a_path_each_ranks_own_and_is_told_with_its_dimension(
    rank: str, said: str, tmp_path: Path
) -> None:
    (save,) = _traced(f'torch.save(net.state_dict(), f"a_{{{rank}}}.pt")\n', tmp_path).facts(facts.Save)
    held = tuple(part for part in reaching(save.path) if isinstance(part, Rank))
    assert described(held) == said


def test_a_remainder_by_something_unknown_is_the_rank_that_its_name_says(tmp_path: Path) -> None:
    program = _traced('local_rank = dist.get_rank() % helper.ppn\ntorch.save({}, f"{local_rank}.pt")\n', tmp_path)
    (save,) = program.facts(facts.Save)
    assert [part.scope for part in reaching(save.path) if isinstance(part, Rank)] == ["local"]


@pytest.mark.parametrize("size", ['mesh["dp"].size()', "mesh.size(0)", 'dist.get_world_size(mesh.get_group("dp"))'])
def test_a_group_may_have_a_single_rank_and_the_world_has_several(size: str, tmp_path: Path) -> None:
    program = _traced(f"if {size} > 1:\n    dist.barrier()\nif mesh.size() > 1:\n    dist.barrier()\n", tmp_path)
    first, second = (fact for fact in program.facts(facts.Collective) if fact.name == "barrier")
    assert first.hangs_on_unknown and not second.hangs_on_unknown


def test_what_is_given_by_position_is_what_the_library_takes_it_for(tmp_path: Path) -> None:
    script = """
ours = dist.new_group([0])
whole = DDP(net, [0], 0, 0, False)
parted = FSDP(net, ours, None, None, None, None, None, None, None, 3)
dist.all_reduce(torch.ones(1), dist.ReduceOp.SUM, ours)
dist.barrier(ours)
"""
    program = _traced(script, tmp_path)
    ddp, fsdp = program.facts(facts.Wrap)
    assert constant(ddp.broadcast_buffers) is False and ddp.device_ids
    assert not fsdp.device_ids and constant(fsdp.device_id) == 3
    reduced = [fact for fact in program.facts(facts.Collective) if fact.name in ("all_reduce", "barrier")]
    assert [described(fact.group)[:9] for fact in reduced] == ["the group", "the group"]


def test_accelerate_wraps_with_the_options_that_it_was_told(tmp_path: Path) -> None:
    script = """
from accelerate import Accelerator, DistributedDataParallelKwargs

class Net(torch.nn.Module):
    pass

accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)])
model = accelerator.prepare(Net())
"""
    (wrap,) = _traced(script, tmp_path).facts(facts.Wrap)
    assert [constant(atom.broadcast_buffers) for atom in bare(wrap.wrapper)] == [False]
