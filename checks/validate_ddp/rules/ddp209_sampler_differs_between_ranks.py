"""The ranks' samplers do not fit together: samples are read twice, and others by nobody.

## What it does
Reading, looks for a `DistributedSampler` whose seed is made of the rank or drawn at random by each rank for itself,
whose rank is one number on all of them, or whose number of replicas is that of one node's devices in a script for
several. A rehearsal compares, for each loader that the ranks train on, what their samplers are set to when an epoch
begins: the seed, the epoch, the number of replicas and the rank; and counts the samples that they read together.

## Why is this bad?
A `DistributedSampler` talks to nobody: each rank draws the same permutation and takes its share of it. With another
seed or epoch on each rank the permutations are others, and the shares overlap; with a wrong rank or number of replicas
a share is nobody's. Training goes on without a word, on a part of the data.

## Example
```python
sampler = DistributedSampler(dataset, seed=args.seed + dist.get_rank())
```

## Use instead
```python
sampler = DistributedSampler(dataset, seed=args.seed)
```

## References
- [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.names import NODE
from validate_ddp.interpreter.objects import Unique
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Const, Rank, Value, WorldSize, bare, constant, reaching
from validate_ddp.record.iterations import contents, shared
from validate_ddp.record.one_model import sharers
from validate_ddp.record.run import Run
from validate_ddp.record.samples import Level, Sharing, has_own_data, sharings, shuffles, unread
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import propose

TRIGGER = facts.Sampler
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling(outranks=("DDP202",))

IMPORTS = """
    import argparse
    import os
    import random
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    def train(sampler):
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for batch in DataLoader(range(64), sampler=sampler):
                print(batch)
