"""Every way in which real code keeps ranks apart is understood: a guarded save is left alone, its twin is not."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
dist.init_process_group("nccl")
model = torch.nn.Linear(1, 1)
rank = dist.get_rank()
local_rank = int(os.environ["LOCAL_RANK"])
"""
SAVE = 'torch.save(model.state_dict(), "model.pt")'


GUARDED = {
    "get_rank": f"if dist.get_rank() == 0:\n    {SAVE}",
    "rank": f"if rank == 0:\n    {SAVE}",
    "reversed": f"if 0 == rank:\n    {SAVE}",
    "not rank": f"if not rank:\n    {SAVE}",
    "in": f"if rank in (-1, 0):\n    {SAVE}",
    "in a set": f"if rank in {{-1, 0}}:\n    {SAVE}",
    "local rank": f"if local_rank <= 0:\n    {SAVE}",
    "below one": f"if rank < 1:\n    {SAVE}",
    "else": f"if rank != 0:\n    pass\nelse:\n    {SAVE}",
    "elif": f"if rank > 0:\n    print(rank)\nelif True:\n    {SAVE}",
    "modulo": f"if rank % torch.cuda.device_count() == 0:\n    {SAVE}",
    "and": f"if rank == 0 and model is not None:\n    {SAVE}",
    "or not distributed": f"if not dist.is_initialized() or rank == 0:\n    {SAVE}",
    "last rank": f"if rank == dist.get_world_size() - 1:\n    {SAVE}",
    "environment": f'if os.environ["RANK"] == "0":\n    {SAVE}',
    "environment int": f'if int(os.environ.get("RANK", 0)) == 0:\n    {SAVE}',
    "gpu": f"def worker(gpu):\n    if gpu == 0:\n        {SAVE}\nmp.spawn(worker, nprocs=2)",
    "function": f"def is_main_process():\n    return dist.get_rank() == 0\nif is_main_process():\n    {SAVE}",
    "function by body": f"def lucky():\n    return not dist.get_rank()\nif lucky():\n    {SAVE}",
    "helper with fallback": (
        "def get_rank():\n    if not dist.is_available():\n        return 0\n    if not dist.is_initialized():\n"
        f"        return 0\n    return dist.get_rank()\nif get_rank() == 0:\n    {SAVE}"
    ),
    "early return": f"def save():\n    if rank != 0:\n        return\n    {SAVE}\nsave()",
    "early return nested": (
        f"def save(enabled):\n    if dist.is_initialized():\n        if rank != 0:\n            return\n    {SAVE}\nsave(True)"
    ),
    "continue": f"for epoch in range(3):\n    if rank != 0:\n        continue\n    {SAVE}",
    "none elsewhere": f'path = "model.pt" if rank == 0 else None\nif path is not None:\n    {SAVE}',
    "none by branch": f"writer = None\nif rank == 0:\n    writer = open\nif writer:\n    {SAVE}",
    "none by unknown call": (
        f"import helper\npath = None\nif rank == 0:\n    path = helper.make()\nif path is not None:\n    {SAVE}"
    ),
    "return when none": (
        f"def save(path):\n    if path is None:\n        return\n    {SAVE}\nsave('m.pt' if rank == 0 else None)"
    ),
    "boolean": f"is_main = rank == 0\nif is_main:\n    {SAVE}",
    "boolean set in a branch": f"main = False\nif rank == 0:\n    main = True\nif main:\n    {SAVE}",
    "boolean and": f"is_main = rank == 0 and local_rank == 0\nsave = is_main and True\nif save:\n    {SAVE}",
    "parameter": f"def save(is_main):\n    if is_main:\n        {SAVE}\nsave(rank == 0)",
    "parameter rank": f"def save(r):\n    if r == 0:\n        {SAVE}\nsave(rank)",
    "keyword": f"def save(*, main=False):\n    if main:\n        {SAVE}\nsave(main=not rank)",
    "attribute": (
        f"class T:\n    def __init__(self, r):\n        self.r = r\n    def save(self):\n        if self.r == 0:\n"
        f"            {SAVE}\nT(rank).save()"
    ),
    "property": (
        "class T:\n    @property\n    def main(self):\n        return dist.get_rank() == 0\n    def save(self):\n"
        f"        if self.main:\n            {SAVE}\nT().save()"
    ),
    "namespace": f"import argparse\nargs = argparse.Namespace()\nargs.rank = rank\nif args.rank == 0:\n    {SAVE}",
    "decorator": (
        "def main_only(f):\n    def inner(*args, **kwargs):\n        if dist.get_rank() == 0:\n"
        f"            return f(*args, **kwargs)\n    return inner\n@main_only\ndef save():\n    {SAVE}\nsave()"
    ),
    "decorator with wraps": (
        "import functools\ndef main_only(f):\n    @functools.wraps(f)\n    def inner(*args):\n        if rank == 0:\n"
        f"            return f(*args)\n    return inner\n@main_only\ndef save():\n    {SAVE}\nsave()"
    ),
    "lightning decorator": (
        f"from lightning.pytorch.utilities import rank_zero_only\n@rank_zero_only\ndef save():\n    {SAVE}\nsave()"
    ),
    "save_on_master": (
        "def save_on_master(*args):\n    if dist.get_rank() == 0:\n        torch.save(*args)\n"
        'save_on_master(model.state_dict(), "model.pt")'
    ),
    "closure": f"def make():\n    main = rank == 0\n    def save():\n        if main:\n            {SAVE}\n    return save\nmake()()",
    "lambda": "save = lambda: torch.save(model.state_dict(), 'm.pt') if rank == 0 else None\nsave()",
    "conditional expression": f"{SAVE} if rank == 0 else None",
    "accelerate": f"from accelerate import Accelerator\naccelerator = Accelerator()\nif accelerator.is_main_process:\n    {SAVE}",
    "accelerate index": (
        f"from accelerate import PartialState\nstate = PartialState()\nif state.process_index == 0:\n    {SAVE}"
    ),
    "fabric": f"from lightning.fabric import Fabric\nfabric = Fabric(devices=2)\nif fabric.is_global_zero:\n    {SAVE}",
    "horovod": f"import horovod.torch as hvd\nhvd.init()\nif hvd.rank() == 0:\n    {SAVE}",
    "unknown helper": f"from project.dist_tools import is_main_process\nif is_main_process():\n    {SAVE}",
    "walrus": f"if (r := dist.get_rank()) == 0:\n    {SAVE}",
    "while": f"while rank == 0:\n    {SAVE}\n    break",
    "try": f"try:\n    if rank == 0:\n        {SAVE}\nexcept OSError:\n    print('full')",
    "with": f"with torch.no_grad():\n    if rank == 0:\n        {SAVE}",
    "assert": f"def save():\n    assert rank == 0\n    {SAVE}\nif rank == 0:\n    save()",
    "path by rank": 'torch.save(model.state_dict(), f"model_{rank}.pt")',
    "path by rank joined": 'torch.save(model.state_dict(), os.path.join("out", "model" + str(rank) + ".pt"))',
    "path by rank formatted": 'torch.save(model.state_dict(), "model_{}.pt".format(rank))',
    "path by rank percent": 'torch.save(model.state_dict(), "model_%d.pt" % rank)',
    "buffer": "import io\nbuffer = io.BytesIO()\ntorch.save(model.state_dict(), buffer)",
    "temporary": "import tempfile\ntorch.save(model.state_dict(), tempfile.mktemp())",
}


