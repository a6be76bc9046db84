"""What the rules propose as fixes: written with the program's own names, safe only where nobody would notice."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from validate_ddp import fixing
from validate_ddp.config import Settings
from validate_ddp.findings import Fix


class Proposed:
    """The findings of one rule on a script, and the script after all its fixes."""

    def __init__(self, lint: Any, script: str, code: str, head: str | None = None) -> None:
        script = (lint.imports if head is None else head) + script
        self.findings = lint(script).of(code)
        settings = Settings(**lint.settings, select=(code,))
        result = fixing.fix(["train.py"], settings, None, unsafe=True, write=False)
        self.after = result.changes[0].after.decode() if result.changes else script
        self.left = [found for found in result.outcome.findings if found.code == code and found.fix]

    @property
    def fix(self) -> Fix | None:
        (finding,) = self.findings
        return finding.fix


@pytest.fixture
def fixes(lint: Any) -> Any:
    return partial(Proposed, lint)


RANK_ZERO = {
    "if rank == 0:": 'dist.init_process_group("gloo")\nrank = dist.get_rank()\ndef f(state):\n    SAVE\nf(1)\n',
    "if is_main:": 'dist.init_process_group("gloo")\nis_main = dist.get_rank() == 0\nSAVE\n',
    "if self.rank == 0:": """
class Trainer:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
    def save(self):
        SAVE
Trainer().save()
""",
    "if dist.get_rank() == 0:": """
def main(args):
    dist.init_process_group("gloo")
    args.rank = dist.get_rank()
    SAVE
main(parse())
""",
    "if not dist.is_initialized() or dist.get_rank() == 0:": """
def setup():
    if "RANK" not in os.environ:
        return
    dist.init_process_group("gloo")
setup()
SAVE
""",
    "if accelerator.is_main_process:": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "net = accelerator.prepare(torch.nn.Linear(2, 2))\nSAVE\n"
    ),
}


def test_a_single_process_whose_rank_is_minus_one_goes_on_to_write(fixes: Any) -> None:
    script = (
        'rank = int(os.getenv("RANK", -1))\nmodel = torch.nn.Linear(2, 2)\n'
        'if rank != -1:\n    dist.init_process_group("gloo")\n    model = DDP(model)\n'
        "model(torch.ones(1, 2)).sum().backward()\nSAVE\n"
    )
    made = fixes(script.replace("SAVE", 'torch.save({"model": 1}, "model.pt")'), "DDP502")
    assert "if rank in (-1, 0):" in made.after and not made.left


@pytest.mark.parametrize("condition", RANK_ZERO)
def test_a_write_is_guarded_by_what_the_program_has(condition: str, fixes: Any) -> None:
    made = fixes(RANK_ZERO[condition].replace("SAVE", 'torch.save({"model": 1}, "model.pt")'), "DDP502")
    assert made.fix is not None and condition in made.after and not made.left, made.after


def test_a_name_of_the_main_block_is_not_counted_on_in_a_function(fixes: Any) -> None:
    script = """
def save(model):
    torch.save(model.module.state_dict(), "model.pt")

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    save(DDP(torch.nn.Linear(2, 2)))
"""
    assert "if dist.get_rank() == 0:" in fixes(script, "DDP502").after


def test_no_rank_is_asked_for_before_there_is_a_group(fixes: Any) -> None:
    made = fixes('torch.save({"model": 1}, "model.pt")\ndist.init_process_group("gloo")\n', "DDP502")
    assert made.fix is None


SAVING = """
def save(model, path):
    BODY

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
save(model, "model.pt")
REST
dist.destroy_process_group()
"""
SAFETY = {
    "alone": ("torch.save(model.module.state_dict(), path)", "", True),
    "told of": ("torch.save(model.module.state_dict(), path)\n    print('saved', path)", "", True),
    "moved afterwards": ("torch.save(model.module.state_dict(), path)\n    os.replace(path, 'last.pt')", "", False),
    "loaded afterwards": ("torch.save(model.module.state_dict(), path)", "torch.load('model.pt')", False),
    "reaching a collective": ("torch.save(gathered(model), path)", "", False),
    "in a block": ("with open(path, 'w') as file:\n        file.write('x')", "", False),
    "taken away afterwards": ("with open(path, 'w'):\n        pass\n    os.remove(path)", "", None),
    "bound to a name": ("file = open(path, 'w')", "", None),
    "a logger": ("import logging\n    logging.basicConfig(filename=path)", "", None),
}


@pytest.mark.parametrize("case", SAFETY)
def test_a_guard_is_safe_only_where_nobody_would_notice(case: str, fixes: Any) -> None:
    body, rest, safe = SAFETY[case]
    script = "def gathered(model):\n    dist.barrier()\n    return model.module.state_dict()\n" + SAVING
    made = fixes(script.replace("BODY", body).replace("REST", rest), "DDP502")
    assert (made.fix and made.fix.safe) is safe, made.findings


UNWRAPPED = {
    "model.module.state_dict()": "model = DDP(net)\n",
    'getattr(model, "module", model).state_dict()': "model = net\nif len(sys.argv) > 1:\n    model = DDP(net)\n",
}


@pytest.mark.parametrize("expected", UNWRAPPED)
def test_a_model_is_unwrapped_where_it_may_be_bare_too(expected: str, fixes: Any) -> None:
    script = 'dist.init_process_group("gloo")\nnet = torch.nn.Linear(2, 2)\n' + UNWRAPPED[expected]
    made = fixes(script + 'torch.save({"a": 1, "model": model.state_dict()}, f"m{dist.get_rank()}.pt")\n', "DDP501")
    assert made.fix is not None and not made.fix.safe and expected in made.after and not made.left, made.after


def test_an_early_return_leaves_a_model_bare(fixes: Any) -> None:
    script = """
