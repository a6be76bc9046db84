"""A model on a GPU is wrapped in a process group of gloo: its gradients go through the CPU.

## What it does
Looks for `init_process_group("gloo")` in a script that wraps a model with `device_ids`, which only a model on a GPU
has.

## Why is this bad?
gloo copies each bucket of gradients to the CPU, sends it over sockets, and copies the result back. The result is right;
each step waits for it, a multiple of the time that NCCL takes over NVLink or PCIe.

## Example
```python
dist.init_process_group("gloo")
model = DistributedDataParallel(model, device_ids=[local_rank])
```

## Use instead
```python
dist.init_process_group("nccl")
model = DistributedDataParallel(model, device_ids=[local_rank])
```
Where the CPU's tensors are sent too: `init_process_group("cpu:gloo,cuda:nccl")`.

## References
- [Which backend to use](https://docs.pytorch.org/docs/stable/distributed.html#which-backend-to-use)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.objects import Sequence
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Value, WorldSize, bare, constant, is_none
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.ProcessGroup
SEVERITIES = (INFO,)
EVIDENCE = "S"
FIX = "-"

HEAD = """
    local_rank = int(os.environ["LOCAL_RANK"])
    use_cuda = torch.cuda.is_available()
"""
VALID = (
    """
    dist.init_process_group("gloo")
    model = DDP(Net())
    """,
    """
    dist.init_process_group(os.environ.get("BACKEND", "gloo"))
    torch.cuda.set_device(local_rank)
    model = DDP(Net().cuda(), device_ids=[local_rank])
    """,
    """
    torch.cuda.set_device(local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    model = DDP(Net().cuda(), device_ids=[local_rank])
    """,
    """
    dist.init_process_group("gloo")
    model = DDP(Net(), device_ids=None)
    """,
    """
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    objects = dist.new_group(backend="gloo")
    model = DDP(Net().cuda(), device_ids=[local_rank])
    """,
    """
    backend = "gloo" if sys.platform == "win32" else "nccl"
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend)
    model = DDP(Net().cuda(), device_ids=[local_rank])
    """,
)
INVALID = (
    """
    dist.init_process_group("gloo")  # expect
    torch.cuda.set_device(local_rank)
    model = DDP(Net().cuda(), device_ids=[local_rank])
    """,
    """
    def start(backend="gloo"):
        dist.init_process_group(backend=backend)  # expect

    start()
    torch.cuda.set_device(local_rank)
    model = DDP(Net().to(local_rank), device_ids=[local_rank], output_device=local_rank)
    """,
    """
    # alone
    def worker(rank, world_size):
        dist.init_process_group("gloo", rank=rank, world_size=world_size)  # expect
        model = DDP(Net().to(rank), device_ids=[rank])
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(worker, args=(2,), nprocs=2)
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each start with gloo alone, where a model is surely wrapped on a GPU."""
    groups = [fact for fact in program.facts(facts.ProcessGroup) if fact.name == "init"]
    if not groups or any(constant(fact.backend) != "gloo" for fact in groups):
        return
    wrap = next((fact for fact in program.facts(facts.Wrap) if fact.name == "ddp" and _on_gpu(fact.device_ids)), None)
    if wrap is None:
        return
    reported = set()
    for fact in groups:
        if fact.site in reported:
            continue
        reported.add(fact.site)
        yield propose(
            program,
            fact,
            INFO,
            "gloo sends the gradients of a model on a GPU through the CPU; nccl sends them from GPU to GPU",
            evidence=[place(wrap.site, "this model is on a GPU: only such a one has `device_ids`")],
        )


def _on_gpu(device_ids: Value) -> bool:
    """Whether a device is given: DDP of a model on the CPU refuses any."""
    given = bare(device_ids)
    if not given or any(is_none(atom) or isinstance(atom, WorldSize) for atom in given):
        return False
    return all(
        isinstance(atom, Sequence)
        and atom.fields
        and not any(is_none(part) for v in atom.fields.values() for part in v)
        for atom in given
    )
