"""A rank works on the GPU before it has chosen one.

## What it does
Looks for scripts on NCCL in which a barrier or an object collective comes before `torch.cuda.set_device`, or in which
no rank ever chooses a device: `.cuda()` without an index, no `set_device`, no `device_ids`, and no local rank anywhere.
A barrier that comes first where a device is named otherwise (`torch.device("cuda", local_rank)`, `Accelerator()`,
`deepspeed.initialize`) is advice.
A rehearsal tells where several ranks of a node ask for one and the same GPU and for no other.

## Why is this bad?
A process that has chosen no device works on the first one. A barrier or an object collective sends a tensor from
there: all ranks open a context on GPU 0, which costs memory for the rest of the run, and NCCL refuses two ranks on one
device (`Duplicate GPU detected`) or hangs. Older versions of PyTorch guess a device from the global rank in a barrier.

## Example
```python
dist.init_process_group("nccl")
dist.barrier()
torch.cuda.set_device(local_rank)
```

## Use instead
```python
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
dist.barrier()
```

## Fix safety
The fix chooses the device of the local rank, where there are GPUs, before the early collective, or before the process
group is initialised where none is chosen at all. It takes the script's own local rank if there is one, else torchrun's
`LOCAL_RANK`; it is unsafe, since another launcher may not set that. There is none where the script starts its ranks
itself and has no local rank there.

## References
- [barrier](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Edit, Fix, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Device
from validate_ddp.interpreter.values import Const, Opaque, Rank, Symbol, Value, bare, constant, reaching
from validate_ddp.record.run import Run, Site
from validate_ddp.record.verdict import Note, Observation, Seen, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.ProcessGroup
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "unsafe"

HEAD = ""
VALID = (
    """
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.barrier()
    model = DDP(torch.nn.Linear(2, 2).cuda())
    """,
    """
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=device)
    dist.barrier()
    torch.cuda.set_device(device)
    """,
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
    dist.init_process_group("nccl")
    dist.barrier()
    model = DDP(torch.nn.Linear(2, 2).cuda())
    """,
    """
    dist.init_process_group("gloo")
    dist.barrier()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    """,
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    model = torch.nn.Linear(2, 2).to(local_rank)
    model = DDP(model, device_ids=[local_rank])
    dist.barrier(device_ids=[local_rank])
    """,
)
INVALID = (
    """
    dist.init_process_group("nccl")
    dist.barrier()  # expect
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    """,
    """
    # alone
    def worker(gpu, args):
        dist.init_process_group(args.dist_backend, rank=gpu, world_size=2)
        names = [None, None]
        dist.all_gather_object(names, "host")  # expect
        torch.cuda.set_device(gpu)
        dist.destroy_process_group()

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--dist-backend", default="nccl")
        mp.spawn(worker, args=(parser.parse_args(),), nprocs=2)
    """,
    """
    def main():
        dist.init_process_group("nccl")  # expect
        model = DDP(torch.nn.Linear(2, 2).cuda())
        model(torch.ones(2, 2).cuda()).sum().backward()

    main()
    """,
    """
    dist.init_process_group(backend="nccl")  # expect
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = DDP(torch.nn.Linear(2, 2).to(device))
    """,
)
_CHOSEN = ("set_device", "set_device_index")
_ON_CURRENT_DEVICE = frozenset(
    "barrier all_gather_object broadcast_object_list gather_object scatter_object_list".split()
)
_OF_NO_TENSOR = frozenset("new_group new_subgroups new_subgroups_by_enumeration".split())
"""Groups are made through the store, and on no device."""


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each collective that comes too early; or one where no device is ever chosen."""
    started = [fact for fact in program.facts(facts.ProcessGroup) if fact.name == "init" and _is_nccl(program, fact)]
    if not started or any(fact.device_id for fact in started):
        return
    chosen = [fact for fact in program.facts(facts.Device) if fact.name in _CHOSEN]
    by_others = program.mentions(mentions.DEVICE_BY_OTHERS)
    if chosen:
        if not by_others and chosen[0].who == "all" and _differs(chosen[0].device):
            yield from _too_early(program, started[0], chosen[0])
    elif by_others or not _is_never_chosen(program):
        if _is_named_otherwise(program) and not program.mentions(mentions.DEVICE_SEEN):
            yield from _too_early(program, started[0], None)
    else:
        yield propose(
            program,
            started[0],
            INFO if started[0].hangs_on_unknown else WARNING,
            "no rank chooses a device: all of them work on GPU 0, and NCCL refuses two ranks on one device; call "
            "`torch.cuda.set_device` with the local rank",
            evidence=[place(fact.site, "this goes to GPU 0 on every rank") for fact in program.facts(facts.Device)[:1]],
            fix=_fix(program, started[0]),
        )


def _is_nccl(program: Program, fact: facts.ProcessGroup) -> bool:
    """Whether the backend is NCCL, be it as the default of a command line option."""
    backend = fact.backend
    if constant(backend) == "nccl":
        return True
    names = {atom.name.rpartition(".")[2] for atom in bare(backend) if isinstance(atom, Opaque)}
    return len(backend) == 1 and any(
        fact.name in names and constant(fact.default) == "nccl" for fact in program.facts(facts.Option)
    )


