"""The training forward goes through `.module` or the model's old name, past DistributedDataParallel.

## What it does
Looks for a script that wraps a model, and whose every training forward that a backward follows is of the model inside
the wrapper: `ddp.module(x)`, or the name from before wrapping.

## Why is this bad?
DistributedDataParallel reduces gradients by hooks that its own `forward` arms. A forward of the inner module trains
each rank on its own: the replicas drift apart from the first step, without any error.

## Example
```python
ddp_model = DistributedDataParallel(model)
loss = criterion(model(x), y)
loss.backward()
```

## Use instead
```python
loss = criterion(ddp_model(x), y)
loss.backward()
```

## Fix safety
The fix calls the wrapper: it drops `.module`, or replaces the old name by the wrapper's. It is unsafe: training
changes, as it should, and unused parameters may now need `find_unused_parameters=True`.

## References
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import ERROR, Edit, Fix, Proposal, Span
from validate_ddp.interpreter.facts import Fact
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Instance, Opaque, Resource, bare, reaching
from validate_ddp.rules.proposing import place, propose

TRIGGER = "forward"
SEVERITIES = (ERROR,)
EVIDENCE = "SR"
FIX = "unsafe"

HEAD = """
    dist.init_process_group("gloo")
    net = Net()
    ddp = DDP(net)
"""
VALID = (
    """
    for step in range(3):
        ddp(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():
        net(torch.ones(2, 4))
    """,
    """
    for step in range(3):
        net(torch.ones(2, 4)).sum().backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
    """,
    """
    ddp.module.eval()
    print(ddp.module(torch.ones(2, 4)))
    """,
    """
    encoder = torch.nn.Linear(4, 1)
    wrapped = DDP(encoder)
    loss = wrapped(torch.ones(2, 4)).sum() + wrapped.module(torch.ones(2, 4)).sum()
    loss.backward()
    """,
)
INVALID = (
    """
    for step in range(3):
        loss = net(torch.ones(2, 4)).sum()  # expect
        loss.backward()
    """,
    """
    for step in range(3):
        loss = ddp.module(torch.ones(2, 4)).sum()  # expect
        loss.backward()
    """,
    """
    def step(model, x):
        loss = model.module(x).mean()  # expect
        loss.backward()

    step(ddp, torch.ones(2, 4))
    """,
    """
    encoder = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.ReLU())
    wrapped = DDP(encoder)
    for step in range(3):
        loss = encoder(torch.ones(2, 4)).sum()  # expect
        loss.backward()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each wrapper that training bypasses, at the first such forward."""
    backwards = program.facts("backward")
    if not backwards or _reduced_by_hand(program):
        return
    if not program.facts("step") and program.mentions(b".grad = None"):
        return  # a benchmark: its gradients are thrown away
    forwards = program.facts("forward")
    outputs = {id(model) for fact in backwards for model in _models_behind(fact)}
    for wrap in program.facts("wrap"):
        if wrap.name != "ddp":
            continue
        wrapper = wrap.value("wrapper")[0]
        if any(wrapper in bare(fact.value("model")) for fact in forwards if "no_grad" not in fact.flags):
            continue
        for inner in bare(wrapper.get("inner")):
            bypass = _bypassing(forwards, inner)
            if bypass is not None and id(inner) in outputs and bypass.order > wrap.order:
                yield propose(
                    program,
                    bypass,
                    ERROR,
                    "this training forward bypasses DistributedDataParallel: gradients are never averaged over ranks",
                    evidence=(place(wrap.site, "the model is wrapped here"),),
                    fix=_fix(program, bypass, wrapper),
                )


def _fix(program: Program, bypass: Fact, wrapper: Resource) -> Fix | None:
    """Call the wrapper by the name that it has there."""
    from validate_ddp.interpreter.surroundings import call_at, dotted, held_by_names

    path, span = bypass.site.path, bypass.site.span
    body = program.body(path)
    call = call_at(body, span)
    name = None if call is None else dotted(call[1])
    if call is None or name is None:
        return None
    there = next(held_by_names(body, bypass, lambda value: value == (wrapper,)), None)
    new = name.removesuffix(".module") if name.endswith(".module") else there
    if new is None or new == name:
        return None
    callee = Span(span.line, span.column, span.line, span.column + len(name.encode()))
    return Fix(f"call the wrapper: `{new}(...)`", False, (Edit("replace", path, callee, new),))


def _bypassing(forwards: list[Fact], inner: Any) -> Fact | None:
    if not isinstance(inner, (Instance, Opaque)):
        return None
    for fact in forwards:
        if inner in bare(fact.value("model")) and "no_grad" not in fact.flags:
            return fact
    return None


def _models_behind(backward: Fact) -> list[Any]:
    """The models whose output the loss was computed from."""
    found = []
    for part in reaching(backward.value("loss")):
        if isinstance(part, Resource) and part.kind == "output":
            found.extend(bare(part.get("model")))
    return found


def _reduced_by_hand(program: Program) -> bool:
    """Whether gradients go through a collective of the script's own."""
    return any(
        fact.name.startswith(("all_reduce", "allreduce", "reduce", "_all_reduce")) and "backward" not in fact.flags
        for fact in program.facts("collective")
        if any(
            getattr(atom, "name", "").rpartition(".")[2] in ("grad", "data", "flat_grads")
            for atom in fact.value("arguments")
        )
    )
