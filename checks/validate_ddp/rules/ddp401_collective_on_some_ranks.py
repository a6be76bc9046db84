"""A collective is called on some ranks only.

## What it does
Looks for collectives (functions of `torch.distributed`, the DDP and FSDP constructors, Accelerate's, Horovod's, MPI's),
and for calls that reach one, under a condition on the rank that the other ranks do not match with the same collective.

## Why is this bad?
A collective returns when every rank of its group has called it. One that rank zero alone calls waits for ever, or pairs
with the next, different collective of the others: a hang until the time-out of 10 or 30 minutes, or wrong numbers.

Where the collective also hangs on a condition that reading cannot decide, in a function called under the condition on
the rank, this is advice. Where only the name of something unknown says that a condition is one on the rank, it is a
warning.

## Example
```python
if rank == 0:
    dist.all_reduce(loss)
    print(loss)
```

## Use instead
```python
dist.all_reduce(loss)
if rank == 0:
    print(loss)
```

## References
- [torch.distributed: collective functions](https://docs.pytorch.org/docs/stable/distributed.html#collective-functions)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.ranks import PARTIAL, complementary, phrase
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Group
from validate_ddp.interpreter.values import Atom, Symbol, bare, constant, is_none
from validate_ddp.record.culprits import PLAIN, observations
from validate_ddp.record.run import Run
from validate_ddp.record.sequences import met
from validate_ddp.record.verdict import Seen, Telling
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import kept_apart, place, propose

TRIGGER = facts.Collective
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling("every rank call it, equally often", diverges_before=("DDP407",))

HEAD = """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
"""
VALID = (
    """
    first = dist.new_group([0])
    if rank == 0:
        dist.barrier(group=first)
    """,
    """
    if rank != 0:
        dist.barrier()
    print("prepare")
    if rank == 0:
        dist.barrier()
    """,
    """
    from contextlib import contextmanager

    @contextmanager
    def rank_zero_first():
        if rank > 0:
            dist.barrier()
        yield
        if not rank > 0:
            dist.barrier()

    with rank_zero_first():
        print("download")
    """,
    """
    objects = [None]
    if rank == 0:
        objects = ["name"]
        dist.broadcast_object_list(objects, src=0)
    else:
        dist.broadcast_object_list(objects, src=0)
    loss = torch.ones(1)
    dist.all_reduce(loss)
    if rank == 0:
        print(loss)
    """,
    """
    # What is in a list that was sent is on every rank too.
    found = []
    if rank == 0:
        found.append(["a.pt", "b.pt"])
    box = [found]
    dist.broadcast_object_list(box, src=0)
    for name in box[0][0]:
        dist.barrier()
    """,
    """
    part = torch.ones(1)

    def send():
        if rank == 0:
            dist.scatter(part, [part, part])
        else:
            dist.scatter(part, None)

    send()
    send()
    """,
    """
    import settings

    model = torch.nn.Linear(1, 1)
    if settings.gpu:  # whether to use one, as it seems
        model = DDP(model)
    """,
)
INVALID = (
    """
    # A group of all ranks, on another backend, waits for all of them.
    objects = dist.new_group(backend="gloo") if dist.get_backend() == "nccl" else dist.group.WORLD

    def gather(share):
        if rank == 0:
            shares = [None] * dist.get_world_size()
            dist.gather_object(share, shares, dst=0, group=objects)  # expect
            return shares
        return []

    gather({"loss": 0.5})
    """,
    """
    if os.environ.get("RANK", "0") == "0":  # texts are compared
        dist.barrier()  # expect
    """,
    """
    loss = torch.ones(1)
    if rank == 0:
        dist.all_reduce(loss)  # expect
    """,
    """
    def average(value):
        dist.all_reduce(value)
        return value / dist.get_world_size()

    def log(value):
        if dist.get_rank() != 0:
            return
        print(average(value))  # expect

    log(torch.ones(1))
    """,
    """
    is_main = rank == 0
    for epoch in range(3):
        if is_main and epoch % 2 == 0:
            dist.barrier()  # expect
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each unmatched collective."""
    collectives = program.facts(facts.Collective)
    started = [fact.split.site for fact in program.facts(facts.ProcessGroup) if fact.name == "init" and fact.split]
    mpi_is_idle = _is_started_by_torchrun(program)
    sharded = [fact for fact in program.facts(facts.ShardedState) if fact.who in PARTIAL and not fact.is_open]
    reported = {fact.under_split for fact in sharded}  # DDP506 tells of these
    others: dict[tuple[str, object], list[facts.Collective]] = {}
    for fact in collectives:
        others.setdefault(_fork(fact), []).append(fact)
    for fact in collectives:
        reach = fact.under_split
        if fact.split is not None and fact.split.site in started:
            continue  # the group itself is of these ranks only
        if mpi_is_idle and any(isinstance(a, Symbol) and a.name.startswith("mpi4py") for a in fact.function):
            continue
        if fact.who not in PARTIAL or reach in reported or _in_subgroup(fact) or _matched(fact, others):
            continue
        verb = "is called" if reach is fact.site else "is reached from here"
        reported.add(reach)
        evidence = kept_apart(fact)
        if reach is not fact.site:
            evidence.append(place(fact.site, f"`{fact.name}` is called here"))
        yield propose(
            program,
            fact.moved(reach),
            INFO if fact.is_open else ERROR,
            f"`{fact.name}` {verb} on {phrase(fact.who)}: the other ranks never join it, so it hangs or "
            "pairs with another call of theirs",
            evidence=evidence,
        )


def _is_started_by_torchrun(program: Program) -> bool:
    """Whether torch's launcher starts the ranks, of which each is then alone in the world of MPI."""
    return program.mentions(mentions.TORCHRUN) and not program.mentions(mentions.MPIRUN)


def _in_subgroup(fact: facts.Collective) -> bool:
    """Whether the collective is of a group of its own, which may be just these ranks."""
    return not all(_is_of_all(atom) for atom in bare(fact.group))


def _is_of_all(group: Atom) -> bool:
    return is_none(group) or (isinstance(group, Group) and constant(group.ranks) is None)


def _matched(fact: Fact, others: dict[tuple[str, object], list[facts.Collective]]) -> bool:
    """Whether the ranks left out call the same collective elsewhere under the opposite condition."""
    return any(other is not fact and complementary(fact.who, other.who) for other in others[_fork(fact)])


def _fork(fact: Fact) -> tuple[str, object]:
    """What two facts share that are matched: the collective, and the activation in which the ranks are kept apart."""
    split = fact.split
    return _family(fact.name), fact if split is None else (split.depth, fact.chain[: split.depth])


def _family(name: str) -> str:
    return {"monitored_barrier": "barrier", "wait_for_everyone": "barrier"}.get(name, name)


def observe(run: Run) -> Seen:
    """Looks where the sequences of calls of two ranks first differ."""
    yield from observations(run, PLAIN, ERROR, "a collective that not every rank comes to")
    yield from met(run, protocol.Collective)
