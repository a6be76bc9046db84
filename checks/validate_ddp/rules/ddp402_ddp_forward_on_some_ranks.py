"""A DistributedDataParallel model is run forward on some ranks only.

## What it does
Looks for a call of the wrapper, not of `.module`, under a condition on the rank.

## Why is this bad?
Before a forward, DistributedDataParallel broadcasts the model's buffers (BatchNorm statistics, codebooks) from rank
zero. With buffers, a forward that rank zero runs alone waits for the others, or pairs with their next broadcast and
shifts all that follow by one. Without buffers it works, until somebody adds a BatchNorm.

Not reported is a forward that follows one which every rank ran under `no_grad`: the wrapper then skips its next
broadcast.

## Example
```python
if rank == 0:
    validate(ddp_model)
```

## Use instead
```python
if rank == 0:
    validate(ddp_model.module)
dist.barrier()
```

## References
- [DistributedDataParallel: broadcast_buffers](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.ranks import PARTIAL, complementary, phrase
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Shell, Wrapper
from validate_ddp.interpreter.values import Instance, bare, constant
from validate_ddp.record.culprits import FORWARD, observations
from validate_ddp.record.run import Run
from validate_ddp.record.sequences import met
from validate_ddp.record.verdict import Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import kept_apart, place, propose

TRIGGER = facts.Forward
SEVERITIES = (WARNING, INFO, ERROR)  # error: a rehearsal has hung on it
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling(
    "every rank call it, equally often, or a model without buffers, which waits for nobody",
    diverges_before=("DDP404",),
)

HEAD = """
    dist.init_process_group("gloo")
    model = DDP(torch.nn.BatchNorm1d(4))
"""
VALID = (
    """
    if dist.get_rank() == 0:
        model.module(torch.ones(2, 4))
    """,
    """
    output = model(torch.ones(2, 4))
    if dist.get_rank() == 0:
        print(output)
    """,
    """
    # alone
    dist.init_process_group("gloo")
    model = DDP(torch.nn.BatchNorm1d(4), broadcast_buffers=False)
    if dist.get_rank() == 0:
        model(torch.ones(2, 4))
    dist.destroy_process_group()
    """,
)
INVALID = (
    """
    if dist.get_rank() == 0:
        model(torch.ones(2, 4))  # expect
    """,
    """
    @torch.no_grad()
    def validate(net):
        net.eval()
        return net(torch.ones(2, 4))

    for epoch in range(2):
        model(torch.ones(2, 4)).sum().backward()
        if dist.get_rank() == 0:
            validate(model)  # expect
    """,
    """
    def evaluate(net):
        if dist.get_rank() > 0:
            return None
        return net(torch.ones(2, 4))  # expect

    evaluate(model)
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such forward."""
    forwards = [fact for fact in program.facts(facts.Forward) if fact.name == "ddp"]
    reported = set()
    for fact in forwards:
        reach = fact.under_split
        if fact.who not in PARTIAL or reach in reported or _is_harmless(fact):
            continue
        if any(fact.same_fork(other) and complementary(fact.who, other.who) for other in forwards):
            continue
        if any(_follows_evaluation(fact, other) for other in forwards):
            continue
        reported.add(reach)
        wrapper = next(atom for atom in bare(fact.model) if isinstance(atom, Shell))
        inside = [] if reach is fact.site else [place(fact.site, "it is run here")]
        yield propose(
            program,
            fact.moved(reach),
            INFO if fact.is_open or _may_be_bare(program, wrapper) or _seems_bufferless(program, wrapper) else WARNING,
            f"the DistributedDataParallel model is run on {phrase(fact.who)}: with buffers, its broadcast waits for "
            "the others; call `.module` here",
            evidence=[*kept_apart(fact), *inside, place(wrapper.site, "the model is wrapped here")],
        )


def _may_be_bare(program: Program, wrapper: Shell) -> bool:
    """Whether the model is wrapped under a condition that cannot be decided, as it may be unwrapped under the same; or
    by a launcher, which the program may tell to make an engine of it, whose forward does not broadcast."""
    if constant(wrapper.fields.get("flavour", ())) in ("accelerator", "fabric") and program.mentions(mentions.ENGINE):
        return True
    return any(fact.hangs_on_unknown for fact in program.facts(facts.Wrap) if wrapper in fact.wrapper)


def _seems_bufferless(program: Program, wrapper: Shell) -> bool:
    """Whether the model's class is in sight, and no file of the program names what brings buffers along."""
    inner = bare(wrapper.inner)
    in_sight = bool(inner) and all(isinstance(atom, Instance) for atom in inner)
    return in_sight and not program.mentions(mentions.BUFFERS)


def _follows_evaluation(fact: facts.Forward, other: facts.Forward) -> bool:
    """Whether every rank has just run the model without gradients: the wrapper then skips its next broadcast."""
    split = fact.split
    return (
        split is not None
        and other.who == "all"
        and other.order < fact.order
        and Flag.NO_GRAD in other.flags
        and other.chain[: split.depth] == fact.chain[: split.depth]
        and bare(other.model) == bare(fact.model)
    )


def _is_harmless(fact: facts.Forward) -> bool:
    """apex's wrapper has no collective in its forward; without broadcast_buffers torch's has none either."""
    for atom in bare(fact.model):
        if isinstance(atom, Wrapper):
            if constant(atom.flavour) == "apex" or constant(atom.broadcast_buffers) is False:
                return True
    return False


def observe(run: Run) -> Seen:
    """Looks where the sequences of calls of two ranks first differ."""
    yield from observations(run, FORWARD, WARNING, "a forward of the wrapper that not every rank makes")
    harmless = _harmless(run)
    yield from (Well(protocol.Site((frame,)), held=False) for frame in harmless)
    lines = {(frame.path, frame.line) for frame in harmless}
    looked = any(event.waits for _, event in run.each(protocol.Forward))
    for each in met(run, protocol.Forward, looked):
        if not isinstance(each, Unclear) or each.site is None or each.site.place not in lines:
            yield each


def _harmless(run: Run) -> set[protocol.Frame]:
    """Lines on the way to evaluations that have nothing to send, as their model has no buffers, and to no others."""
    bare = {(rank, event.ddp) for rank, event in run.each(protocol.Ddp) if not event.buffers}
    ways: dict[bool, set[protocol.Frame]] = {False: set(), True: set()}
    for rank, event in run.each(protocol.Forward):
        silent = (rank, event.ddp) in bare and not event.grad
        ways[silent].update(frame for frame in event.site.frames if not frame.library)
    return ways[True] - ways[False]
