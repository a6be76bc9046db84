"""A method or field of the model is asked of DistributedDataParallel, which does not hand it through.

## What it does
Looks for attributes of a wrapped model that only the model inside can have: `ddp.config`, `ddp.generate(x)`. What
every module has (`parameters`, `state_dict`, `train`), what the script puts on the wrapper, and what it asks for with
`hasattr` or in a `try` is left alone. Of Accelerate's wrapper it is a warning: `prepare` wraps on several ranks only,
and an engine in its place hands attributes through. A rehearsal sees the `AttributeError`.

## Why is this bad?
On one rank, where nothing is wrapped, the script works. On several it ends with `'DistributedDataParallel' object has
no attribute 'generate'`; often hours later, as the first evaluation or save is the first to ask.

## Example
```python
model = DistributedDataParallel(model)
model.save_pretrained(folder)
```

## Use instead
```python
model = DistributedDataParallel(model)
model.module.save_pretrained(folder)
```

In training call the wrapper, and have the model's `forward` do what the method did: gradients of `model.module.f(x)`
are not averaged.

## Fix safety
The fix puts `.module` between. It is unsafe: a run in which nothing is wrapped has no `.module`. There is none for
calls with gradients on.

## References
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
- [Accelerator.unwrap_model](https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.unwrap_model)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Edit, Fix, Proposal, Span
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.surroundings import call_at
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Site, constant
from validate_ddp.record.run import Run
from validate_ddp.record.run import Site as CallSite
from validate_ddp.record.verdict import Observation, Seen
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Beyond
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "unsafe"

HEAD = """
    dist.init_process_group("gloo")
    distributed = dist.get_world_size() > 1
    net = Net()
    model = DDP(net)
"""
VALID = (
    """
    print(model.module.layer, net.layer, model.training, model._sync_params)
    model.train()
    model.requires_grad_(True)
    """,
    """
    if hasattr(model, "generate"):
        model.generate()
    if isinstance(model, DDP):
        model.module.embed()
    else:
        model.embed()
    """,
    """
    try:
        model.embed()
    except AttributeError:
        model.module.embed()
    try:
        print(model.module.layer)
    except AttributeError:
        print(model.layer)
    raw = model.module if hasattr(model, "module") else model
    raw.embed()
    getattr(model, "module", model).embed()
    """,
    """
    for step in range(3):
        if step:
            print(model.best)
        model.best = step
    """,
    """
    class Forwarding(DDP):
        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

    print(Forwarding(net).layer)
    """,
    """
    if not distributed:
        model.embed()
    if type(model) is not DDP:
        model.embed()
    """,
    """
    from options import args, sharded

    model = sharded(net) if args.shard else DDP(net)
    if args.wrap:
        net = DDP(net)
    print(model.layer, net.layer)
    """,
    """
    from lightning.fabric import Fabric

    fabric = Fabric(devices=2)
    net = fabric.setup(net)
    print(net.layer)
    """,
)
INVALID = (
    """
    print(model.config)  # expect
    """,
    """
    with torch.no_grad():
        model.generate(torch.ones(1))  # expect
    """,
    """
    class Trainer:
        def __init__(self, model):
            self.model = DDP(model)

        def save(self, path):
            if dist.get_rank() == 0:
                self.model.save_pretrained(path)  # expect

    Trainer(Net()).save("out")
    """,
    """
    from accelerate import Accelerator

    accelerator = Accelerator()
    net = accelerator.prepare(net)
    print(net.layer.weight)  # expect
    accelerator.end_training()
    """,
    """
    model = Net()
    if distributed:
        model = DDP(model)
    for epoch in range(10):
        if epoch % 2 == 0:
            print(model.layer)  # expect
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each attribute, at the first place of each file."""
    told = set()
    for fact in program.facts(facts.Beyond):
        if any(fact.name in wrapper.fields for wrapper in fact.wrapper) or not program.runs_on_many(fact):
            continue
        asked = program.code(fact.site.path, fact.site.span).partition(f".{fact.name}")[0]
        if (fact.site.path, asked, fact.name) in told:
            continue
        told.add((fact.site.path, asked, fact.name))
        wraps = [wrap for wrap in program.facts(facts.Wrap) if wrap.wrapper[0] in fact.wrapper]
        severity = _severity(program, fact, wraps)
        if not severity:
            continue
        body = program.body(fact.site.path)
        trains = call_at(body, fact.site.span) is not None and Flag.NO_GRAD not in fact.flags
        advice = f"the model's is `{asked}.module.{fact.name}`"
        if trains:
            advice += ", whose gradients are not averaged: train through `forward`"
        yield propose(
            program,
            fact,
            severity,
            f"DistributedDataParallel has no `{fact.name}`, and hands none through: AttributeError here; {advice}",
            evidence=[place(wrap.site, "the model is wrapped here") for wrap in wraps[:1]],
            fix=None if trains else _fix(fact, asked),
            rests_on=wraps,
        )._replace(expects=("expression", ""))


def _severity(program: Program, fact: facts.Beyond, wraps: list[facts.Wrap]) -> str:
    """Nothing where a condition, or an error, may ask whether the model is wrapped, or an engine may stand in the
    wrapper's place."""
    if Flag.HANDLER in fact.flags or any(wrap.hangs_on_unknown for wrap in wraps):
        return ""
    if fact.hangs_on_unknown and any(not guard.exact and not _counts(program, guard.site) for guard in fact.guards):
        return ""
    if all(constant(wrapper.fields.get("flavour", ())) == "torch" for wrapper in fact.wrapper):
        return WARNING if fact.hangs_on_unknown else ERROR
    return "" if program.mentions(mentions.ENGINE) else WARNING


def _counts(program: Program, site: Site) -> bool:
    """Whether a condition compares or counts, which none does that asks whether something is wrapped."""
    return any(sign in program.text(site) for sign in ("%", "<", ">"))


def _fix(fact: facts.Beyond, asked: str) -> Fix | None:
    if "\n" in asked or any(constant(each.fields.get("flavour", ())) != "torch" for each in fact.wrapper):
        return None
    span, new = fact.site.span, f"{asked}.module.{fact.name}"
    taken = Span(span.line, span.column, span.line, span.column + len(f"{asked}.{fact.name}".encode()))
    return Fix(f"ask the model inside: `{new}`", False, (Edit("replace", fact.site.path, taken, new),))


_WANTING = re.compile(r"'(?:DistributedDataParallel|DataParallel)' object has no attribute '(\w+)'")


def observe(run: Run) -> Seen:
    """What the wrapper was asked for in vain."""
    for rank, event in run.each(protocol.UncaughtException):
        wanting = _WANTING.search(event.message)
        if wanting is not None and event.own is not None:
            message = (
                f"the wrapper has no `{wanting[1]}`, and hands none through: ask `.module`, or in training do it in "
                "`forward`"
            )
            yield Observation(ERROR, CallSite((event.own,)), message, (), (rank,))
