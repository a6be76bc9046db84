"""Every rank is seeded alike and then draws the same noise, time steps or augmentations.

## What it does
Looks for a PyTorch seed that is the same on every rank, in a script whose training step draws random tensors, or whose
samples are augmented at random, from the generators that were seeded so.

## Why is this bad?
The ranks hold different samples but the same random numbers: with eight ranks, a diffusion model sees an eighth of the
noise and time steps that the batch size promises, and eight samples are cropped and flipped alike. Workers of a
DataLoader are seeded from the main process's generator, so they repeat each other too. Nothing fails; the
gradient's noise is larger than the batch size says.

To seed alike before the model is built is right. What is missing is a second seed, with the rank, before training.
Where the seed hangs on an option, this is advice.

## Example
```python
torch.manual_seed(seed)
model = DDP(build_model())
for x in loader:
    noise = torch.randn_like(x)
```

## Use instead
```python
torch.manual_seed(seed)
model = DDP(build_model())
torch.manual_seed(seed + dist.get_rank())
for x in loader:
    noise = torch.randn_like(x)
```
With Accelerate: `set_seed(seed, device_specific=True)`.

## References
- [Reproducibility: DataLoader](https://docs.pytorch.org/docs/stable/notes/randomness.html#dataloader)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.catalogue import INFO, WARNING, Place, Proposal, Span
from validate_ddp.program.facts import Fact
from validate_ddp.program.trace import Program
from validate_ddp.program.values import Class, Const, Function, Instance, Opaque, Resource, bare, constant, reaching
from validate_ddp.rules.proposing import place, propose

SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"

_HEAD = """
import random
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Data(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(1)

class Cropped(Data):
    def __getitem__(self, index):
        shift = random.randint(0, 4)
        return torch.ones(8)[shift : shift + 1]

def loader_of(data):
    return DataLoader(data, sampler=DistributedSampler(data, shuffle=False))

def train(loader, noisy=False):
    model = DDP(torch.nn.Linear(1, 1))
    for batch in loader:
        model(batch).sum().backward()

def train_with_noise(loader, generator=None):
    model = DDP(torch.nn.Linear(1, 1))
    for batch in loader:
        noise = torch.randn(batch.shape, generator=generator)
        model(batch + noise).sum().backward()

dist.init_process_group("gloo")
"""
VALID = (
    _HEAD
    + """
torch.manual_seed(0)
train(loader_of(Data()))
dist.destroy_process_group()
""",
    _HEAD
    + """
torch.manual_seed(0 + dist.get_rank())
train_with_noise(loader_of(Data()))
dist.destroy_process_group()
""",
    _HEAD
    + """
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
torch.manual_seed(1000 + dist.get_rank())
train_with_noise(loader_of(Cropped()))
dist.destroy_process_group()
""",
    _HEAD
    + """
torch.manual_seed(0)
generator = torch.Generator().manual_seed(dist.get_rank())
train_with_noise(loader_of(Data()), generator)
dist.destroy_process_group()
""",
    _HEAD
    + """
def seed_worker(worker):
    random.seed(1000 * dist.get_rank() + worker)

torch.manual_seed(0)
data = Cropped()
train(DataLoader(data, sampler=DistributedSampler(data, shuffle=False), worker_init_fn=seed_worker, num_workers=2))
dist.destroy_process_group()
""",
    _HEAD
    + """
from accelerate.utils import set_seed

set_seed(0, device_specific=True)
train_with_noise(loader_of(Data()))
dist.destroy_process_group()
""",
    _HEAD
    + """
torch.manual_seed(0)
order = torch.randperm(8)
model = DDP(torch.nn.Linear(1, 1))
for step in range(8):
    if torch.rand(1) < 0.5:
        model(torch.ones(1, 1)).sum().backward()
with torch.no_grad():
    for step in range(2):
        model(torch.randn(4, 1))
dist.destroy_process_group()
""",
)
INVALID = (
    _HEAD
    + """
torch.manual_seed(0)  # expect
train_with_noise(loader_of(Data()))
dist.destroy_process_group()
""",
    _HEAD
    + """
import numpy

def fix_random_seeds(seed=31):
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    numpy.random.seed(seed)

def main(args):
    fix_random_seeds(args.seed)  # expect
    train(loader_of(Cropped()))
    dist.destroy_process_group()

if __name__ == "__main__":
    import argparse
    main(argparse.ArgumentParser().parse_args())
""",
    _HEAD
    + """
from torchvision import transforms

class Pictures(Data):
    def __init__(self, transform):
        self.transform = transform

torch.manual_seed(42)  # expect
train(loader_of(Pictures(transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()]))))
dist.destroy_process_group()
""",
    """
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

accelerator = Accelerator()
set_seed(7)  # expect
model = accelerator.prepare(torch.nn.Linear(4, 4))
for step in range(10):
    steps = torch.randint(0, 1000, (16,))
    accelerator.backward(model(torch.ones(16, 4) * steps[:, None]).sum())