@pytest.mark.parametrize("body", GUARDED.values(), ids=GUARDED.keys())
def test_a_save_on_one_rank_is_left_alone(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body).serious.codes == set()


UNGUARDED = {
    "plain": SAVE,
    "condition on all ranks": f"if dist.get_world_size() > 1:\n    {SAVE}",
    "initialised": f"if dist.is_initialized():\n    {SAVE}",
    "both branches": f"if rank == 0:\n    print(rank)\n{SAVE}",
    "epoch": f"for epoch in range(3):\n    if epoch % 2 == 0:\n        {SAVE}",
    "guard of something else": f"def log(text):\n    if rank == 0:\n        print(text)\nlog('saving')\n{SAVE}",
    "helper that is always true": f"def is_main_process():\n    return True\nif is_main_process():\n    {SAVE}",
    "early return of nobody": f"def save(epoch):\n    if epoch < 0:\n        return\n    {SAVE}\nsave(1)",
    "path by epoch": 'for epoch in range(3):\n    torch.save(model.state_dict(), f"model_{epoch}.pt")',
    "rank is no guard": f"if rank >= 0:\n    {SAVE}",
    "above minus one": f"if rank > -1:\n    {SAVE}",
    "method": f"class T:\n    def save(self):\n        {SAVE}\nT().save()",
    "caller guards another call": f"def save():\n    {SAVE}\nif rank == 0:\n    print('here')\nsave()",
    "finally": f"try:\n    print(rank)\nfinally:\n    {SAVE}",
}


@pytest.mark.parametrize("body", UNGUARDED.values(), ids=UNGUARDED.keys())
def test_a_save_on_every_rank_is_found(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body).serious.codes == {"DDP502"}


