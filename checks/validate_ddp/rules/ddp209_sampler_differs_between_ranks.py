"""The ranks' samplers do not fit together: samples are read twice, and others by nobody.

## What it does
Compares, for each loader that the ranks of a rehearsal train on, what their samplers are set to when an epoch begins:
the seed, the epoch, the number of replicas and the rank; and counts the samples that they read together.

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

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.iterations import contents, shared
from validate_ddp.record.run import Run
from validate_ddp.record.samples import Level, Sharing, has_own_data, sharings, shuffles, unread
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Unclear, Well

SEVERITIES = (ERROR, WARNING)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(outranks=("DDP202",))
_WORDS = {"seed": "seeds", "epoch": "epochs", "replicas": "numbers of replicas", "shuffle": "`shuffle` flags"}


def observe(run: Run) -> Seen:
    """Samplers of the script's own may share out as they like: of those only what overlaps with seeds that differ."""
    for sharing in sharings(run):
        if not sharing.sharding:
            continue
        severity, why = _why(run, sharing)
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
