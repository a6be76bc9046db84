"""What is called with which arguments: functions that only a run names, and processes that a script starts."""

from __future__ import annotations

from typing import Any

HEAD = "import os\nimport torch\nimport torch.distributed as dist\n"
START = 'dist.init_process_group("nccl")\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\nmodel = torch.nn.Linear(2, 2)\n'
END = "dist.destroy_process_group()\n"
ERROR = {("DDP502", "error")}


def found(lint: Any, train: str, **modules: str) -> set[tuple[str, str]]:
    lint.write(train=HEAD + train, **modules)
    return {(finding.code, finding.severity) for finding in lint.run("train.py") if finding.code != "DDP504"}


def test_of_the_functions_that_a_text_may_name_one_is_meant_that_takes_these_arguments(lint: Any) -> None:
    two = "import torch\n\n\ndef save(model, path):\n    torch.save(model.state_dict(), path)\n"
    one = two.replace("model, path)", "model, path='m.pt')", 1)
    pick = "\n\ndef act(model, how):\n    return eval(how)(model)\n"
    script = f"import actions\n{START}actions.act(model, os.environ['ACTION'])\n{END}"
    other = "\n\ndef load(model):\n    return torch.load('m.pt')\n"
    assert found(lint, script, actions=two + other + pick) == set()
    assert found(lint, script, actions=one + other + pick) == ERROR


def test_the_number_of_processes_is_known_where_it_is_handed_to_them_under_any_name(lint: Any) -> None:
    script = """import sys
from torch.nn.parallel import DistributedDataParallel as DDP


def plain(net, many):
    return net if many <= 1 else net.module


def main(rank, many):
    dist.init_process_group("gloo", rank=rank, world_size=many)
    net = DDP(torch.nn.BatchNorm1d(2))
    if rank == 0:
        INNER(torch.ones(2, 2))
    dist.destroy_process_group()


if __name__ == "__main__":
    used, given = 1, sys.argv[1:]
    if given:
        used = len(given)
    if used > 1:
        torch.multiprocessing.spawn(main, args=(used,), nprocs=used)
    else:
        main(0, 1)
"""
    codes = [{code for code, _ in found(lint, script.replace("INNER", net))} for net in ("plain(net, many)", "net")]
    assert ["DDP402" in each for each in codes] == [False, True]