def _too_early(program: Program, started: Fact, chosen: facts.Device | None) -> Iterator[Proposal]:
    """Collectives between the start of the group and the choice of a device, which send from the current one.

    Where none is chosen by ``set_device``, some PyTorch versions guess the right one: that is advice.
    """
    reported = set()
    evidence = () if chosen is None else (place(chosen.site, "the device is chosen only here"),)
    for fact in program.facts(facts.Collective):
        if fact.order < started.order or (chosen is not None and chosen.order < fact.order):
            continue
        if chosen is None and _may_be_chosen(program, fact):
            return
        if fact.name in _OF_NO_TENSOR:
            continue
        if fact.name not in _ON_CURRENT_DEVICE:
            return  # of tensors, which may be on the right device: that one is then used again
        if fact.who != "all" or not _is_of_all(fact.group) or fact.device_ids or fact.site in reported:
            continue
        reported.add(fact.site)
        yield propose(
            program,
            fact,
            INFO if chosen is None or fact.hangs_on_unknown else WARNING,
            f"`{fact.name}` comes before this rank has chosen its device: it runs on GPU 0 on every rank, where NCCL "
            "hangs or fails",
            evidence=evidence,
            fix=_fix(program, fact),
        )


def _is_named_otherwise(program: Program) -> bool:
    """Whether each rank has a device of its own all the same, or is given one by a framework."""
    by_framework = any(launch.launcher or launch.name == "deepspeed" for launch in program.facts(facts.Launch))
    return by_framework or any(_differs(device.device) for device in program.facts(facts.Device))


def _may_be_chosen(program: Program, fact: Fact) -> bool:
    """Whether a rank may have its own device by then: Accelerate and DeepSpeed choose one where they are set up."""
    if any(device.order < fact.order for device in program.facts(facts.Device)):
        return True
    launches = program.facts(facts.Launch)
    if not launches:
        return program.mentions(mentions.DEVICE_BY_OTHERS)
    for launch in launches:
        made = [launcher.site for launcher in launch.launcher]
        if any(site.path != fact.site.path or site.span.line < fact.site.span.line for site in made):
            return True
        if not made and launch.order < fact.order:
            return True
    return False


def _is_of_all(group: Value) -> bool:
    """Whether it is the group of all ranks, which is meant by none too."""
    return all(
        (isinstance(atom, Const) and atom.value is None)
        or (isinstance(atom, Symbol) and atom.name == "torch.distributed.group.WORLD")
        for atom in bare(group)
    )


def _differs(device: Value) -> bool:
    parts = [*bare(device), *reaching(device)]
    made = [part for part in parts if isinstance(part, Device)]
    return any(isinstance(part, Rank) for part in parts) or any(_differs(part.index) for part in made)


def _is_never_chosen(program: Program) -> bool:
    """Whether everything that is moved goes to plain "cuda", and nothing hints at a device of the rank's own."""
    devices = program.facts(facts.Device)
    wrapped = [fact for fact in program.facts(facts.Wrap) if fact.name in ("ddp", "fsdp")]
    values = [atom for fact in devices for atom in bare(fact.device)]
    given = [atom for fact in wrapped for atom in bare(fact.device_id)]
    return (
        program.complete
        and bool(wrapped)
        and not any(fact.device_ids for fact in wrapped)
        and any(isinstance(atom, Const) and atom.value == "cuda" for atom in values)
        and all(isinstance(atom, Const) and atom.value in ("cuda", "cpu", None) for atom in values)
        and all(isinstance(atom, Device) and constant(atom.index) == "cuda" for atom in given)
        and not program.facts(facts.Launch)
        and not program.mentions(mentions.DEVICE_PER_RANK)
        and (bool(given) or not program.mentions(mentions.DEVICE_ID))
    )


def _fix(program: Program, fact: Fact) -> Fix | None:
    """Choose the device before the fact, by the program's own local rank where it has one there."""
    from validate_ddp.interpreter.surroundings import held_by_names, written
    from validate_ddp.rules.edits import is_local_rank

    path, statement = fact.site.path, fact.site.statement
    body = program.body(path)
    torch = written(body, "torch", statement)
    if torch is None:
        return None
    imports: tuple[Edit, ...] = ()
    rank = next(iter(held_by_names(body, fact, is_local_rank)), None)
    if rank is None:
        if Flag.SPAWNED in fact.flags or program.facts(facts.Launch):
            return None  # whoever starts these ranks sets no LOCAL_RANK
        rank = 'int(os.environ["LOCAL_RANK"])'
        imports = (Edit("add_import", path, statement, "import os"),)
    choice = f"{torch}.cuda.set_device({rank})"
    guarded = f"if {torch}.cuda.is_available():\n    {choice}"
    return Fix(f"insert `{choice}` before it", False, (*imports, Edit("insert_before", path, statement, guarded)))


def observe(run: Run) -> Seen:
    """Ranks of one node, by the GPUs that they ask for by number."""
    asked = {rank: {event.index: event.site for event in reversed(run.of(rank, protocol.Device))} for rank in run.ranks}
    if run.world_size < 2 or len(run.ranks) < run.world_size or not all(asked.values()):
        return
    on: dict[tuple[int, int], dict[int, Site]] = {}
    for rank, devices in asked.items():
        if len(devices) == 1:
            ((index, site),) = devices.items()
            on.setdefault((rank - run.local_rank(rank), index), {})[rank] = site
    shared = False
    for (_, index), ranks in on.items():
        if len(ranks) > 1:
            shared = True
            told = ", ".join(map(str, ranks))
            message = f"ranks {told} of one node all work on GPU {index}: NCCL refuses that, and the others are idle"
            site, *others = ranks.values()
            notes = tuple(Note(other, "and here") for other in others[:1] if other.place != site.place)
            yield Observation(WARNING, site, message, notes, tuple(ranks))
    if not shared:
        yield Well()
