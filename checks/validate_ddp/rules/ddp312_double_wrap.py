"""A model is wrapped in DistributedDataParallel twice, or wrapped before it is made ready.

## What it does
Looks for `DistributedDataParallel` around a model that is one already, for a model that is put on its GPU only after
it was wrapped, and for `convert_sync_batchnorm` after wrapping.

## Why is this bad?
Two wrappers reduce every gradient twice, and its parameters are called `module.module.` in checkpoints. A model that
is still on the CPU cannot be wrapped with nccl at all: the constructor compares its parameters over ranks, on the GPU.
`convert_sync_batchnorm` belongs before wrapping, as its documentation says.

## Example
```python
model = DistributedDataParallel(model)
model.cuda(local_rank)
```

## Use instead
```python
model.cuda(local_rank)
model = DistributedDataParallel(model, device_ids=[local_rank])
```

## References
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
- [SyncBatchNorm.convert_sync_batchnorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html#torch.nn.SyncBatchNorm.convert_sync_batchnorm)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import DDP, Device
from validate_ddp.interpreter.values import Instance, Opaque, Rank, Resource, Symbol, Value, bare, constant
from validate_ddp.models.networks import MOVED
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Wrap
SEVERITIES = (ERROR, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling("a module without a wrapper in it", once=True)

HEAD = """
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = Net()
"""
VALID = (
    """
    model.cuda(local_rank)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DDP(model, device_ids=[local_rank])
    model.cuda(local_rank)
    """,
    """
    model = DDP(model.cuda(), device_ids=[local_rank])
    if not isinstance(model, DDP):
        model = DDP(model)
    """,
    """
    for fold in range(3):
        model = DDP(Net().to(local_rank))
    model = DDP(model.module)
    """,
    """
    # alone
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(1, 1))
    model.to("cpu")
    dist.destroy_process_group()
    """,
)
INVALID = (
    """
    model = DDP(model.cuda(), device_ids=[local_rank])
    ddp = DDP(model)  # expect
    """,
    """
    model = DDP(model, device_ids=[local_rank])  # expect
    model.cuda(local_rank)
    """,
    """
    model = DDP(model.cuda(), device_ids=[local_rank])
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # expect
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each wrapper around another, and for each thing done too late."""
    wraps = [fact for fact in program.facts(facts.Wrap) if fact.name == "ddp"]
    sites = set()
    for wrap in wraps:
        inner = [atom for atom in bare(wrap.inner) if isinstance(atom, DDP)]
        if not inner or len(inner) < len(bare(wrap.inner)):
            continue
        if any(atom.site == wrap.site for atom in inner) or wrap.site in sites:
            continue  # the same line, walked again
        sites.add(wrap.site)
        yield propose(
            program,
            wrap,
            INFO if wrap.hangs_on_unknown else ERROR,
            "this model is wrapped in `DistributedDataParallel` already: gradients are reduced twice, and its "
            "parameters become `module.module.`",
            evidence=[place(atom.site, "wrapped here") for atom in inner],
        )
    told = set()
    for late in program.facts(facts.Rework):
        wrapper = late.wrapper[0]
        wrapped = next((fact for fact in wraps if fact.wrapper[0] is wrapper), None)
        if wrapped is None or (wrapped.site, late.name) in told:
            continue
        told.add((wrapped.site, late.name))
        yield from _too_late(program, wrapped, late)


def _too_late(program: Program, wrap: facts.Wrap, late: facts.Rework) -> Iterator[Proposal]:
    if late.name.startswith("convert"):
        yield propose(
            program,
            late,
            INFO,
            "`convert_sync_batchnorm` belongs before wrapping: convert the model, then wrap it",
            evidence=(place(wrap.site, "wrapped here"),),
        )
    elif _was_on_cpu(wrap.inner) and _to_gpu(late) and _with_nccl(program):
        yield propose(
            program,
            wrap,
            INFO if wrap.hangs_on_unknown or late.hangs_on_unknown else ERROR,
            "this model is still on the CPU when it is wrapped, which fails with nccl: put it on its GPU first",
            evidence=(place(late.site, "put on the GPU only here"),),
        )


def _was_on_cpu(inner: Value) -> bool:
    """Whether the model surely was: one of this program, made of nothing that speaks of devices, never moved."""
    atoms = bare(inner)
    return bool(atoms) and all(
        isinstance(atom, Instance)
        and MOVED not in atom.fields
        and all(
            base.name in ("torch.nn.Module", "torch.nn.modules.Module", "builtins.object")
            if isinstance(base, Symbol)
            else not {"cuda", "device", "to"} & set(base.node.words)
            for base in atom.cls.lineage()
        )
        and not any(isinstance(part, (Resource, Instance)) for field in atom.fields.values() for part in bare(field))
        for atom in atoms
    )


def _to_gpu(late: facts.Rework) -> bool:
    if late.name == "cuda":
        return True
    return any(
        isinstance(atom, Rank)
        or (isinstance(atom, Opaque) and atom.name.startswith("cuda"))
        or (isinstance(atom, Device) and bool(atom.index))
        for atom in bare(late.device)
    )


def _with_nccl(program: Program) -> bool:
    groups = [fact for fact in program.facts(facts.ProcessGroup) if fact.name == "init"]
    return bool(groups) and all("nccl" in str(constant(fact.backend)) for fact in groups)


def observe(run: Run) -> Seen:
    """Looks at what each wrapper was given."""
    for rank, event in run.each(protocol.Ddp):
        if event.nested:
            message = "what is wrapped here is wrapped in DistributedDataParallel already: gradients are reduced twice"
            yield Observation(ERROR, event.site, message, (), (rank,))
        else:
            yield Well(event.site)