MATCHED = {
    "paired barriers": "if rank != 0:\n    dist.barrier()\nprint(1)\nif rank == 0:\n    dist.barrier()",
    "both branches": "if rank == 0:\n    print(1)\n    dist.barrier()\nelse:\n    dist.barrier()",
    "first context": (
        "import contextlib\n@contextlib.contextmanager\ndef first(r):\n    if r not in (-1, 0):\n        dist.barrier()\n"
        "    yield\n    if r == 0:\n        dist.barrier()\nwith first(rank):\n    print(1)"
    ),
    "first context object": (
        "class First:\n    def __enter__(self):\n        if rank > 0:\n            dist.barrier()\n"
        "    def __exit__(self, *args):\n        if rank == 0:\n            dist.barrier()\nwith First():\n    print(1)"
    ),
    "accelerate first": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\nwith accelerator.main_process_first():\n    print(1)"
    ),
    "functions of both branches": (
        "def a():\n    dist.barrier()\ndef b():\n    dist.barrier()\nif rank == 0:\n    a()\nelse:\n    b()"
    ),
    "if distributed": "if dist.is_initialized() and dist.get_world_size() > 1:\n    dist.barrier()",
    "subgroup": "group = dist.new_group([0])\nif rank == 0:\n    dist.barrier(group=group)",
    "point to point": "x = torch.ones(1)\nif rank == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(x, 0)",
    "early return on all": "def f():\n    if dist.get_world_size() == 1:\n        return\n    dist.barrier()\nf()",
    "group of these ranks": (
        "def f(r):\n    if r < 2:\n        dist.init_process_group('gloo', rank=r, world_size=2)\n        dist.barrier()\n"
        "        dist.destroy_process_group()\nf(rank)"
    ),
}


@pytest.mark.parametrize("body", MATCHED.values(), ids=MATCHED.keys())
def test_a_collective_that_every_rank_joins_is_left_alone(lint: Any, body: str) -> None:
    assert "DDP401" not in lint.body(HEAD + body).serious.codes


UNMATCHED = {
    "plain": "if rank == 0:\n    dist.barrier()",
    "other collective": "x = torch.ones(1)\nif rank == 0:\n    dist.barrier()\nelse:\n    dist.all_reduce(x)",
    "helper": "def sync():\n    dist.barrier()\nif rank == 0:\n    sync()",
    "after early return": "def f():\n    if rank != 0:\n        return\n    dist.barrier()\nf()",
    "accelerate": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\nif accelerator.is_main_process:\n"
        "    accelerator.gather(torch.ones(1))"
    ),
    "conditional expression": "dist.barrier() if rank == 0 else None",
    "constructor": (
        "from torch.nn.parallel import DistributedDataParallel as DDP\nif rank == 0:\n    model = DDP(model)"
    ),
    "in a helper that pairs, under rank zero": (
        "def load():\n    if dist.get_rank() == 0:\n        dist.broadcast(torch.ones(1), 0)\n    else:\n"
        "        dist.broadcast(torch.ones(1), 0)\nload()\nif rank == 0:\n    load()"
    ),
}


@pytest.mark.parametrize("body", UNMATCHED.values(), ids=UNMATCHED.keys())
def test_a_collective_that_some_ranks_miss_is_found(lint: Any, body: str) -> None:
    assert "DDP401" in lint.body(HEAD + body).serious.codes


@pytest.mark.parametrize("steps", [1, 2])
def test_a_script_matters_for_what_it_and_its_imports_import(lint: Any, steps: int) -> None:
    begins = "import torch.distributed as dist\ndef run():\n    dist.init_process_group('gloo')\n"
    engine = begins if steps == 1 else "from setting_up import run\n"
    lint.write(engine=engine, setting_up=begins if steps == 2 else "")
    assert lint("from engine import run\n\nif __name__ == '__main__':\n    run()\n").codes == {"DDP101"}


def test_a_constant_of_a_class_that_setattr_may_override_is_not_taken_for_granted(lint: Any) -> None:
    script = """
import torch.distributed as dist

class config:
    distributed_run = False

def update(target, **overrides):
    for name, value in overrides.items():
        setattr(target, name, value)

update(config, **vars())
if config.distributed_run:
    dist.init_process_group("nccl")
"""
    assert lint(script).serious.codes == {"DDP101"}


@pytest.mark.parametrize("function", ["get_data_parallel_rank", "get_tensor_model_parallel_rank"])
def test_a_rank_in_a_parallel_group_keeps_ranks_apart(lint: Any, function: str) -> None:
    assert not lint.body(HEAD + f"import mpu\nif mpu.{function}() == 0:\n    {SAVE}").serious.codes


def test_a_wrapper_that_may_be_taken_off_again_is_no_warning(lint: Any) -> None:
    script = """
parser = argparse.ArgumentParser()
parser.add_argument("--horovod", action="store_true")
args = parser.parse_args()
dist.init_process_group("nccl")
model = torch.nn.BatchNorm1d(4)
if not args.horovod:
    model = DDP(model)
if dist.get_rank() == 0:
    if not args.horovod:
        model = model.module
    model(torch.ones(2, 4))
"""
    assert lint.body(script).serious.codes == set()


def test_a_loader_of_each_rank_is_split(lint: Any) -> None:
    script = """
from torch.utils.data import random_split

loaders = []
for part in random_split(torch.ones(8, 1), [4, 4], generator=torch.Generator().manual_seed(0)):
    loaders.append(DataLoader(part, batch_size=2, shuffle=True))
loader = loaders[rank]
model = DDP(model)
for batch in loader:
    model(batch).sum().backward()
"""
    assert lint.body(HEAD + script).serious.codes == set()
