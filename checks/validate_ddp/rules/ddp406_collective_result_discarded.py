"""The result of a collective is thrown away.

## What it does
Looks for out-of-place collectives (`torch.distributed.nn.functional`, the functional collectives, `hvd.allreduce`,
`accelerator.reduce` and `gather`, the lower-case methods of mpi4py) called as statements, where the tensor that went in
is used again; and for collectives with `async_op=True` whose handle is never waited for.

## Why is this bad?
These functions leave their argument alone and return the result. The code goes on with each rank's own number as
though it were everyone's: a loss, a metric or a gradient that was never reduced, and no error. Without `wait()` the
tensor may be read before the collective has written it.

## Example
```python
hvd.allreduce(loss)
log(loss.item())
```

## Use instead
```python
loss = hvd.allreduce(loss)
log(loss.item())
```

## References
- [Horovod: hvd.allreduce](https://horovod.readthedocs.io/en/stable/api.html#horovod.torch.allreduce)
- [Accelerator.reduce](https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.reduce)
- [torch.distributed: synchronous and asynchronous collectives](https://docs.pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.ranks import PARTIAL
from validate_ddp.interpreter.trace import Program
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Collective
SEVERITIES = (ERROR,)
EVIDENCE = "S"
FIX = "-"

HEAD = """
    import torch.distributed.nn.functional as dist_nn

    dist.init_process_group("gloo")
    loss = torch.ones(1)
"""
VALID = (
    """
    dist.all_reduce(loss)
    loss = dist_nn.all_reduce(loss)
    dist_nn.all_reduce(torch.zeros(1))  # a barrier
    handle = dist.all_reduce(loss, async_op=True)
    handle.wait()
    print(loss)
    """,
    """
    # alone
    import horovod.torch as hvd

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    loss = torch.ones(1)
    hvd.allreduce(torch.tensor(0), name="barrier")
    hvd.allreduce_(loss)
    handle = hvd.allreduce_async_(loss)
    hvd.synchronize(handle)
    ready = torch.zeros(1)
    print(loss)
    hvd.allreduce(ready, name="ready")
    """,
    """
    # alone
    from accelerate import Accelerator

    accelerator = Accelerator()
    loss = torch.ones(1)
    losses = accelerator.gather(loss)
    print(loss, losses, accelerator.reduce(loss, "mean"))
    """,
    """
    handles = [dist.all_reduce(part, async_op=True) for part in loss.split(1)]
    for handle in handles:
        handle.wait()
    print(loss)
    """,
    """
    # alone
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    if rank == 0:
        name = "run"
        comm.bcast(name, root=0)
    else:
        name = comm.bcast(None, root=0)
    print(name)
    """,
)
INVALID = (
    """
    dist_nn.all_reduce(loss)  # expect
    print(loss)
    """,
    """
    # alone
    import horovod.torch as hvd

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())

    def reduce_mean(tensor):
        total = tensor.clone()
        hvd.allreduce(total, name="barrier")  # expect
        return total

    print(reduce_mean(torch.ones(1)))
    """,
    """
    # alone
    from accelerate import Accelerator

    accelerator = Accelerator()
    loss = torch.ones(1)
    accelerator.reduce(loss, "mean")  # expect
    if accelerator.is_main_process:
        print(loss)
    """,
    """
    def average(value):
        dist.all_reduce(value, async_op=True)  # expect
        return value / dist.get_world_size()

    def total(value):
        handle = dist.all_reduce(value, async_op=True)  # expect
        return value

    print(average(loss), total(loss))
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such call."""
    reported = set()
    for fact in program.facts(facts.Collective):
        lost = fact.dropped
        if not lost or fact.site in reported:
            continue
        if lost == "result" and fact.who in PARTIAL:
            continue  # the root of a broadcast, or those who send to it, need no result
        reported.add(fact.site)
        if lost == "handle":
            message = f"nobody waits for this asynchronous `{fact.name}`: its tensor may be read before it is written"
        else:
            message = f"`{fact.name}` returns its result and leaves its argument alone: what follows uses the local one"
        evidence = [place(fact.chain[-1], "it is reached from here")] if fact.chain else []
        yield propose(program, fact, ERROR, message, evidence=evidence, on_any=True)
