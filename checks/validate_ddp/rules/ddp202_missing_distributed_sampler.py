"""The training DataLoader of a distributed script is not sharded.

## What it does
Looks for a loader that feeds the forward of a DistributedDataParallel model, or of what Accelerate prepared, in a
training loop, and whose data is not split between the ranks in any way: no distributed sampler, no slice or seed by
rank, of the data or of each batch, no `prepare`.

## Why is this bad?
Every rank then goes through the whole data set. With equal seeds all ranks compute the same batch, and N GPUs do the
work of one; with different seeds an epoch visits each sample N times. Nothing fails, and the loss looks fine.

## Example
```python
loader = DataLoader(dataset, batch_size=32, shuffle=True)
model = DistributedDataParallel(model)
```

## Use instead
```python
loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
```

## Fix safety
The fix gives the loader a `DistributedSampler` of its data set, which shuffles as the loader did. It is offered where
data set and `shuffle` are plainly written and every run starts a process group. It is unsafe: steps an epoch become
fewer by the number of ranks, and schedules that count them change. The epoch loop then needs `set_epoch` (DDP201).

## References
- [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

from validate_ddp.findings import ERROR, WARNING, Edit, Fix, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.names_of_training import ITERABLE, STREAM
from validate_ddp.interpreter.sameness import differs_by_rank, hangs_on_rank
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import BatchSampler, Loader, PlainSampler, Prepared, Subset
from validate_ddp.interpreter.values import Const, Instance, OnRanks, Opaque, Resource, Site, Value, bare, constant
from validate_ddp.record.iterations import (
    Turn,
    contents,
    loader_of,
    sampler_of,
    shared,
    training_turn,
    training_turns,
)
from validate_ddp.record.one_model import same_losses, sharers
from validate_ddp.record.run import Run
from validate_ddp.record.samples import Sharing, chosen, sharings, unread
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.augmenting import augmentations
from validate_ddp.rules.grouping import may_share_data
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Loader
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "unsafe"
TELLING = Telling("no sample read by two ranks", once=True)

HEAD = """
    from torch.utils.data import RandomSampler, Subset
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(1, 1))

    def train(loader):
        for epoch in range(2):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                model(batch).sum().backward()
