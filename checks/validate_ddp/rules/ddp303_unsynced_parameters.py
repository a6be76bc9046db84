"""The optimizer holds parameters whose gradients no DistributedDataParallel reduces.

## What it does
Looks for modules whose parameters are given to an optimizer beside those of a wrapped model, while they are part of no
wrapper themselves; for layers that are put into a model after it was wrapped; and for a training on data that is shared
out where nothing in the program can average the gradients: no wrapper, no hook, no collective on what is of a model and
of no batch.

A rehearsal compares the parameters of the ranks after each step, those that join the optimizer later too, and what a
mesh replicates. It also shows ranks without a wrapper that share the data out and never average their gradients, leave
some of them out, average them where some ranks have none, change the average, or step on equal gradients at rates of
their own. What is part of a module whose calls send something to other ranks may be meant to differ.

## Why is this bad?
DistributedDataParallel reduces the gradients of the parameters that the model has when it is wrapped. All others are
stepped with the gradients of each rank's own batch: they drift apart from the first step, without any error, and the
checkpoint holds those of one rank.

## Example
```python
model = DistributedDataParallel(backbone)
head = nn.Linear(512, 10).to(device)
optimizer = SGD([*model.parameters(), *head.parameters()], lr=0.1)
```

## Use instead
```python
model = DistributedDataParallel(nn.Sequential(backbone, nn.Linear(512, 10)).to(device))
optimizer = SGD(model.parameters(), lr=0.1)
```

## References
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.accumulation import gradients_reduced_by_hand
from validate_ddp.interpreter.names import GLOBAL_RANK
from validate_ddp.interpreter.objects import Open
from validate_ddp.interpreter.ranks import PARTIAL
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Layer
from validate_ddp.interpreter.values import Class, Instance, Opaque, Value, bare, reaching
from validate_ddp.interpreter.vocabulary import COLLECTIVES
from validate_ddp.models.optimizers import has_parameters, parts_of
from validate_ddp.record.run import Run
from validate_ddp.record.updates import agree, common_steps, kept_equal
from validate_ddp.record.verdict import Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.drifting import drift
from validate_ddp.rules.proposing import place, propose
from validate_ddp.rules.unreduced import unreduced

TRIGGER = facts.Optimizer
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling(
    "gradients that are equal on all ranks",
    outranks=("DDP301",),
    silences=("DDP319",),
    step_by_step=True,
    clears_beside=("DDP202", "DDP206"),
)

TAIL = """
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""
VALID = (
    """
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.module.scale = nn.Parameter(torch.ones(1))
    """,
    """
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = DDP(net)
    """,
    """
    head = nn.Linear(4, 1)
    net = Net()
    net.head = head
    model = DDP(net)
    groups = [{"params": model.module.layer.parameters()}, {"params": head.parameters(), "lr": 1.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    """,
    """
    # One rank fits a probe of its own.
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if dist.get_rank() == 0:
        probe = nn.Linear(4, 1)
        fitted = torch.optim.SGD(probe.parameters(), lr=0.1)
        probe(torch.ones(2, 4)).sum().backward()
        fitted.step()
    """,
    """
    model, head = DDP(Net()), DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    """,
    """
    class ShardedHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4 // dist.get_world_size()))

        def forward(self, x):
            gathered = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, x)
            return torch.cat(gathered) @ self.weight

    model, head = DDP(Net()), ShardedHead()
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": head.parameters()}], lr=0.1)
    """,
    """
    model, criterion = DDP(Net()), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    """,
)
INVALID = (
    """
    model, head = DDP(Net()), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(list(model.parameters()) + list(head.parameters()), lr=0.1)  # expect
    """,
    """
    model, projector = DDP(Net()), Net()
    groups = [{"params": model.parameters()}, {"params": projector.parameters(), "lr": 1.0}]
    optimizer = torch.optim.AdamW(groups)  # expect
    """,
    """
    net = Net()
    model = DDP(net)
    net.head = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # expect
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each optimizer, at its first module that is not reduced."""
    for each in unreduced(program):
        yield propose(
            program,
            each.optimizer,
            ERROR if each.sure and not each.optimizer.hangs_on_unknown else WARNING,
            "nothing averages the gradients of these parameters over the ranks: each rank trains a model of its own on "
            "its share of the data",
            evidence=[
                place(each.sampler.site, "shares the data out"),
                place(each.step.site, "steps on the rank's own"),
            ],
        )
    wraps = program.facts(facts.Wrap)
    if not program.facts(facts.Backward) or not _is_plain(program, wraps) or gradients_reduced_by_hand(program):
        return
    wrapped = {id(part) for wrap in wraps for part in parts_of(wrap.wrapper)}
    reported = set()
    for fact in program.facts(facts.Optimizer):
        if fact.site in reported or fact.who in PARTIAL or not program.runs_on_many(fact):
            continue  # what some ranks train by themselves drifts from nothing
        outside = next((module for module in _modules(fact.parameters) if _is_outside(module, wrapped)), None)
        late = None if outside is not None else _made_late(fact, wraps)
        module = outside if outside is not None else late
        if module is None:
            continue
        reported.add(fact.site)
        note = "made here, and part of no wrapper" if late is None else "put into the model after it was wrapped"
        yield propose(
            program,
            fact,
            INFO if fact.hangs_on_unknown else ERROR,
            f"this optimizer trains parameters of `{_name(module)}` that `DistributedDataParallel` does not reduce: "
            "they drift apart between ranks",
            evidence=[place(module.site, note), *(place(wrap.site, "wrapped here") for wrap in wraps[:1])],
        )


def _is_plain(program: Program, wraps: list[facts.Wrap]) -> bool:
    """Whether the script wraps by itself, only with DistributedDataParallel, and only models that are known."""
    if not wraps or any(fact.name != "ddp" for fact in wraps) or program.facts(facts.Shard, facts.Partition):
        return False
    if any(fact.name not in ("spawn", "Process") for fact in program.facts(facts.Launch)):
        return False
    for wrap in wraps:
        for atom in bare(wrap.inner):
            if isinstance(atom, Opaque) and not any(isinstance(part, Layer) for part in atom.carries):
                return False
        for part in parts_of(wrap.inner):
            if isinstance(part, Open):
                return False
            if isinstance(part, Instance) and any(
                {"add_module", "register_module", "setattr", "__dict__"} & set(base.node.words)
                for base in part.cls.lineage()
                if isinstance(base, Class)
            ):
                return False
    return True


def _modules(parameters: Value) -> list[Any]:
    """The modules whose parameters these are."""
    return [part for part in reaching(parameters) if isinstance(part, (Instance, Layer))]


def _is_outside(module: Any, wrapped: set[int]) -> bool:
    parts = parts_of((module,))
    if any(id(part) in wrapped for part in parts) or not has_parameters(module):
        return False
    words = COLLECTIVES | GLOBAL_RANK.words | {"world_size", "get_world_size", "get_rank"}
    return not any(
        isinstance(base, Class) and not words.isdisjoint(base.node.words)
        for part in parts
        if isinstance(part, Instance)
        for base in part.cls.lineage()
    )


def _made_late(fact: facts.Optimizer, wraps: list[facts.Wrap]) -> Any:
    """A layer of the wrapped model which the optimizer holds, made after its last wrapping."""
    for wrap in wraps:
        wrapper = wrap.wrapper[0]
        if not any(part is wrapper or part in bare(wrapper.inner) for part in reaching(fact.parameters)):
            continue
        for part in parts_of((wrapper,)):
            if not isinstance(part, Layer) or not has_parameters(part) or part.order > fact.order:
                continue
            holding = [other for other in wraps if any(own is part for own in parts_of(other.wrapper))]
            if all(part.order > other.order for other in holding):
                return part
    return None


def _name(module: Any) -> str:
    return module.cls.name if isinstance(module, Instance) else f"nn.{module.called}"


def observe(run: Run) -> Seen:
    """Compares parameters after each step. A script without DDP counts where its ranks step on equal gradients, or have
    the data in common: they train one model then, and must hold one. Held where all were seen to be equal."""
    if run.world_size < 2 or len(run.ranks) < 2:
        return
    for optimizer in run.of(run.ranks[0], protocol.Optimizer):
        number = optimizer.optimizer
        for count in range(1, common_steps(run, number) + 1):
            alike = all(agree(run, number, count, what, wrapped=False) for what in ("grads", "params"))
            yield Well(optimizer.site, held=False) if alike else Unclear(optimizer.site)
        if optimizer.inner or not common_steps(run, number):
            continue
        apart = drift(run, optimizer)
        if apart is not None:
            yield apart
        yield Well() if kept_equal(run, number) else Unclear()