"""
VALID = (
    """
    torch.manual_seed(dist.get_rank())
    train(DistributedSampler(range(64), seed=7))
    """,
    """
    # Without a shuffle a seed does nothing.
    print(list(DistributedSampler(range(64), shuffle=False, seed=dist.get_rank())))
    """,
    """
    seed = [random.randint(0, 1000) + dist.get_rank()]
    dist.broadcast_object_list(seed, 0)
    train(DistributedSampler(range(64), seed=seed[0]))
    """,
    """
    random.seed(7)
    train(DistributedSampler(range(64), seed=random.randint(0, 1000)))
    """,
    """
    # Each group of ranks has a model, and an order of the data, of its own.
    group, of_group = dist.get_rank() // 4, dist.get_rank() % 4
    train(DistributedSampler(range(64), num_replicas=4, rank=of_group, seed=group))
    """,
    """
    # One node by design.
    local_rank = int(os.environ["LOCAL_RANK"])
    train(DistributedSampler(range(64), num_replicas=torch.cuda.device_count(), rank=local_rank))
    """,
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    train(DistributedSampler(range(64), num_replicas=dist.get_world_size(), rank=rank))
    """,
)
INVALID = (
    """
    rank = dist.get_rank()
    train(DistributedSampler(range(64), num_replicas=dist.get_world_size(), rank=rank, seed=rank))  # expect
    """,
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.seed += int(os.environ["RANK"])
    train(DistributedSampler(range(64), seed=args.seed))  # expect
    """,
    """
    train(DistributedSampler(range(64), seed=random.randint(0, 1000)))  # expect
    """,
    """
    train(DistributedSampler(range(64), num_replicas=dist.get_world_size(), rank=0))  # expect
    """,
    """
    # torchrun --nnodes=2 --nproc_per_node=8 train.py
    rank = dist.get_rank()
    train(DistributedSampler(range(64), num_replicas=torch.cuda.device_count(), rank=rank))  # expect
    """,
)
_TALKING = ("broadcast", "all_reduce", "all_gather", "scatter")
"""Collectives after which the ranks may have agreed on a number."""
_ALL = 0.9
"""Of the samples that are read at all: a sampler that gives so many of them to several ranks means to."""
_WORDS = {"seed": "seeds", "epoch": "epochs", "replicas": "numbers of replicas", "shuffle": "`shuffle` flags"}


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such sampler."""
    reported = set()
    for fact in program.facts(facts.Sampler):
        if fact.site in reported or fact.who != "all" or not program.runs_on_many(fact):
            continue
        severity, message = _wrong(program, fact)
        if message:
            reported.add(fact.site)
            yield propose(program, fact, WARNING if fact.hangs_on_unknown else severity, message)


def _wrong(program: Program, fact: facts.Sampler) -> tuple[str, str]:
    """Severity and message; empty ones where nothing is known to be wrong."""
    if constant(fact.shuffle) is not False and not _may_have_agreed(program, fact):
        alone = _in_own_group(fact)
        if _is_of_rank(fact.seed) and not alone:
            known = all(atom.sure for atom in reaching(fact.seed) if isinstance(atom, Rank))
            sure = known and constant(fact.shuffle) is True and _is_of_world(fact.num_replicas)
            return ERROR if sure else WARNING, (
                "the seed of this sampler is another one on each rank, so each takes its share of an order of its own: "
                "samples are read twice, and others by nobody; give all ranks one seed"
            )
        if _is_drawn(program, fact) and not alone:
            return WARNING, (
                "each rank draws the seed of this sampler for itself, and takes its share of an order of its own: "
                "samples are read twice, and others by nobody; broadcast one seed"
            )
    if type(constant(fact.rank)) is int and _is_of_world(fact.num_replicas) and fact.num_replicas:
        return ERROR, f"`rank` is {constant(fact.rank)} on every rank: all of them train on that one share of the data"
    local = [atom.local and not atom.named for atom in bare(fact.num_replicas) if isinstance(atom, WorldSize)]
    scopes = {atom.scope for atom in bare(fact.rank) if isinstance(atom, Rank) and atom.sure}
    if local and all(local) and len(local) == len(fact.num_replicas) and (scopes == {"global"} or not fact.rank):
        if program.speaks_of(NODE) or program.mentions(mentions.SEVERAL_STARTED):
            return WARNING, (
                "`num_replicas` is the number of one node's devices beside a rank in the whole job: on a second node "
                "the ranks are too high, and the sampler refuses them"
            )
    return "", ""


def _is_of_rank(seed: Value) -> bool:
    """Whether a rank of the whole job, or of its node, goes into every alternative."""
    parts = [reaching((atom,)) for atom in bare(seed)]
    return bool(parts) and all(
        any(isinstance(part, Rank) and part.scope in ("global", "spawn", "local") for part in held) for held in parts
    )


def _is_of_world(size: Value) -> bool:
    """Whether it surely counts all ranks, as it does where it is not given."""
    return all(isinstance(atom, WorldSize) and not atom.local and not atom.named for atom in bare(size))


def _in_own_group(fact: facts.Sampler) -> bool:
    """Whether the data may be shared out within a group of ranks, which has an order of its own."""
    if any(isinstance(atom, Const) for atom in bare(fact.num_replicas)):
        return True
    return any(isinstance(part, Rank) and part.scope in ("group", "node") for part in reaching(fact.rank + fact.seed))


def _is_drawn(program: Program, fact: facts.Sampler) -> bool:
    """Whether each process draws the seed by itself, out of a generator that nobody has seeded."""
    drawn = [any(isinstance(part, Unique) for part in reaching((atom,))) for atom in bare(fact.seed)]
    return bool(drawn) and all(drawn) and not program.facts(facts.Seed)


def _may_have_agreed(program: Program, fact: facts.Sampler) -> bool:
    """Whether a collective before it was given something that may be the seed."""
    return any(
        other.order < fact.order
        and any(word in other.name for word in _TALKING)
        and any(isinstance(part, (Rank, Unique)) for part in reaching(other.arguments))
        for other in program.facts(facts.Collective)
    )


def observe(run: Run) -> Seen:
    """Samplers of the script's own may share out as they like: of those only what overlaps though each rank takes its
    share of an epoch."""
    for sharing in sharings(run):
        severity, why = _why(run, sharing) if sharing.sharding else ("", "")
        if not why and _overlaps(run, sharing):
            what = "parts of the data" if sharing.own else "shares"
            severity, why = WARNING if sharing.own else ERROR, f"the ranks' {what} overlap"
        elif not sharing.sharding:
            continue
        if why:
            notes = tuple(
                Note(loader.site, "the loader") for loader in list(sharing.loaders.values())[:1]
                if loader.site.place != sharing.site.place
            )  # fmt: skip
            message = f"{why}: {_read(sharing)}"
            yield Observation(severity, sharing.site, message, notes, tuple(sharing.ranks))
        clear = sharing.plain and not (sharing.whole and sharing.missed > sharing.dropped)
        yield Well() if clear else Unclear()


def _why(run: Run, sharing: Sharing) -> tuple[str, str]:
    """Severity and cause; an empty cause where nothing is wrong, or it is another rule's."""
    torn = sharing.repeated > sharing.padding
    for level in sharing.levels:
        name = _differing(level)
        if name is None or (not run.wraps and _several_models(sharing, level)):
            continue
        told = ", ".join(f"{getattr(entry, name)} on rank {rank}" for rank, entry in level.items())
        known = all(entry.known for entry in level.values())
        if known or (torn and _same_data(sharing)):
            return (ERROR if known else WARNING), f"the samplers' {_WORDS[name]} differ: {told}"
    if not all(entry.known for level in sharing.sharding for entry in level.values()):
        return "", ""
    shares = unread(sharing, sharing.ranks)
    if shares:
        # What is cut up twice is DDP211's.
        twice = len(sharing.sharding) > 1 or has_own_data(run, sharing)
        return ("", "") if twice or sharing.own else (ERROR, _unread(sharing, shares))
    if sharing.own or not sharing.plain or not _same_data(sharing):
        return "", ""
    if torn:
        return ERROR, "the samplers are set alike, and yet the ranks' orders of the data are not the same"
    if sharing.whole and sharing.missed > sharing.dropped:
        return WARNING, "an epoch leaves out more than the end of the data"
    return "", ""


def _overlaps(run: Run, sharing: Sharing) -> bool:
    """Whether ranks of one model read some of each other's samples in a whole epoch, where each has a part of its own,
    or takes as many as its share is, none of them twice. Where all is read by several it may be meant so."""
    parts = [read for _, read in sorted(sharing.read.items())]
    if not sharing.whole or set(sharing.ranks) != set(sharers(run)) or list(run.each(protocol.Split)):
        return False
    samplers = [each for level in sharing.levels for each in level.values()]
    draws = any(each.replacement or (each.known and each.drawn is not None and not sharing.own) for each in samplers)
    if draws or any(len(set(part)) < len(part) for part in parts):
        return False
    told = sharing.repeated > max(sharing.padding, len(parts)) and sharing.repeated < _ALL * len(sharing.counts)
    if sharing.own:
        return told
    rest = len(parts) * max(len(indices) for turn in sharing.turns.values() for indices in turn.indices)
    return told and abs(sum(map(len, parts)) - sharing.length) <= rest and _same_data(sharing)


def _differing(level: Level) -> str | None:
    """What a sampler that shares out, or that makes the order which another one shares out, is set to otherwise on
    other ranks, of what matters to it."""
    entries = list(level.values())
    for name in ("replicas", "shuffle", "seed", "epoch"):
        told = {getattr(entry, name) for entry in entries}
        matters = name in ("replicas", "shuffle") or any(shuffles(entry) for entry in entries)
        if matters and len(told) > 1 and None not in told:
            return name
    return None


def _several_models(sharing: Sharing, level: Level) -> bool:
    """Whether ranks whose samplers are set alike share all of the data between them: groups with a model each."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank, entry in level.items():
        groups.setdefault(tuple(getattr(entry, name) for name in _WORDS), []).append(rank)
    return all(not unread(sharing, ranks) and len(ranks) > 1 for ranks in groups.values())


def _same_data(sharing: Sharing) -> bool:
    """Whether samples of equal index, where ranks have read any, were seen to be equal."""
    if sharing.own:
        return True  # these are indices of the data set that all have a part of
    first, *others = [contents(turn) for turn in sharing.turns.values()]
    told = [(first, other) for other in others if any(index in other for index in first)]
    return all(shared(one, two)[0] for one, two in told)


def _unread(sharing: Sharing, shares: list[tuple[int, ...]]) -> str:
    (level,) = sharing.sharding
    replicas = next(iter(level.values())).shares
    if replicas > len(sharing.ranks):
        return f"the sampler is made for {replicas} replicas, and {len(sharing.ranks)} ranks share the data"
    told = ", ".join(f"{entry.rank} on rank {rank}" for rank, entry in level.items())
    none = ", ".join(str(share[0]) for share in shares[:4])
    return f"the samplers' ranks are {told}, so that the share of {none} is nobody's"


def _read(sharing: Sharing) -> str:
    if not sharing.whole:
        return f"of the first {sharing.counts.total()} samples that the ranks read, {sharing.repeated} are read twice"
    return (
        f"of {sharing.length} samples an epoch reads {len(sharing.counts)}, {sharing.repeated} of them more than once, "
        f"and misses {sharing.missed}"
    )