"""
VALID = (
    """
    train(DataLoader(torch.ones(8, 1), sampler=DistributedSampler(torch.ones(8, 1))))
    """,
    """
    data = torch.ones(8, 1)
    mine = Subset(data, range(dist.get_rank(), 8, dist.get_world_size()))
    train(DataLoader(mine, shuffle=True))
    """,
    """
    train(DataLoader(torch.ones(8, 1), sampler=DistributedSampler(torch.ones(8, 1))))
    with torch.no_grad():
        for batch in DataLoader(torch.ones(8, 1)):
            model(batch)
    """,
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    data = DataLoader(torch.ones(8, 1), batch_size=4)

    def mine(whole):
        part = len(whole) // world
        return whole[rank * part:(rank + 1) * part]

    for batch in data:
        model(batch[rank::world]).sum().backward()
        model(batch.chunk(world)[rank]).sum().backward()
        model(mine(batch)).sum().backward()
        model(batch.narrow(0, rank, 1)).sum().backward()
    """,
)
INVALID = (
    """
    train(DataLoader(torch.ones(8, 1), shuffle=True))  # expect
    """,
    """
    class Data(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.ones(1)

    def build():
        return DataLoader(Data(), batch_size=2, shuffle=False)  # expect

    train(build())
    """,
    """
    data = torch.ones(8, 1)
    train(DataLoader(data, sampler=RandomSampler(data)))  # expect
    """,
    """
    local = int(os.environ["LOCAL_RANK"])
    for batch in DataLoader(torch.ones(8, 1)):  # expect
        model(torch.as_tensor(batch, device=local)).sum().backward()
    """,
    """
    def endless(loader):
        while True:
            yield from loader

    batches = endless(DataLoader(torch.ones(8, 1), shuffle=True))  # expect
    for step in range(100):
        model(next(batches)).sum().backward()
    """,
    """
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(torch.nn.Linear(1, 1))
    for epoch in range(2):
        for batch in DataLoader(torch.ones(8, 1), shuffle=True):  # expect
            net(batch).sum().backward()
    """,
    """
    torch.manual_seed(dist.get_rank())
    train(DataLoader(torch.ones(8, 1)))  # expect
    """,
    """
    # alone
    from accelerate import Accelerator
    model = Accelerator().prepare(build())
    for batch in DataLoader(torch.ones(8, 1), shuffle=True):  # expect
        model(batch).sum().backward()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each loader that surely trains the wrapped model with unsharded data."""
    own_seeds = any(differs_by_rank(fact.seed) for fact in program.facts(facts.Seed))
    if own_seeds and augmentations(program).places:
        return  # each rank draws its own stream
    trained = _training_inputs(program)
    perhaps = {atom.site for fact in program.facts(facts.Iterate) if fact.open for atom in fact.loader}
    reported: set[Any] = set()
    for fact in program.facts(facts.Loader):
        loader = fact.loader[0]
        in_own_order = own_seeds and (loader.sampler or (loader.shuffle and constant(loader.shuffle) is not False))
        if in_own_order or loader.site not in trained or fact.site in reported:
            continue
        reported.add(fact.site)
        forward = trained[loader.site]
        evidence = [place(site, "the model is wrapped here") for site in _wrapped_at(program, forward)[:1]]
        in_parts = may_share_data(program, bare(forward.model))
        alone = forward.name == Prepared.called  # what was prepared is a model as far as is known
        yield propose(
            program,
            fact,
            WARNING if in_parts or alone or own_seeds or loader.site in perhaps else ERROR,
            "this training DataLoader is not split between the ranks: every rank goes through the whole data set",
            evidence=[*evidence, place(forward.site, "and trained on it here")],
            fix=None if alone else _fix(program, fact),
            rests_on=(forward,),
        )


def _wrapped_at(program: Program, forward: facts.Forward) -> list[Site]:
    models = bare(forward.model)
    wrappers = [atom.site for atom in models if isinstance(atom, Resource)]
    shards = [fact.site for fact in program.facts(facts.Shard) if any(fact.model == (atom,) for atom in models)]
    return wrappers or shards


def _fix(program: Program, fact: Fact) -> Fix | None:
    from validate_ddp.interpreter.surroundings import call_at, written
    from validate_ddp.rules.edits import always_initialised
    from validate_ddp.source.syntax import NONE, Constant
    from validate_ddp.source.traversal import dotted, keywords_of

    path, span = fact.site.path, fact.site.span
    body = program.body(path)
    call = call_at(body, span)
    if call is None or not always_initialised(program) or len(call.args) > 2:
        return None
    keywords = keywords_of(call)
    dataset = dotted(call.args[0] if call.args else keywords.get("dataset", NONE))
    shuffle = keywords.get("shuffle", Constant(False))
    how = None
    if isinstance(shuffle, Constant):
        how = ", shuffle=False" if shuffle.value is False else ""
    if how is None and dotted(shuffle) is not None:
        how = f", shuffle={dotted(shuffle)}"
    if dataset is None or how is None or keywords.keys() & {None, "sampler", "batch_sampler"}:
        return None
    sampler = written(body, "torch.utils.data.distributed.DistributedSampler", fact.site.statement)
    sampler = written(body, "torch.utils.data.DistributedSampler", fact.site.statement) or sampler
    imports: tuple[Edit, ...] = ()
    if sampler is None or sampler.startswith("torch."):
        sampler = "DistributedSampler"
        imports = (Edit("add_import", path, span, "from torch.utils.data import DistributedSampler"),)
    new = f"sampler={sampler}({dataset}{how})"
    edit = Edit("add_argument", path, span, new)
    if "shuffle" in keywords:
        edit = Edit("replace_argument", path, span, f"shuffle, {new}")
    return Fix(f"split the data: `{new}`", False, (*imports, edit))


def _training_inputs(program: Program) -> dict[Any, facts.Forward]:
    """Loaders, by where they are made, over which a wrapped model is run forward in training."""
    if not program.facts(facts.Backward):
        return {}
    found: dict[Any, facts.Forward] = {}
    shared: tuple[str, ...] = ("ddp", "fsdp", Prepared.called)
    loops: dict[Any, list[Any]] = {}
    for fact in program.facts(facts.Iterate):
        for atom in bare(fact.loader):
            loops.setdefault((fact.site.path, fact.site.span), []).append(atom)
            if atom.prepared:  # the others may hold what each rank has made of its batches, as a buffer of rollouts
                shared = ("ddp", "fsdp")
    trained_in = {(loop.site.path, loop.site.span) for fact in program.facts(facts.Backward) for loop in fact.loops}
    sharded = {id(atom) for fact in program.facts(facts.Shard) for atom in bare(fact.model)}
    for forward in program.facts(facts.Forward):
        in_place = any(id(atom) in sharded for atom in bare(forward.model))
        if not (in_place or forward.name in shared) or Flag.NO_GRAD in forward.flags or forward.own:
            continue
        for loop in forward.loops:
            place_of = (loop.site.path, loop.site.span)
            if place_of in trained_in:
                drawn_from = loops.get(place_of) or _loaders_of(forward)
                if all(_unsharded(loader) for loader in drawn_from):  # else it is the loader of a single process
                    for loader in drawn_from:
                        found.setdefault(loader.site, forward)
    return found


def _loaders_of(forward: facts.Forward) -> list[Any]:
    """The loaders whose batches go into a forward, where no loop around it draws from one."""
    return [atom for batch in forward.inputs for atom in bare(batch.loader)]


def _unsharded(loader: Loader) -> bool:
    """Whether the loader surely gives each rank all of the data."""
    samplers = [*bare(loader.sampler), *bare(loader.batch_sampler)]
    if loader.prepared or loader.open or loader.derived or not all(map(_plain, samplers)):
        return False
    return _same(loader.dataset) and all(_whole(atom) for atom in bare(loader.dataset))


def _same(value: Value) -> bool:
    """Whether no rank went into a value, nor into the choice of it."""
    return not differs_by_rank(value) and not any(isinstance(atom, OnRanks) for atom in value)


def _plain(sampler: Any) -> bool:
    if isinstance(sampler, BatchSampler):
        return bool(sampler.sampler) and all(map(_plain, bare(sampler.sampler)))
    return (isinstance(sampler, Const) and sampler.value is None) or isinstance(sampler, PlainSampler)


def _whole(dataset: Any, within: tuple[Any, ...] = ()) -> bool:
    """Whether a data set is surely the same on every rank. within: those that it is a part of, at whatever depth."""
    if isinstance(dataset, Instance):
        bases = {getattr(base, "last", getattr(base, "name", "")) for base in dataset.cls.lineage()}
        iterable = any(map(ITERABLE.matches, bases))
        if iterable or hangs_on_rank(dataset.given):
            return False  # told its rank, it can take its share by itself, in a loop that passes over the others'
        within = (*within, dataset)  # objects may know each other
        made_of = [part for part in dataset.given if isinstance(part, (Instance, Subset)) and part not in within]
        return all(map(_same, dataset.fields.values())) and all(_whole(part, within) for part in made_of)
    if isinstance(dataset, Subset):
        return (
            _same(dataset.indices)
            and _same(dataset.dataset)
            and all(_whole(atom, within) for atom in bare(dataset.dataset))
        )
    if isinstance(dataset, Opaque):
        return not STREAM.matches(dataset.name)
    return True


def observe(run: Run) -> Seen:
    """Compares the first iterations of each rank over its training loaders, where the ranks train one model."""
    if run.world_size < 2:
        return
    yield from _read_by_one(run)
    first, ranks = run.ranks[0], sharers(run)
    padded = {each.turns[first].loader for each in sharings(run) if _is_padded(each)}
    # Shares that overlap a little may be another defect: there it is not said that none is read twice.
    well = all(sharing.repeated <= sharing.padding for sharing in sharings(run))
    for turn in training_turns(run, first) if first in ranks else ():
        loader = loader_of(run, first, turn.loader)
        if loader is None or loader.iterable or turn.number > 1 or turn.loader in padded:
            continue
        for other in (rank for rank in ranks if rank != first):
            peer = _same_loader(run, other, turn, loader)
            if peer is None or _repeats_on_purpose(turn, peer):
                continue
            if _takes_a_part(turn) or (not run.wraps and same_losses(run) is False):
                yield Unclear()  # of the batch that all of them read
                continue
            common, share = shared(contents(chosen(turn)), contents(chosen(peer)))
            passed_over = len(chosen(turn).batches) < len(turn.batches)
            if common and (share > 0.5 or (_is_whole(loader) and not passed_over)):
                yield _observation(run, first, other, loader, common, share)
            elif well:
                yield Well()


def _read_by_one(run: Run) -> Seen:
    """Loaders, by whether in an iteration of all ranks no sample is read by two."""
    first = run.ranks[0]
    for turn in training_turns(run, first):
        loader = loader_of(run, first, turn.loader)
        if loader is None or loader.iterable:
            continue
        found = (training_turn(run, rank, turn.loader, turn.number) for rank in run.ranks)
        peers = [peer for peer in found if peer is not None]
        counts = Counter(index for each in peers for index in set(chain(*each.indices)))
        if len(peers) == len(run.ranks) and all(any(each.indices) for each in peers):
            # A sampler without drop_last repeats a few samples, so that all ranks get equally many.
            alone = sum(count > 1 for count in counts.values()) < run.world_size
            # Or all read the same, and each trains on a part of every batch.
            alone = alone or (all(map(_takes_a_part, peers)) and same_losses(run) is False)
            yield Well(loader.site, held=False) if alone else Unclear(loader.site)


def _takes_a_part(turn: Turn) -> bool:
    """Whether the wrapper is called with fewer rows than the batch has that was read for it."""
    told = [(each.rows, batch.event.size) for batch in turn.batches for each in batch.forwards[:1]
            if isinstance(each, protocol.Forward)]  # fmt: skip
    return bool(told) and all(rows and size and 2 * rows <= size for rows, size in told)


def _same_loader(run: Run, rank: int, turn: Turn, loader: protocol.Loader) -> Turn | None:
    other = training_turn(run, rank, turn.loader, turn.number)
    theirs = loader_of(run, rank, turn.loader)
    return other if theirs and theirs.site.place == loader.site.place else None


def _repeats_on_purpose(turn: Turn, peer: Turn) -> bool:
    """Whether samplers of the script's own take shares: one for repeated augmentation gives ranks the same samples."""
    return any(
        not mine.known and mine.shares > 1 and mine.rank != theirs.rank
        for mine, theirs in zip(turn.samplers, peer.samplers, strict=False)
    )


def _is_padded(sharing: Sharing) -> bool:
    """Whether nothing is read twice but what fills up the shares of a sampler: of very small data that may be all."""
    return bool(sharing.sharding) and 0 < sharing.repeated <= sharing.padding and not unread(sharing, sharing.ranks)


def _is_whole(loader: protocol.Loader) -> bool:
    """Whether each rank's loader is as long as the whole data set."""
    batches, size, length = loader.batches, loader.batch_size, loader.length
    if not batches or not size or not length:
        return False
    return bool((batches + 1) * size > length and batches * size > 0.75 * length)


def _observation(run: Run, first: int, other: int, loader: protocol.Loader, common: int, share: float) -> Observation:
    sampler = sampler_of(run, first, loader)
    if share > 0.5:
        message = f"ranks {first} and {other} train on the same samples: {common} of those seen by both are equal"
    else:
        message = f"each rank's loader covers the whole data set of {loader.length} samples: none is left to a peer"
    site = sampler.site if sampler else loader.site
    return Observation(ERROR, site, message, (), (first, other))