def wrapped(net):
    if not dist.is_initialized():
        return net
    return DDP(net)

dist.init_process_group("gloo")
first, second = wrapped(torch.nn.Linear(2, 2)), DDP(torch.nn.Linear(2, 2))
torch.save({"a": first.state_dict(), "b": second.state_dict()}, f"m{dist.get_rank()}.pt")
"""
    after = fixes(script, "DDP501").after
    assert 'getattr(first, "module", first).state_dict(), "b": second.module.state_dict()' in after


ENDED = {
    "behind the main block": (
        "def main():\n    dist.init_process_group('gloo')\nif __name__ == '__main__':\n    main()\n    print(1)\n",
        "    print(1)\n    dist.destroy_process_group()\n",
        True,
    ),
    "where not every run has a group": (
        "def main():\n    if len(sys.argv) > 1:\n        dist.init_process_group('gloo')\nmain()\n",
        "main()\nif dist.is_initialized():\n    dist.destroy_process_group()\n",
        True,
    ),
    "while the model is alive": (
        "dist.init_process_group('gloo')\nmodel = DDP(torch.nn.Linear(2, 2))\nprint(model)\n",
        "print(model)\ndist.destroy_process_group()\n",
        False,
    ),
    "while an object holds the model": (
        "class T:\n    def __init__(self):\n        dist.init_process_group('gloo')\n"
        "        self.model = DDP(torch.nn.Linear(2, 2))\nt = T()\n",
        "t = T()\ndist.destroy_process_group()\n",
        False,
    ),
    "in the processes that are started": (
        "import torch.multiprocessing as mp\ndef train():\n    model = DDP(torch.nn.Linear(2, 2))\n"
        "def worker(rank):\n    dist.init_process_group('gloo', rank=rank, world_size=2)\n    train()\n"
        "mp.spawn(worker, nprocs=2)\n",
        "    train()\n    dist.destroy_process_group()\nmp.spawn(",
        True,
    ),
    "not behind an exit": ("def main():\n    dist.init_process_group('gloo')\nsys.exit(main())\n", None, None),
    "not behind a command": (
        "import click\n@click.command()\ndef main():\n    dist.init_process_group('gloo')\nmain()\n",
        None,
        None,
    ),
    "not behind a handler": (
        "def main():\n    dist.init_process_group('gloo')\ntry:\n    main()\nexcept KeyboardInterrupt:\n    pass\n",
        None,
        None,
    ),
    "not where a process may return before": (
        "import torch.multiprocessing as mp\ndef worker(rank):\n"
        "    dist.init_process_group('gloo', rank=rank, world_size=2)\n    if len(sys.argv) > 1:\n        return\n"
        "    print(rank)\nmp.spawn(worker, nprocs=2)\n",
        None,
        None,
    ),
}


@pytest.mark.parametrize("case", ENDED)
def test_a_group_is_destroyed_at_the_end_of_the_normal_path(case: str, fixes: Any) -> None:
    script, expected, safe = ENDED[case]
    made = fixes(script, "DDP101")
    assert (made.fix and made.fix.safe) is safe
    assert made.after.count("destroy_process_group") == (0 if expected is None else 1) and not made.left
    assert expected is None or expected in made.after


def test_torch_distributed_is_imported_where_the_script_has_no_name_for_it(fixes: Any) -> None:
    Path("setup_ranks.py").write_text(
        "import torch.distributed as dist\ndef go():\n    dist.init_process_group('gloo')\n"
    )
    head = "import setup_ranks\n"
    rest = "setup_ranks.go()\nprint(1)\n"
    made = fixes(rest, "DDP101", head=head)
    assert made.after == f"{head}import torch.distributed as dist\n{rest}dist.destroy_process_group()\n"


LOADERS = {
    "DataLoader(data, sampler=sampler)": (
        "sampler = DistributedSampler(data)\nDataLoader(data, shuffle=True, sampler=sampler)\n"
    ),
    "DataLoader(data, shuffle=sampler is None, sampler=sampler)": (
        "sampler = None\nif dist.is_initialized():\n    sampler = DistributedSampler(data)\n"
        "DataLoader(data, shuffle=True, sampler=sampler)\n"
    ),
    "DataLoader(data, 4, True, sampler)": "sampler = DistributedSampler(data)\nDataLoader(data, 4, True, sampler)\n",
}


@pytest.mark.parametrize("expected", LOADERS)
def test_a_loader_with_a_sampler_does_not_shuffle(expected: str, fixes: Any) -> None:
    made = fixes("dist.init_process_group('gloo')\ndata = range(8)\n" + LOADERS[expected], "DDP203")
    assert expected in made.after and (made.fix is None or made.fix.safe)


SPLIT = {
    "(data, sampler=DistributedSampler(data))": "(data, shuffle=True)",
    "(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))": "(data, batch_size=2)",
    "(torch.ones(8, 1), shuffle=True)": "(torch.ones(8, 1), shuffle=True)",
}


@pytest.mark.parametrize("expected", SPLIT)
def test_a_training_loader_is_split(expected: str, fixes: Any) -> None:
    script = f"""import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
