"""`nn.DataParallel` trains on several GPUs from one process.

## What it does
Looks for `torch.nn.DataParallel` around a model that is trained, in a program that has no DistributedDataParallel,
sharding or launcher of any kind beside it.

## Why is this bad?
One Python process drives all GPUs by threads: it copies the model to each of them before every forward, gathers all
outputs on the first, and stops at one node. PyTorch's own documentation advises DistributedDataParallel instead, on a
single machine too.

## Example
```python
model = nn.DataParallel(model).cuda()
```

## Use instead
```python
dist.init_process_group("nccl")
torch.cuda.set_device(local_rank)
model = DistributedDataParallel(model.cuda(), device_ids=[local_rank])
```

## References
- [Use DistributedDataParallel instead of multiprocessing or DataParallel](https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-nn-ddp-instead)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.objects import Sequence
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import bare
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.DataParallel
SEVERITIES = (INFO,)
EVIDENCE = "S"
FIX = "-"

IMPORTS = """
    import torch
    from torch import nn
"""
HEAD = """
    model = nn.Linear(4, 1)
"""
TAIL = """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""
VALID = (
    "",
    """
    # alone
    model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
    with torch.no_grad():
        print(model(torch.ones(2, 4)))
    """,
    """
    model = nn.DataParallel(model, device_ids=[0])
    """,
    """
    import atexit
    import os
    import torch.distributed as dist

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)
        model = nn.parallel.DistributedDataParallel(model)
    else:
        model = nn.DataParallel(model)
    """,
)
INVALID = (
    """
    model = nn.DataParallel(model)  # expect
    """,
    """
    if torch.cuda.device_count() > 1:
        model = torch.nn.DataParallel(model)  # expect
    model.cuda()
    """,
    """
    class Trainer:
        def __init__(self, net):
            self.net = nn.DataParallel(net, device_ids=[0, 1]).cuda()  # expect

        def fit(self):
            for step in range(3):
                self.net(torch.ones(2, 4)).sum().backward()

    Trainer(model).fit()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each place where a model that is trained is wrapped."""
    backwards = program.facts(facts.Backward)
    if not backwards or program.mentions(mentions.OTHER_WAYS):
        return
    reported = set()
    for fact in program.facts(facts.DataParallel):
        if fact.site in reported or _on_one_device(fact) or Flag.NO_GRAD in fact.flags:
            continue
        reported.add(fact.site)
        yield propose(
            program,
            fact,
            INFO,
            "`nn.DataParallel` drives all GPUs from one process: `DistributedDataParallel` is faster, on one machine "
            "too",
            evidence=(place(backwards[0].site, "the program trains"),),
        )


def _on_one_device(fact: facts.DataParallel) -> bool:
    """Whether the call itself names a single device; one from elsewhere is the default of a configuration."""
    for atom in bare(fact.device_ids):
        if isinstance(atom, Sequence) and "*" not in atom.fields:
            return len(atom.fields) == 1 and atom.site.statement == fact.site.statement
    return False
