"""Every rank downloads or unpacks the data, or makes or removes the folder, all at once and to one path.

## What it does
Looks for data sets with `download=True`, downloads to a path and unpacking of archives, by commands such as `wget` too,
that every rank comes to at the same time, for folders that every rank makes without `exist_ok=True`, and for folders
that every rank removes.

## Why is this bad?
On a machine that has the data nothing happens. On a new one all ranks see that the files are not there, write to the
same ones together, and read what another has written half: a checksum that fails, an archive that ends too early, or a
data set with broken files. Of ranks that ask whether a folder is there and then make it, the second to come fails with
`FileExistsError`, and the job ends. Of ranks that remove one folder together, all but the first fail with
`FileNotFoundError`; or a late one takes away what another has made there since.

Downloads through the caches of Hugging Face or `torch.hub` are locked, or moved to their place when they are complete.

## Example
```python
dataset = torchvision.datasets.CIFAR10("data", download=True)
if not os.path.exists(folder):
    os.makedirs(folder)
```

## Use instead
```python
if local_rank == 0:
    torchvision.datasets.CIFAR10("data", download=True)
dist.barrier()
dataset = torchvision.datasets.CIFAR10("data")
os.makedirs(folder, exist_ok=True)
```

## References
- [os.makedirs](https://docs.python.org/3/library/os.html#os.makedirs)
- [CIFAR10](https://docs.pytorch.org/vision/stable/generated/torchvision.datasets.CIFAR10.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.handlers import catches_file_exists
from validate_ddp.interpreter.names import WAITS
from validate_ddp.interpreter.objects import Batch, Item, Nameless, Unique
from validate_ddp.interpreter.sameness import hangs_on_rank
from validate_ddp.interpreter.surroundings import call_at, levels
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import reaching
from validate_ddp.rules.guarding import comes_after_a_wait
from validate_ddp.rules.proposing import propose
from validate_ddp.source import syntax
from validate_ddp.source.traversal import is_same, keywords_of, last_name, walk

TRIGGER = facts.Preparation
SEVERITIES = (WARNING, INFO)
EVIDENCE = "S"
FIX = "-"

IMPORTS = """
    import argparse
    import os
    import sys
    import tarfile
    import tempfile
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from pathlib import Path
    from torch.utils.data import DataLoader, DistributedSampler
    from torchvision import datasets

"""
VALID = (
    """
    if dist.get_rank() == 0:
        datasets.CIFAR10("data", download=True)
    dist.barrier()
    data = datasets.CIFAR10("data", download=False)
    """,
    """
    if dist.get_rank() == 0:
        datasets.CIFAR10("data", download=True)
    dist.barrier()
    data = datasets.CIFAR10("data", download=True)  # there by now
    """,
    """
    rank = dist.get_rank()
    if rank != 0:
        dist.barrier()
    data = datasets.MNIST("data", True, None, None, True)
    if rank == 0:
        dist.barrier()
    """,
    """
    os.makedirs("out", exist_ok=True)
    Path("out/logs").mkdir(parents=True, exist_ok=True)
    """,
    """
    rank = dist.get_rank()
    os.makedirs(f"out/rank{rank}")
    data = datasets.CIFAR10(f"/scratch/{rank}", download=True)
    os.mkdir(os.path.join(tempfile.mkdtemp(), "cache"))
    """,
    """
    try:
        os.makedirs("out")
    except FileExistsError:
        pass
    """,
    """
    from torch.utils.tensorboard import SummaryWriter

    folder = os.environ["LOGS"]
    writer = SummaryWriter(os.path.join(folder, f"rank{dist.get_rank()}"))
    if not os.path.exists(folder):
        os.makedirs(folder)  # is there: the writer has made it
    """,
    """
    import shutil

    if dist.get_rank() == 0:
        shutil.rmtree("runs")
    dist.barrier()
    shutil.rmtree("old", ignore_errors=True)
    shutil.rmtree(f"out/{dist.get_rank()}")
    shutil.rmtree(tempfile.mkdtemp())

    def refresh(folder):
        if os.path.exists(f"{folder}/train"):
            shutil.rmtree(f"{folder}/train")

    refresh(None)  # nobody has made "None/train"
    """,
    """
    import subprocess

    subprocess.run(["wget", sys.argv[1], "-qO-"])
    listed = subprocess.check_output(["wget", "-qO-", "https://example.com/list.txt"])
    version = subprocess.check_output("curl -s https://example.com/version", shell=True)
    stream = subprocess.Popen(f"wget -q -O - {sys.argv[1]}", shell=True, stdout=subprocess.PIPE).stdout
    data = datasets.ImageFolder("data")
    model = torch.hub.load("pytorch/vision", "resnet18")
    state = torch.hub.load_state_dict_from_url("https://example.com/weights.pt")
    """,
    """
    # alone
    def worker(rank):
        dist.init_process_group("gloo", rank=rank, world_size=2)
        data = datasets.CIFAR10("data")
        dist.destroy_process_group()

    if __name__ == "__main__":
        datasets.CIFAR10("data", download=True)
        os.makedirs("out")
        mp.spawn(worker, nprocs=2)
    """,
)
INVALID = (
    """
    data = datasets.CIFAR10("data", train=True, download=True)  # expect
    loader = DataLoader(data, sampler=DistributedSampler(data))
    """,
    """
    def load(train):
        return datasets.MNIST("data", train, None, None, True)  # expect

    train_set, val_set = load(True), load(False)
    """,
    """
    if not os.path.exists("out"):
        os.makedirs("out")  # expect
    """,
    """
    def fetch(name):
        if dist.get_rank() == 0:
            datasets.MNIST(name, download=True)
            dist.barrier()
        else:
            dist.barrier()

    fetch("digits")
    datasets.CIFAR10("data", download=True)  # expect
    """,
    """
    def prepare(folder):
        if not Path(folder).exists():
            Path(folder).mkdir()  # expect

    prepare(os.path.join("out", "logs"))
    """,
    """
    if not os.path.isdir("data"):
        with tarfile.open("data.tar") as archive:
            archive.extractall("data")  # expect
    """,
    """
    import shutil

    folder = Path("runs") / "last"
    if folder.exists():
        shutil.rmtree(folder)  # expect
    """,
    """
    import nltk
    import subprocess

    nltk.download("punkt")  # expect
    if not os.path.exists("words.txt"):
        subprocess.run(["wget", "https://example.com/words.txt"], check=True)  # expect
    os.system("curl -s -o names.txt https://example.com/names.txt")  # expect
    os.system(f"wget -q -O lines.txt {sys.argv[1]}")  # expect
    os.system(f"unzip -q {sys.argv[1]}")  # expect
    """,
)

_WHAT = {
    "download": "downloads this data at once, to one path: let one rank of each node do it, and the others wait in a "
    "barrier",
    "extract": "unpacks this at once, to one path: let one rank of each node do it, and the others wait in a barrier",
    "removal": "removes this folder: the others fail with `FileNotFoundError`, or lose what one has made there since; "
    "let one rank do it, and the others wait in a barrier",
    "folder": "makes this folder: where it is not there yet, the second to come fails with `FileExistsError`; pass "
    "`exist_ok=True`",
}


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each place."""
    if program.is_tool:
        return
    met = program.facts(facts.Preparation)
    reported = set()
    for fact in met:
        if fact.site in reported or not _is_together(program, fact) or _is_apart(fact):
            continue
        if fact.what == "removal" and any(isinstance(part, Nameless) for part in reaching(fact.path)):
            continue  # of no such folder: nobody has made it
        if fact.what == "folder" and (_is_caught(program, fact) or _is_there(program, fact)):
            continue
        if _is_done_before(program, fact, met):
            continue
        reported.add(fact.site)
        weak = any(isinstance(part, (Item, Batch)) for part in reaching(fact.path)) or any(
            guard.who == "unclear" for guard in fact.guards
        )
        yield propose(program, fact, INFO if weak else WARNING, f"every rank {_WHAT[fact.what]}")


