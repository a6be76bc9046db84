"""The training forward goes through `.module` or the model's old name, past DistributedDataParallel.

## What it does
Looks for a script that wraps a model, and whose every training forward that a backward follows is of the model inside
the wrapper: `ddp.module(x)`, the name from before wrapping, or calls of other methods such as `ddp.module.encode(x)`,
be it by a class of the program whose `__getattr__` hands them through. A warning where more goes into a loss than is
kept in view, as the wrapper may be among that.

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
changes, as it should, and unused parameters may now need `find_unused_parameters=True`. There is none where other
methods are called: make a `forward` that calls them.

## References
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from validate_ddp.findings import ERROR, WARNING, Edit, Fix, Proposal, Span
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.names_of_training import GRADIENT
from validate_ddp.interpreter.objects import Output
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Wrapper
from validate_ddp.interpreter.values import Instance, Opaque, Value, bare, is_whole, reaching
from validate_ddp.record.run import Run
from validate_ddp.record.samples import read_apart
from validate_ddp.record.updates import agree, differing, wrapped_steps
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rules import together
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Wrap
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "unsafe"
TELLING = Telling(
    "gradients that are equal on all ranks", once=True, silences=("DDP319",), clears_beside=("DDP202", "DDP206")
)

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
    class Trainer:
        def __init__(self, model):
            self.raw = model
            self.model = DDP(model)

        def step(self, x):
            self.model(x).sum().backward()
            self.raw.eval()
            with torch.no_grad():
                print(self.raw(x), self.raw.embed(x))

    from models import build

    Trainer(build()).step(torch.ones(2, 4))
    """,
    """
    encoder = torch.nn.Linear(4, 1)
    wrapped = DDP(encoder)
    loss = wrapped(torch.ones(2, 4)).sum() + wrapped.module(torch.ones(2, 4)).sum()
    loss.backward()
    """,
    """
    from losses import reconstruction

    (reconstruction(ddp, torch.ones(2, 4)) + ddp.module.penalty(torch.ones(1))).backward()
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
    class Trainer:
        def __init__(self, model):
            self.raw = model
            self.model = DDP(model)

        def step(self, x):
            self.raw(x).sum().backward()  # expect

    from models import build

    Trainer(build()).step(torch.ones(2, 4))
    """,
    """
    class Coder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)

        def encode(self, x):
            return self.encoder(x)

        def decode(self, hidden):
            return self.decoder(hidden)

    wrapped = DDP(Coder())
    for step in range(3):
        hidden = wrapped.module.encode(torch.ones(2, 4))  # expect
        loss = wrapped.module.decode(hidden).sum()
        loss.backward()
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
    backwards = program.facts(facts.Backward)
    if not backwards or _reduced_by_hand(program):
        return
    if not program.facts(facts.Step) and program.mentions(mentions.THROWN_AWAY):
        return  # a benchmark: its gradients are thrown away
    forwards = program.facts(facts.Forward)
    outputs = {id(model) for fact in backwards for model in _models_behind(fact)}
    for wrap in program.facts(facts.Wrap):
        if wrap.name != "ddp":
            continue
        wrapper = wrap.wrapper[0]
        if any(wrapper in bare(fact.model) for fact in forwards if Flag.NO_GRAD not in fact.flags):
            continue
        if any(_may_go_through(fact.loss, wrapper) for fact in backwards):
            continue
        # Where not all is known that a loss was computed from, the wrapper may be among the rest.
        sure = all(is_whole(reaching(fact.loss)) for fact in backwards)
        for inner in bare(wrapper.inner):
            bypass = _bypassing([*forwards, *program.facts(facts.PastWrapper)], inner)
            if bypass is not None and id(inner) in outputs and bypass.order > wrap.order:
                is_forward = isinstance(bypass, facts.Forward)
                what = (
                    "this training forward" if is_forward else f"`{bypass.name}` of the model inside DDP, trained here,"
                )
                yield propose(
                    program,
                    bypass,
                    ERROR if sure else WARNING,
                    f"{what} bypasses DistributedDataParallel: gradients are never averaged over ranks",
                    evidence=(place(wrap.site, "the model is wrapped here"),),
                    fix=_fix(program, bypass, wrapper) if is_forward else None,
                    rests_on=(wrap,),
                )


def _fix(program: Program, bypass: Fact, wrapper: Wrapper) -> Fix | None:
    """Call the wrapper by the name that it has there."""
    from validate_ddp.interpreter.surroundings import call_at, held_by_names
    from validate_ddp.source.traversal import dotted

    path, span = bypass.site.path, bypass.site.span
    body = program.body(path)
    call = call_at(body, span)
    name = None if call is None else dotted(call.func)
    if call is None or name is None:
        return None
    there = next(held_by_names(body, bypass, lambda value: value == (wrapper,)), None)
    new = name.removesuffix(".module") if name.endswith(".module") else there
    if new is None or new == name:
        return None
    callee = Span(span.line, span.column, span.line, span.column + len(name.encode()))
    return Fix(f"call the wrapper: `{new}(...)`", False, (Edit("replace", path, callee, new),))


def _may_go_through(loss: Value, wrapper: Wrapper) -> bool:
    """Whether the wrapper, or an object that holds it, was handed to something out of sight that gave the loss."""
    parts = reaching(loss)
    holders = [part for part in parts if isinstance(part, Instance)]
    held = [value for holder in holders for value in (holder.given, *holder.fields.values())]
    return any(part is wrapper for value in (parts, *held) for part in reaching(value))


def _bypassing(forwards: Sequence[facts.Forward | facts.PastWrapper], inner: Any) -> Fact | None:
    if not isinstance(inner, (Instance, Opaque)):
        return None
    for fact in forwards:
        if inner in bare(fact.model) and Flag.NO_GRAD not in fact.flags:
            return fact
    return None


def _models_behind(backward: facts.Backward) -> list[Any]:
    """The models whose output the loss was computed from."""
    found = []
    for part in reaching(backward.loss):
        if isinstance(part, Output):
            found.extend(bare(part.model))
    return found


def _reduced_by_hand(program: Program) -> bool:
    """Whether gradients go through a collective of the script's own."""
    return bool(together.averages_by_hand(program)) or any(
        fact.name.startswith(("all_reduce", "allreduce", "reduce", "_all_reduce"))
        for fact in program.facts(facts.Collective)
        if any(GRADIENT.matches(getattr(atom, "name", "")) for atom in fact.arguments)
    )


def observe(run: Run) -> Seen:
    """Gradients that are averaged by hand are equal, and so no finding."""
    for number, count, update in wrapped_steps(run):
        if not update.backwards:
            continue
        if update.forwards:
            yield Well()
            continue
        equal = agree(run, number, count, "grads", wrapped=True)
        for call in update.bypasses:
            yield Well(call.site, held=False) if equal else Unclear(call.site)
        # Of equal samples gradients are equal, whether anything reduces them or not.
        if equal and read_apart(run):
            yield Well()
        names = differing(run, number, count, "grads", wrapped=True)
        if names:
            last = (update.bypasses or update.backwards)[-1]
            how = "calls the module inside DDP" if update.bypasses else "never calls the DDP wrapper"
            message = (
                f"the training forward {how}: at step {count} the gradients of {len(names)} parameters differ "
                "between ranks, nothing has reduced them"
            )
            yield Observation(ERROR, last.site, message, (), tuple(run.ranks))