data = torch.ones(8, 1)
loader = DataLoader{SPLIT[expected]}
for epoch in range(3):
    for batch in loader:
        model(batch).sum().backward()
"""
    made = fixes(script, "DDP202", head="")
    assert f"loader = DataLoader{expected}\n" in made.after
    changed = "sampler" in expected
    assert (made.fix is not None) is changed
    assert ("from torch.utils.data import DistributedSampler\n" in made.after) is changed


DEVICES = {
    "set_device(local_rank)": "local_rank = int(os.environ['LOCAL_RANK'])\ntorch.cuda.set_device(rank)\n",
    'set_device(int(os.environ["LOCAL_RANK"]))': "torch.cuda.set_device(rank)\n",
    'device_ids=[int(os.environ["LOCAL_RANK"])]': "DDP(torch.nn.Linear(2, 2), device_ids=[rank])\n",
    "set_device(rank)  # srun": "torch.cuda.set_device(rank)  # srun\nprint(os.environ['SLURM_JOB_ID'])\n",
    'torch.device(f"cuda:{rank}")': 'torch.device(f"cuda:{rank}")\n',
}


@pytest.mark.parametrize("expected", DEVICES)
def test_a_device_is_chosen_by_the_local_rank(expected: str, fixes: Any) -> None:
    made = fixes("dist.init_process_group('nccl')\nrank = dist.get_rank()\n" + DEVICES[expected], "DDP103")
    assert expected in made.after
    assert made.fix is None or not made.fix.safe


def test_a_local_rank_that_is_needed_often_gets_a_name(fixes: Any) -> None:
    script = """
def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(2, 2).to(rank)
    ddp = DDP(model, device_ids=[rank], output_device=rank)
main()
"""
    after = fixes(script, "DDP103").after
    assert (
        """    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = torch.nn.Linear(2, 2).to(local_rank)
    ddp = DDP(model, device_ids=[local_rank], output_device=local_rank)
"""
        in after
    )


def test_the_wrapper_is_called(fixes: Any) -> None:
    script = """
class Net(torch.nn.Module):
    def forward(self, x):
        return x

dist.init_process_group("gloo")
net = Net()
ddp = DDP(net)
for step in range(3):
    CALL(torch.ones(2, 1)).sum().backward()
"""
    for call in ("net", "ddp.module"):
        made = fixes(script.replace("CALL", call), "DDP301")
        assert "\n    ddp(torch.ones(2, 1))" in made.after and not made.left