def _is_together(program: Program, fact: Fact) -> bool:
    """Whether all ranks come to it at one time."""
    if fact.who != "all" or not program.runs_on_many(fact):
        return False
    if fact.flags & {Flag.PROCESS_FIRST, Flag.IN_TURN, Flag.LOCKED, Flag.HANDLER, Flag.WORKER}:
        return False
    return not comes_after_a_wait(program, fact) and not _waits_around(program, fact)


def _waits_around(program: Program, fact: Fact) -> bool:
    """Whether the other ranks wait ahead of it, and go on when the first has come out: two barriers for two sets."""
    waiting = {
        (collective.who, collective.order > fact.order)
        for collective in program.facts(facts.Collective)
        if WAITS.matches(collective.name) and collective.who != "all"
    }
    return any({(f"{where}nonzero", False), (f"{where}zero", True)} <= waiting for where in ("", "local-"))


def _is_apart(fact: facts.Preparation) -> bool:
    """Whether each rank does it somewhere else."""
    return hangs_on_rank(fact.path) or any(isinstance(part, Unique) for part in reaching(fact.path))


def _is_caught(program: Program, fact: Fact) -> bool:
    """Whether the script goes on where another rank was the first."""
    if Flag.TRIED in fact.flags or any(guard.swallows for guard in fact.guards):
        return True
    return any(
        isinstance(level.owner, syntax.Try) and any(catches_file_exists(each.type) for each in level.owner.handlers)
        for level in levels(program.body(fact.site.path), fact.site.statement)
    )


def _is_there(program: Program, fact: Fact) -> bool:
    """Whether the function has made the folder before, by what does not mind that it is there."""
    body = program.body(fact.site.path)
    call = call_at(body, fact.site.span)
    if call is None:
        return False
    path = call.args[0] if call.args else call.func.value if isinstance(call.func, syntax.Attribute) else None
    return path is not None and any(
        isinstance(node, syntax.Call)
        and (last_name(node.func) in _MAKING or "exist_ok" in keywords_of(node))
        and any(is_same(part, path) for part in walk(node))
        for level in levels(body, fact.site.statement)
        for before in level.body[: level.at]
        for node in walk(before)
    )


_MAKING = ("SummaryWriter",)
"""Makes its folder where it is not there."""


def _is_done_before(program: Program, fact: facts.Preparation, met: list[facts.Preparation]) -> bool:
    """Whether one rank has done the same before, while the others waited for it."""
    first = [other for other in met if other.who in ("zero", "local-zero") and other.order < fact.order]
    return any(
        other.what == fact.what
        and (other.name == fact.name or fact.what == "folder")
        and any(other.order < wait.order < fact.order and wait.who == "all" for wait in program.facts(facts.Collective))
        for other in first
    )
