"""`no_sync()` around the backward alone does nothing; around every forward it stops all reduction.

## What it does
Looks for a backward under `no_sync()` whose forward ran outside of it, and for a program whose every training forward
of a DistributedDataParallel model is under `no_sync()`. Of a model that is sharded in place, a rehearsal looks for a
step for which no parameter has a gradient, though a backward went before it and at other steps they have one.

## Why is this bad?
DistributedDataParallel decides in its `forward` whether the backward that follows reduces gradients. `no_sync()` that
holds only the backward saves nothing: each backward still reduces. And where no forward ever runs outside of
`no_sync()`, gradients are never reduced: the ranks train models of their own, without any error.

## Example
```python
loss = criterion(model(x), y)
with model.no_sync():
    loss.backward()
```

## Use instead
```python
with model.no_sync():
    loss = criterion(model(x), y)
    loss.backward()
```

## References
- [DistributedDataParallel.no_sync](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.accumulation import gradients_reduced_by_hand
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import bare
from validate_ddp.record.run import Run
from validate_ddp.record.updates import (
    Update,
    agree,
    averaged_by_hand,
    differing,
    parameters,
    updates,
    wrapped_steps,
)
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Backward
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling("a backward that reduces nothing", once=True, silences=("DDP304", "DDP319"))

_UNDER = frozenset({Flag.NO_SYNC, Flag.PERHAPS_NO_SYNC})

HEAD = """
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(2, 4)] * 8
    k = 4

    def loss_of(batch):
        return model(batch).sum()
