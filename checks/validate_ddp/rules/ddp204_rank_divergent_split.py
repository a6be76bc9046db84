"""A split of the data that differs between ranks, so that they train on each other's validation data.

## What it does
Looks for `random_split`, `train_test_split` (Hugging Face's too), shuffled indices or files, and lists made of sets,
that every rank makes with a generator which no seed makes the same on all of them, and that decide which samples are
for training or which are a rank's share. In a rehearsal it compares what `random_split` gave on each rank.

## Why is this bad?
Without a shared seed each rank draws its own split. A sample that one rank holds back for validation is trained on by
another: the validation loss is that of training data. A `DistributedSampler` deals out places in the data set: where
the order differs, some samples are trained on twice in an epoch and others never. The order of a set of strings hangs
on the hashes of the process, which differ too.

A `torch.Generator()` that nobody seeds has the same seed everywhere; PyTorch's default generator has not.

## Example
```python
train_set, val_set = random_split(dataset, [0.9, 0.1])
```

## Use instead
```python
generator = torch.Generator().manual_seed(42)
train_set, val_set = random_split(dataset, [0.9, 0.1], generator=generator)
```

## References
- [random_split](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.random_split)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import ERROR, WARNING, Place, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.names import SETS_SEED
from validate_ddp.interpreter.objects import Container, Shuffled
from validate_ddp.interpreter.sameness import hangs_on_rank, is_alike
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import RNG, Loader, Sampler, Subset
from validate_ddp.interpreter.values import Instance, Value, bare, constant, reaching
from validate_ddp.models.data import distributed_samplers
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Order
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling(once=True, silences=("DDP209", "DDP211"))  # other splits: samples are missed, others repeated

HEAD = """
    import glob
    import random

    import numpy as np
    from torch.utils.data import Subset, random_split

    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    dataset = TensorDataset(torch.zeros(64, 4))

    class Files(Dataset):
        def __init__(self, files):
            self.files = files

        def __len__(self):
            return len(self.files)

        def __getitem__(self, index):
            return torch.load(self.files[index], map_location="cpu")

    def train(data):
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for (batch,) in loader:
                model(batch).sum().backward()
