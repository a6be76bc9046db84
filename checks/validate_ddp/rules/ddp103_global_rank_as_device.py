"""The global rank is used as a device index.

## What it does
Looks for a value of `RANK` or `get_rank()` that becomes a device: in `set_device`, `.to()`, `.cuda()`,
`torch.device()` or `device_ids`, without `% device_count()`.

## Why is this bad?
On one node the global and the local rank are equal, so it works. On the second node of two with eight GPUs each, rank 8
asks for `cuda:8`, and the job dies there with `invalid device ordinal`.

## Example
```python
rank = dist.get_rank()
model = DistributedDataParallel(model.to(rank), device_ids=[rank])
```

## Use instead
```python
local_rank = int(os.environ["LOCAL_RANK"])
model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
```

## Fix safety
The fix uses a local rank that the code has there, else `int(os.environ["LOCAL_RANK"])`, which torchrun sets. It is
unsafe, since other launchers set other variables. There is none for a device that the rank went into before, since
what else goes there would stay on another, nor in a file that scripts import, where the code has no local rank.

## References
- [torchrun: environment variables](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import ERROR, WARNING, Edit, Fix, Proposal, Span
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Rank, WorldSize, bare, reaching
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose
from validate_ddp.source.syntax import Call, FunctionDef, List, Tuple
from validate_ddp.source.traversal import dotted

TRIGGER = facts.Device
SEVERITIES = (WARNING, ERROR)  # error: a launch file starts it on several nodes, or a rehearsal has shown it
EVIDENCE = "SR"
FIX = "unsafe"
TELLING = Telling("each rank take the GPU of its local rank", once=True)

HEAD = ""
VALID = (
    """
    from diffusers import DiffusionPipeline

    class Drawing(DiffusionPipeline):
        def __call__(self):
            torch.cuda.set_device(self._execution_device)  # which no rank went into

    Drawing(dist.get_rank())()
    """,
    """
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    """,
    """
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    """,
    """
    NODE = None

    def local_rank():
        return dist.get_rank() if NODE is None else dist.get_rank(group=NODE)

    def main(of_node):
        global NODE
        dist.init_process_group("nccl")
        for ranks in of_node:
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                NODE = group
        torch.cuda.set_device(local_rank())

    main([[0, 1], [2, 3]])
    """,
    """
    # alone
    def worker(rank, world_size):
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        torch.cuda.set_device(rank)
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(worker, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
    """,
)
INVALID = (
    """
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)  # expect
    """,
    """
    def main():
        dist.init_process_group("nccl")
        rank = int(os.environ["RANK"])
        model = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[rank])  # expect

    if __name__ == "__main__":
        main()
    """,
    """
    def device_of(rank):
        return torch.device(f"cuda:{rank}")  # expect

    def main():
        dist.init_process_group("nccl")
        model = torch.nn.Linear(2, 2).to(device_of(dist.get_rank()))

    main()
    """,
    """
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (8,)) if len(sys.argv) > 1 else None
    place = dist.get_rank() if mesh is None else mesh.get_local_rank()
    if mesh is None:
        model = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[place])  # expect
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each function in which it happens, or for each device made of it, at the first place."""
    groups: dict[tuple[Any, ...], list[facts.Device]] = {}
    for fact in program.facts(facts.Device):
        if _is_global_rank(fact):
            groups.setdefault(_cause(fact), []).append(fact)
    if not groups or _one_node(program):
        return
    for uses in groups.values():
        first = min(uses, key=_way)
        others = sorted((fact.site for fact in uses), key=lambda site: (site.path, site.span))
        where = {(site.path, site.span.line): site for site in reversed(others)}
        where.pop((first.site.path, first.site.span.line))
        evidence = [place(site, "and here") for _, site in sorted(where.items())]
        started = program.several_nodes
        if started is not None:
            evidence.append(started)
        unsure = started is None or any(fact.hangs_on_unknown for fact in uses)
        yield propose(
            program,
            first,
            WARNING if unsure else ERROR,
            "the global rank is used as a device index: from the second node on there is no such device; "
            "use the local rank",
            evidence=evidence,
            fix=_fix(program, sorted(uses, key=lambda fact: fact.site.span)),
            rests_on=uses,
        )


def _way(fact: facts.Device) -> tuple[Any, ...]:
    """What orders uses of one device by the walk, and of a rank in one function by their place."""
    return (fact.site.span,) if any(isinstance(atom, Rank) for atom in bare(fact.device)) else (fact.order,)


def _cause(fact: facts.Device) -> tuple[Any, ...]:
    """What tells findings apart: the device, where the rank went into one, else the function that uses the rank."""
    made = next((atom for atom in bare(fact.device) if not isinstance(atom, Rank)), None)
    return (fact.site.path, fact.site.function) if made is None else (id(made),)


def _fix(program: Program, uses: list[facts.Device]) -> Fix | None:
    """Every use of the rank in the function's calls becomes the local rank; none where one is not plainly written.

    None either for a device that the rank went into: what else goes there would be left on another.
    """
    if not all(isinstance(atom, Rank) for fact in uses for atom in bare(fact.device)):
        return None
    from validate_ddp.interpreter.surroundings import call_at, held_by_names, written
    from validate_ddp.rules.edits import is_local_rank

    path, place = uses[0].site.path, uses[0].site.statement
    body = program.body(path)
    local = next(held_by_names(body, uses[0], is_local_rank), None)
    imports: tuple[Edit, ...] = ()
    if local is None:
        if program.mentions(mentions.NO_LOCAL_RANK):
            return None  # these launchers set no LOCAL_RANK
        if path != program.entry:
            return None  # a library, which other launchers start too
        environ = written(body, "os.environ", place)
        if environ is None:
            environ, imports = "os.environ", (Edit("add_import", path, place, "import os"),)
        local = f'int({environ}["LOCAL_RANK"])'
    edits: list[Edit] = []
    several = len({fact.site for fact in uses}) > 1
    if several and "(" in local and _dominates(program, uses) is not None:
        edits.append(Edit("insert_before", path, place, f"local_rank = {local}"))
        local = "local_rank"
    for site in dict.fromkeys(fact.site for fact in uses):
        call = call_at(body, site.span)
        name = None if call is None else _rank_argument(call)
        if name is None:
            return None
        edits.append(Edit("rename_in_arguments", path, site.span, f"{name}, {local}"))
    return Fix(f"use the local rank, `{local}`", False, (*imports, *edits))


def _dominates(program: Program, uses: list[facts.Device]) -> Span | None:
    """The function's span, where its first such statement runs before the others and it has no `local_rank` yet."""
    from validate_ddp.interpreter.surroundings import end_of, levels

    path = uses[0].site.path
    body = program.body(path)
    first, *others = (levels(body, fact.site.statement) for fact in uses)
    owners = [level.owner for level in first if isinstance(level.owner, FunctionDef)]
    if not owners or any(len(held) < len(first) or held[len(first) - 1].body is not first[-1].body for held in others):
        return None
    start, end = Span(*owners[-1].span), end_of(owners[-1])
    whole = Span(start.line, start.column, *end)
    return None if "local_rank" in program.code(path, whole) else whole


