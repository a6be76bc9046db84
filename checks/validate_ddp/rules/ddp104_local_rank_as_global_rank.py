"""The local rank is passed where the global rank belongs.

## What it does
Looks for `LOCAL_RANK` as `rank=` of `init_process_group` or of `DistributedSampler`, beside a world size of all nodes;
and for a global rank beside `device_count()` as world size, also as what the function returns that starts the group.

## Why is this bad?
On one node the global and the local rank are equal, so it works. On two nodes every rank exists twice: the processes of
the second node claim the ranks of the first, and the job fails or hangs while it starts. A sampler given the local rank
trains the second node on the first node's share; the rest of the data is never seen.

It is an error where the program itself reads its node's number.

## Example
```python
dist.init_process_group("nccl", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
```

## Use instead
```python
dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
```
Under torchrun neither needs to be given.

## References
- [torchrun: environment variables](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal, Span
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.names import GLOBAL_RANK, NODE, OF_NODE, OF_ONE_NODE
from validate_ddp.interpreter.surroundings import levels
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Instance, Rank, Resource, Value, WorldSize, bare
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import propose
from validate_ddp.source.syntax import FunctionDef, Name, Return, Tuple
from validate_ddp.source.traversal import walk

TRIGGER = facts.ProcessGroup
SEVERITIES = (WARNING, ERROR, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling("each rank use its own rank", once=True, outranks=("DDP202", "DDP209"))

HEAD = ""
VALID = (
    """
    def start():
        devices = torch.cuda.device_count()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        world_size, rank = dist.get_world_size(), dist.get_rank()
        return world_size, rank, devices

    nodes = int(os.environ["NNODES"])
    world_size, rank, devices = start()
    """,
    """
    dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    """,
    """
    # One node by design: the ranks are its devices.
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl", rank=local_rank, world_size=torch.cuda.device_count())
    """,
    """
    # alone
    def worker(local_rank, world_size):
        dist.init_process_group("nccl", rank=local_rank, world_size=world_size)
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(worker, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
    """,
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    node = int(os.environ["GROUP_RANK"])
    rank = node * int(os.environ["LOCAL_WORLD_SIZE"]) + local_rank
    dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    """,
)
INVALID = (
    """
    nodes = int(os.environ["NNODES"])

    def start():
        devices = torch.cuda.device_count()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        return devices, rank  # expect

    world_size, rank = start()
    """,
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", rank=local_rank, world_size=world_size)  # expect
    """,
    """
    def main():
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        dist.init_process_group("nccl")
        sampler = DistributedSampler(  # expect
            range(8), num_replicas=dist.get_world_size(), rank=local_rank, shuffle=False
        )
        print(list(sampler))

    main()
    """,
    """
    rank = int(os.environ["RANK"])
    nodes = int(os.environ["NNODES"])
    dist.init_process_group("nccl", rank=rank, world_size=torch.cuda.device_count())  # expect
    """,
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = parser.parse_args()
    dist.init_process_group("nccl", rank=args.local_rank, world_size=int(os.environ["WORLD_SIZE"]))  # expect
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each call that mixes the two."""
    if not program.facts(facts.ProcessGroup) or any(
        fact.name in ("spawn", "Process", "horovod") for fact in program.facts(facts.Launch)
    ):
        return
    for fact in program.facts(facts.ProcessGroup, facts.Sampler):
        if fact.name == "destroy":
            continue
        size = fact.world_size if isinstance(fact, facts.ProcessGroup) else fact.num_replicas
        message = _mixed(program, fact, fact.rank, size)
        if message is None:
            yield from _returned(program, fact)
            continue
        severity = ERROR if _of_several_nodes(program) else WARNING
        if fact.hangs_on_unknown:
            severity = INFO
        yield propose(program, fact, severity, message, guessed=_is_guessed(fact.rank, size))


def _returned(program: Program, fact: facts.ProcessGroup | facts.Sampler) -> Iterator[Proposal]:
    """Where the function that starts the group returns the number of devices beside the global rank."""
    if not isinstance(fact, facts.ProcessGroup) or fact.world_size or fact.scope is None:
        return
    around = [level.owner for level in levels(program.body(fact.site.path), fact.site.statement)]
    functions = [owner for owner in around if isinstance(owner, FunctionDef)]
    for node in walk(functions[-1].body) if functions else ():
        if not isinstance(node, Return) or not isinstance(node.value, Tuple) or len(node.value.elts) != _PAIR:
            continue
        held = [fact.scope.names.get(part.id, ()) for part in node.value.elts if isinstance(part, Name)]
        sizes = [atom for value in held for atom in bare(value) if isinstance(atom, WorldSize)]
        ranks = [atom for value in held for atom in bare(value) if isinstance(atom, Rank)]
        if len(sizes) != 1 or len(ranks) != 1 or not sizes[0].local or sizes[0].named:
            continue
        if ranks[0].scope != "global" or not ranks[0].sure:
            continue
        span = Span(*node.span)
        yield propose(
            program,
            fact,
            WARNING if _of_several_nodes(program) else INFO,
            "`device_count()` is returned beside the global rank, as the number of ranks: of several nodes there are "
            "more",
        )._replace(span=span, statement=span, expects=("return", ""))


_PAIR = 2


def _is_guessed(*values: Value) -> bool:
    """Whether only its name says that one of the two numbers is a rank, or the number of ranks."""
    return any(isinstance(atom, (Rank, WorldSize)) and atom.named for value in values for atom in bare(value))


def _of_several_nodes(program: Program) -> bool:
    """Whether the code deals with nodes, or a usage line or a launch file starts more than one."""
    told = program.speaks_of(NODE) or program.mentions(mentions.SEVERAL_STARTED)
    return told or program.several_nodes is not None


def _mixed(program: Program, fact: facts.ProcessGroup | facts.Sampler, rank: Value, size: Value) -> str | None:
    """What is wrong with this rank beside this world size; None where both are of one kind, or one is not known."""
    known = isinstance(fact, facts.ProcessGroup) and _has_global_rank_beside(fact)
    scopes = {atom.scope if atom.sure or atom.option or known else "" for atom in bare(rank) if isinstance(atom, Rank)}
    sizes = {atom.local for atom in bare(size) if isinstance(atom, WorldSize)}
    if isinstance(fact, facts.ProcessGroup) and OF_ONE_NODE.matches(fact.world_size_text):
        return None  # a world of one node, as it seems
    whole = sizes == {False} if size else True  # the default is the world of the launcher, or of the group
    if scopes == {"local"} and whole:
        if isinstance(fact, facts.Sampler):
            return (
                "the local rank is passed as `rank`: on several nodes every node trains on the share of the first, "
                "and the rest is never seen"
            )
        return (
            "the local rank is passed as `rank`: on a second node the same ranks exist again, and the job never starts"
        )
    if isinstance(fact, facts.ProcessGroup) and scopes == {"global"} and sizes == {True} and _of_several_nodes(program):
        return "`device_count()` is passed as `world_size` beside a global rank: the second node's ranks are too high"
    return None


def _has_global_rank_beside(fact: facts.ProcessGroup) -> bool:
    """Whether what is passed is called a local rank, and a global rank has its own name in the same place.

    `args.local_rank, args.rank = get_envs()`: then the two are not one number, wherever they come from.
    """
    holder, _, last = fact.rank_text.rpartition(".")
    if not OF_NODE.matches(last):
        return False
    for names in _names_at(fact, holder):
        for name in GLOBAL_RANK.words:
            if any(isinstance(atom, Rank) and atom.scope == "global" for atom in bare(names.get(name, ()))):
                return True
    return False


def _names_at(fact: Fact, holder: str) -> Iterator[dict[str, Value]]:
    """The names beside the one that is passed: of the scopes around it, or the fields of its holder."""
    scope = fact.scope
    while scope is not None:
        if not holder:
            yield scope.names
        for atom in bare(scope.names.get(holder, ())) if holder else ():
            if isinstance(atom, (Instance, Resource)):
                yield atom.fields
        scope = scope.parent


def observe(run: Run) -> Seen:
    """Looks at the ranks whose local rank differs from their rank."""
    for rank, event in run.each(protocol.Joining, protocol.Sampler):
        local = run.local_rank(rank)
        if rank == local or event.rank is None:
            continue
        if event.rank == local:
            joins = isinstance(event, protocol.Joining)
            what = "joins the process group" if joins else "takes its share of the data"
            message = f"rank {rank} {what} as rank {local}, which is its local rank: {_wrong(joins)}"
            yield Observation(ERROR, event.site, message, (), (rank,))
        else:
            yield Well(event.site) if event.rank == rank else Unclear(event.site)


def _wrong(joins: bool) -> str:
    if joins:
        return "another node has a rank of that number too"
    return "ranks of several nodes read the same samples, and others are read by nobody"