"""
VALID = (
    """
    train_set, val_set = random_split(dataset, [56, 8], generator=torch.Generator().manual_seed(42))
    train(train_set)
    """,
    """
    train_set, val_set = random_split(dataset, [56, 8], generator=torch.Generator())  # has a constant seed
    train(train_set)
    """,
    """
    torch.manual_seed(0)
    train_set, val_set = random_split(dataset, [56, 8])
    torch.manual_seed(1000 + dist.get_rank())
    train(train_set)
    """,
    """
    from sklearn.model_selection import train_test_split

    train_files, val_files = train_test_split(glob.glob("*.pt"), test_size=0.1, random_state=7)
    train(Files(train_files))
    """,
    """
    splits = [None, None]
    if dist.get_rank() == 0:
        splits = [part.indices for part in random_split(dataset, [56, 8])]
    dist.broadcast_object_list(splits)
    train(Subset(dataset, splits[0]))
    """,
    """
    names = sorted(set(glob.glob("*.pt")))
    train(Files(names))
    print(len(set(names)))
    """,
    """
    train(dataset)
    for step in range(10):
        batch = torch.ones(4, 4)[torch.randperm(4)]
        model(batch).sum().backward()
    """,
    """
    class Labelled(Files):
        def __init__(self, files):
            super().__init__(files)
            self.classes = list(set(name[0] for name in files))

    train(Labelled(glob.glob("*.pt")))
    """,
    """
    files = glob.glob("*.pt")
    random.Random(0).shuffle(files)
    train(Files(files))
    """,
    """
    files = glob.glob("*.pt")
    random.shuffle(files)
    files.sort()
    train(Files(files))
    """,
    """
    # alone
    from torch.multiprocessing import Process
    from torch.utils.data import random_split

    def worker(rank):  # forked, with the generator as it is
        dist.init_process_group("gloo", rank=rank, world_size=2)
        train_set, val_set = random_split(TensorDataset(torch.zeros(64, 4)), [56, 8])
        dist.destroy_process_group()

    if __name__ == "__main__":
        for rank in range(2):
            Process(target=worker, args=(rank,)).start()
    """,
    """
    # alone
    from torch.utils.data import random_split

    train_set, val_set = random_split(TensorDataset(torch.zeros(64, 4)), [56, 8])
    """,
)
INVALID = (
    """
    train_set, val_set = random_split(dataset, [56, 8])  # expect
    train(train_set)
    """,
    """
    torch.manual_seed(1000 + dist.get_rank())
    train_set, val_set = random_split(dataset, [56, 8])  # expect
    train(train_set)
    """,
    """
    generator = torch.Generator().manual_seed(dist.get_rank())
    train_set, val_set = random_split(dataset, [56, 8], generator=generator)  # expect
    train(train_set)
    """,
    """
    from sklearn.model_selection import train_test_split

    torch.manual_seed(0)  # not numpy's
    train_files, val_files = train_test_split(glob.glob("*.pt"), test_size=0.1)  # expect
    train(Files(train_files))
    """,
    """
    order = np.random.permutation(64)  # expect
    train(Subset(dataset, order[:56]))
    """,
    """
    files = glob.glob("*.pt")
    random.shuffle(files)  # expect
    train(Files(files))
    """,
    """
    train(Files(list(set(glob.glob("*.pt")))))  # expect
    """,
)

_TOGETHER = ("broadcast_object_list", "scatter_object_list", "all_gather_object", "broadcast")
"""Collectives by which one rank's order may become that of all."""


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each place, where the order decides which samples are whose."""
    if program.is_tool or any(fact.name in _TOGETHER for fact in program.facts(facts.Collective)):
        return
    reported = set()
    for fact in program.facts(facts.Order):
        if fact.who != "all" or not program.runs_on_many(fact) or fact.site in reported:
            continue
        if fact.flags & {Flag.HANDLER, Flag.WORKER} or fact.site.function in ("__getitem__", "__iter__"):
            continue
        used = _used(program, fact)
        why = _why_apart(program, fact) if used is not None else None
        if used is None or why is None:
            continue
        reason, at, sure = why
        reported.add(fact.site)
        yield propose(
            program,
            fact,
            ERROR if sure and not fact.hangs_on_unknown else WARNING,
            f"{'this split' if fact.splits else 'this order'} differs between the ranks: {reason}",
            evidence=[*at, *used],
        )


def _used(program: Program, fact: facts.Order) -> list[Place] | None:
    """Where the order decides which samples are whose: of a split anywhere, of a mere order where shares are dealt out
    by place. None where it does not."""
    if fact.splits:
        return []
    for mark in fact.result:
        for other in program.facts(facts.Loader):
            loader = other.loader[0]
            samplers = distributed_samplers((loader,))
            if (
                samplers
                and _holds(loader.dataset, mark, own=bool(fact.library))
                and not any(sampler.derived for sampler in samplers)
            ):
                return [place(samplers[0].site, "this sampler deals out places in that order")]
    return None


def _holds(value: Value, mark: Shuffled, depth: int = 0, *, own: bool) -> bool:
    """Whether the order went into a data set: into its indices or items, or, of a shuffle (``own``), into its fields.

    Of a list of a set only what the data set was given counts: those that it makes itself are often of its classes.
    """
    for part in (*bare(value), *reaching(value)):
        if part is mark:
            return True
        if depth > _DEEPEST or isinstance(part, (Loader, Sampler)):
            continue
        if isinstance(part, (Instance, Subset, Container)):
            given = part.given if isinstance(part, Instance) else ()
            fields = part.fields.values() if own or not isinstance(part, Instance) else ()
            if any(_holds(held, mark, depth + 1, own=own) for held in (*fields, given)):
                return True
    return False


_DEEPEST = 2
_Why = tuple[str, list[Place], bool]


def _why_apart(program: Program, fact: facts.Order) -> _Why | None:
    """Why the ranks draw differently, what shows it, and whether that is sure; None where they may draw alike."""
    if any(launch.name == "Process" for launch in program.facts(facts.Launch)) and fact.library != "random":
        return None  # forked: each has the generator of the one that started it
    if not fact.library:
        return "a set of strings has another order in each process; sort it", [], False
    given = [part for part in reaching(fact.generator) if isinstance(part, RNG)]
    if fact.generator and constant(fact.generator) is not None:
        return _by_rank([held.seed for held in given], [held.at for held in given])
    if fact.seed and constant(fact.seed) is not None:
        return _by_rank([fact.seed], [])
    seeds = [
        seed
        for seed in program.facts(facts.Seed)
        if seed.order < fact.order and Flag.WORKER not in seed.flags and _is_of(seed.library, fact.library)
    ]
    if not seeds:
        if not program.complete or not program.has_seen_all(fact):
            return None
        named = program.speaks_of(SETS_SEED)  # somebody out of sight may set it
        return f"nothing seeds {_GENERATORS[fact.library]} ahead of it", [], not named
    last = seeds[-1]
    if hangs_on_rank(last.seed) or (last.device_specific and constant(last.device_specific) is True):
        return "the seed ahead of it is another on each rank", [place(last.site, "seeded here")], True
    return None


_GENERATORS = {"torch": "PyTorch's generator", "numpy": "NumPy's generator", "random": "Python's generator"}


def _by_rank(seeds: list[Value], at: list[Any]) -> _Why | None:
    if seeds and all(seed and hangs_on_rank(seed) and not is_alike(seed) for seed in seeds):
        places = [place(asked.site, "seeded here") for held in at for asked in held]
        return "the seed of its generator is another on each rank", places, True
    return None


def _is_of(seeded: str, drawn: str) -> bool:
    """Whether a function of one library seeds the generator of the other; what is no generator's own seeds all."""
    return seeded == drawn or seeded not in (*_GENERATORS, "torch.cuda", "generator")


def observe(run: Run) -> Seen:
    """Compares the splits of the ranks, in their order."""
    if run.world_size < 2 or len(run.ranks) < 2:
        return
    if len({len(run.of(rank, protocol.Split)) for rank in run.ranks}) > 1:
        yield Unclear()
    first = run.of(run.ranks[0], protocol.Split)
    for rank in run.ranks[1:]:
        for one, two in zip(first, run.of(rank, protocol.Split), strict=False):
            if one.site.place != two.site.place or one.lengths != two.lengths:
                continue
            if one.digests != two.digests:
                message = (
                    f"ranks {run.ranks[0]} and {rank} split the data differently: seed the split alike on all ranks"
                )
                yield Observation(ERROR, one.site, message, (), (run.ranks[0], rank))
            else:
                yield Well()