def _rank_argument(call: Call) -> str | None:
    """The name that is given as a device: by its position, or in ``device_ids``."""
    for name, value in call.keywords:
        if name == "device_ids" and isinstance(value, (Tuple, List)) and len(value.elts) == 1:
            return dotted(value.elts[0])
        if name in ("device", "index"):
            return dotted(value)
    return dotted(call.args[-1]) if call.args else None


def _is_global_rank(fact: facts.Device) -> bool:
    parts = [*bare(fact.device), *reaching(fact.device)]
    ranks = [part for part in parts if isinstance(part, Rank)]
    if fact.who == "zero":
        return False  # its local rank is zero as well
    of_world = [rank for rank in ranks if rank.scope == "global" and rank.sure]
    others = [rank for rank in ranks if rank not in of_world]
    if others and not (all(rank.scope == "group" for rank in others) and _is_chosen_here(fact)):
        return False  # it may be the rank among those of one node
    return bool(of_world)


def _is_chosen_here(fact: facts.Device) -> bool:
    """Whether a condition in the very function tells in which case the device is used."""
    here = (fact.site.path, fact.site.function)
    return any(guard.who == "all" and (guard.site.path, guard.site.function) == here for guard in fact.guards)


def _one_node(program: Program) -> bool:
    """Whether the script itself says that its world is the devices, or the spawned processes, of one machine."""
    return any(
        (isinstance(atom, WorldSize) and atom.local) or (isinstance(atom, Rank) and atom.scope == "spawn")
        for fact in program.facts(facts.ProcessGroup)
        for atom in (*bare(fact.world_size), *bare(fact.rank))
    ) or any(fact.one_node for fact in program.facts(facts.ProcessGroup))


def observe(run: Run) -> Seen:
    """Looks at the ranks whose local rank differs from their rank, as on one node no rank's does."""
    for rank, event in run.each(protocol.Device):
        local = run.local_rank(rank)
        if rank == local:
            continue
        if event.index == rank:
            message = (
                f"rank {rank} asks for GPU {rank} ({event.via}), the number of its rank: on its node it is local "
                f"rank {local}"
            )
            yield Observation(ERROR, event.site, message, (), (rank,))
        else:
            yield Well(event.site) if event.index == local else Unclear(event.site)