"""
VALID = (
    """
    for i, batch in enumerate(batches):
        if (i + 1) % k:
            with model.no_sync():
                model(batch).sum().backward()
            continue
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """,
    """
    for i, batch in enumerate(batches):
        last = (i + 1) % k == 0
        with nullcontext() if last else model.no_sync():
            loss_of(batch).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    """,
    """
    for i, batch in enumerate(batches):
        if (i + 1) % k == 0:
            loss_of(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with model.no_sync():
                loss_of(batch).backward()
    """,
    """
    for batch in batches:
        with model.no_sync():
            model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    """,
)
INVALID = (
    """
    for i, batch in enumerate(batches):
        loss = model(batch).sum()
        if (i + 1) % k:
            with model.no_sync():
                loss.backward()  # expect
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """,
    """
    for batch in batches:
        with model.no_sync():
            loss = model(batch).sum()  # expect
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    """,
    """
    def accumulate(net, batch):
        output = net(batch)
        with net.no_sync():
            output.sum().backward()  # expect

    for step in range(4):
        accumulate(model, batches[0])
        model(batches[1]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """,
    """
    for i, batch in enumerate(batches):
        loss = model(batch).sum()
        last = (i + 1) % k == 0
        with nullcontext() if last else model.no_sync():
            loss.backward()  # expect
        if last:
            optimizer.step()
            optimizer.zero_grad()
    """,
    """
    for i, batch in enumerate(batches):
        with nullcontext() if i % k == k else model.no_sync():
            model(batch).sum().backward()  # expect
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such backward, or for the first forward of a wrapper that is never reduced."""
    backwards = [fact for fact in program.facts(facts.Backward) if Flag.NO_GRAD not in fact.flags]
    forwards = [fact for fact in program.facts(facts.Forward) if fact.name == "ddp" and Flag.NO_GRAD not in fact.flags]
    if not backwards or not forwards:
        return
    yield from _without_effect(program, backwards, forwards)
    if gradients_reduced_by_hand(program) or not program.facts(facts.Step):
        return
    for wrap in program.facts(facts.Wrap):
        wrapper = wrap.wrapper[0]
        own = [fact for fact in forwards if any(atom is wrapper for atom in bare(fact.model))]
        if wrap.name == "ddp" and own and all(Flag.NO_SYNC in fact.flags for fact in own):
            yield propose(
                program,
                own[0],
                INFO if own[0].hangs_on_unknown else ERROR,
                "every training forward of this model is under `no_sync()`: its gradients are never averaged over "
                "ranks",
                evidence=(place(wrap.site, "the model is wrapped here"),),
            )


def _without_effect(
    program: Program, backwards: list[facts.Backward], forwards: list[facts.Forward]
) -> Iterator[Proposal]:
    reported = set()
    for backward in backwards:
        if not backward.flags & _UNDER or backward.site in reported:
            continue
        serials = [loop.serial for loop in backward.loops]
        same = [fact for fact in forwards if [loop.serial for loop in fact.loops] == serials]
        if not same or any(fact.flags & _UNDER for fact in same):
            continue
        if not any(fact.order < backward.order for fact in same):
            continue
        reported.add(backward.site)
        yield propose(
            program,
            backward,
            WARNING,
            "`no_sync()` around the backward alone has no effect: the forward decides, and it ran outside",
            evidence=(place(same[0].site, "this forward has told the backward to reduce"),),
        )


def observe(run: Run) -> Seen:
    """Looks at steps whose gradients differ although the wrapper was called, and at backwards that reduce anyway. Local
    SGD has them differ, and averages the parameters now and then."""
    yield from _idle(run)
    yield from _unarmed(run)
    for number, count, update in wrapped_steps(run):
        training = [event for event in update.forwards if event.grad]
        if not training or not update.backwards:
            continue
        vain = [event for event in update.backwards if event.armed and not event.sync]
        if vain:
            message = "`no_sync()` round the backward alone has no effect: the forward decides, and it was outside"
            notes = (Note(training[-1].site, "the forward, with synchronisation on"),)
            yield Observation(WARNING, vain[0].site, message, notes, (run.ranks[0],))  # dear, and no other gradient
        elif training[-1].sync or averaged_by_hand(run, number) or agree(run, number, count, "grads", wrapped=True):
            yield Well()
        elif _cut_short(run, update):
            yield Unclear()
        elif differing(run, number, count, "grads", wrapped=True):
            reduced = any(event.sync for event in training)
            message = f"at step {count} the gradients differ between ranks: " + (
                "the last forward before it ran under `no_sync()`, and what an earlier one reduced is not all"
                if reduced
                else "every forward before it ran with synchronisation off, so no backward reduces them"
            )
            yield Observation(ERROR, training[-1].site, message, (), tuple(run.ranks))


def _unarmed(run: Run) -> Seen:
    """Lines of backwards in which no wrapper reduces anything, as where the module has a `no_sync()` of its own."""
    held = updates(run, run.ranks[0]) if run.ranks else {}
    backwards = [event for steps in held.values() for update in steps for event in update.backwards]
    armed = {event.site.place for event in backwards if event.armed}
    for site in {event.site.place: event.site for event in backwards}.values():
        if site.place not in armed:
            yield Well(site, held=False)


def _cut_short(run: Run, update: Update) -> bool:
    """Whether a loader was ended before its time by ``--max-steps`` between the last backward and the step: the batch
    with which the script turns synchronisation on, as the last one by ``len``, has not come."""
    last = update.backwards[-1].time
    cut = (event.time for event in run.of(run.ranks[0], protocol.Iterated) if not event.exhausted)
    return any(last < time < update.step.time for time in cut)


def _idle(run: Run) -> Seen:
    """Steps of sharded parameters that have no gradient: FSDP2 gives them one when it reduces, and not before."""
    if len(run.ranks) < run.world_size:
        return
    for number, held in parameters(run, run.ranks[0]).items():
        if not held.mesh:
            continue
        by_rank = [[each for each in updates(run, rank).get(number, []) if each.backwards] for rank in run.ranks]
        idle = [[_has_none(each, held) for each in steps] for steps in by_rank]
        together = [all(row) for row in zip(*idle, strict=False)]
        if all(together):
            continue  # DDP320's
        if any(together):
            step = by_rank[0][together.index(True)].step
            message = (
                f"at step {step.count} none of the {len(held.shapes)} parameters has a gradient: synchronisation was "
                "off in the backwards before it, whose gradients go into the next step"
            )
            alone = len({event.optimizer for event in run.of(run.ranks[0], protocol.Step)}) == 1
            yield Observation(ERROR if alone else WARNING, step.site, message, (), tuple(run.ranks))
        else:
            yield Well()


def _has_none(update: Update, held: protocol.Parameters) -> bool:
    return not update.dropped and (update.step.without or 0) == len(held.shapes)