""",
)
_LIBRARIES = ("torch", "accelerate", "transformers", "diffusers")
"""Whose seeding functions are known to seed PyTorch alike on every rank, unless told otherwise."""
_SEED_NAMES = frozenset(
    "seed manual_seed manualseed random_seed rng_seed rand_seed train_seed global_seed _global_seed".split()
)
_DRAWN = frozenset("randint uniform choice choices randrange sample randn rand normal random shuffle".split())


def check(program: Program) -> Iterator[Proposal]:
    """One finding, at the first seed that all ranks share."""
    seeds = [fact for fact in program.facts("seed") if constant(fact.value("library")) not in ("random", "numpy")]
    if not seeds or not _trains_on_many(program) or not all(_is_alike(fact) for fact in seeds):
        return
    running = [
        fact
        for fact in seeds
        if fact.who == "all" and program.runs_on_many(fact) and constant(fact.value("library")) != "torch.cuda"
    ]
    drawn = _draws_in_steps(program) or _augmentations(program)
    training = {loop.serial for fact in program.facts("backward") for loop in fact.loops}
    if not running or not drawn or any(loop.serial in training for fact in seeds for loop in fact.loops):
        return  # a step that seeds itself means to be repeated
    before = [fact for fact in running if fact.order < drawn[0].order] if isinstance(drawn[0], Fact) else running
    if not before:
        return
    fact = before[0]
    evidence = [place(drawn.site, "drawn here") if isinstance(drawn, Fact) else drawn for drawn in drawn[:2]]
    what = "random tensors of a training step" if drawn[0] and _is_noise(drawn[0]) else "random augmentations"
    yield propose(
        program,
        _asked_for(fact),
        INFO if fact.hangs_on_unknown else WARNING,
        f"every rank has this seed, so the {what} are the same on all of them; seed again with the "
        "rank before training",
        evidence=evidence,
    )


def _is_noise(drawn: Any) -> bool:
    return isinstance(drawn, Fact) and not drawn.value("transform")


def _trains_on_many(program: Program) -> bool:
    if not program.complete or not program.is_distributed or not program.facts("backward"):
        return False
    names = {fact.name for fact in program.facts("wrap", "launch")}
    return not names.isdisjoint(("ddp", "fsdp", "engine", "prepare", "accelerator", "fabric", "horovod"))


def _is_alike(fact: Fact) -> bool:
    """Whether the seed is surely the same on every rank: a constant, or an option with a name that says so."""
    if constant(fact.value("library")) not in (*_LIBRARIES, "torch.cuda"):
        return False
    if fact.value("device_specific") and constant(fact.value("device_specific")) is not False:
        return False
    seed = fact.value("seed")
    return bool(seed) and all(
        (isinstance(atom, Const) and type(atom.value) is int)
        or (isinstance(atom, Opaque) and not reaching((atom,)) and atom.name.rpartition(".")[2].lower() in _SEED_NAMES)
        for atom in bare(seed)
    )


def _asked_for(fact: Fact) -> Fact:
    """The fact where the script asks for it: at the call of the helper that only seeds."""
    site = fact.site
    for call in reversed(fact.chain):
        if "seed" not in site.function.lower() and "determinis" not in site.function.lower():
            break
        site = call
    return fact.moved(site)


def _draws_in_steps(program: Program) -> list[Any]:
    """What every rank draws in a loop that trains, from the default generator."""
    training = {loop.serial for fact in program.facts("backward") for loop in fact.loops}
    return [
        fact
        for fact in program.facts("draw")
        if not fact.value("transform")
        and fact.who == "all"
        and not fact.flags & {"handler", "dataset"}
        and fact.site.function != "__init__"
        and constant(fact.value("generator") or (Const(None),)) is None
        and any(loop.serial in training for loop in fact.loops)
    ]


def _augmentations(program: Program) -> list[Any]:
    """Random transforms of the samples that are trained on, drawn in workers which nobody else seeds."""
    found: list[Any] = []
    for fact in program.facts("iterate"):
        for loader in bare(fact.value("loader")):
            if not program.trains(fact) or not isinstance(loader, Resource) or loader.get("open"):
                continue
            if loader.get("worker_init_fn") or loader.get("generator") or loader.get("prepared"):
                return []  # its workers are seeded in their own way
            found.extend(_random_methods(loader.get("dataset")))
            if not found:
                found.extend(fact for fact in program.facts("draw") if fact.value("transform") and fact.who == "all")
    return found


def _random_methods(dataset: Any, depth: int = 0) -> list[Place]:
    """Methods of a data set's class that draw random numbers for a sample."""
    found: list[Place] = []
    for atom in bare(dataset):
        if isinstance(atom, Resource) and atom.kind == "subset" and depth < 3:
            found.extend(_random_methods(atom.get("dataset"), depth + 1))
        elif isinstance(atom, Instance):
            for cls in atom.cls.lineage():
                if isinstance(cls, Class):
                    found.extend(_of_class(cls))
    return found


def _of_class(cls: Class) -> Iterator[Place]:
    for name, value in cls.members.items():
        for function in bare(value):
            if isinstance(function, Function) and function.node[0] == "def" and name != "__init__":
                names = set(function.node[7])
                if ("random" in names and names & _DRAWN - {"random"}) or {"torch", "randint"} <= names:
                    span = Span(*function.node[1])
                    yield Place(function.module.path, span, f"`{name}` draws random numbers for a sample")
