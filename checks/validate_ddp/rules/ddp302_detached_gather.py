"""A collective without a gradient stands in the way of a training loss.

## What it does
Follows what a training model's output becomes: through `dist.all_gather`, `accelerator.gather` or a raw
`dist.all_reduce`, through functions and containers, into the loss of a `backward()`.

## Why is this bad?
Autograd does not see these collectives: the gathered tensor has the right value and no gradient. A loss term made of it
alone trains nothing. A loss of local rows against gathered ones has a gradient of the wrong size and direction: the
share of every sample as somebody else's negative is missing. Nothing fails, and the loss looks right.

Own rows put back among the gathered ones (`gathered[rank] = x`) give the right direction and exactly one part in
world_size of the size, after DistributedDataParallel's mean: advice, as optimizers like Adam do not mind. So does a
loss divided by the world size after a raw `all_reduce`.

## Example
```python
parts = [torch.zeros_like(z) for _ in range(world_size)]
dist.all_gather(parts, z)
loss = contrastive(z, torch.cat(parts))
```

## Use instead
```python
class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]

loss = contrastive(z, AllGather.apply(z))
```

## References
- [Accelerate issue 1154: gather drops the gradient](https://github.com/huggingface/accelerate/issues/1154)
- [torch.distributed.nn.functional](https://github.com/pytorch/pytorch/blob/main/torch/distributed/nn/functional.py)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts, gradients
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.names_of_training import GATHERS
from validate_ddp.interpreter.objects import Gathered, Output
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Shell
from validate_ddp.interpreter.values import Class, Instance, Site, bare, reaching
from validate_ddp.record.run import Run
from validate_ddp.record.run import Site as CallSite
from validate_ddp.record.verdict import Note, Observation, Seen
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Gather
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"

HEAD = """
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DDP(torch.nn.Linear(4, 4))
    batch, labels = torch.ones(8, 4), torch.arange(8)

    def gather(tensor):
        parts = [torch.zeros_like(tensor) for _ in range(world_size)]
        dist.all_gather(parts, tensor)
        return torch.cat(parts)
"""
VALID = (
    """
    loss = F.cross_entropy(model(batch), labels)
    logged = gather(loss.unsqueeze(0)).mean().item()
    hits = gather(model(batch).argmax(1)).sum()
    loss.backward()
    print(logged, hits)
    """,
    """
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            parts = [torch.zeros_like(tensor) for _ in range(world_size)]
            dist.all_gather(parts, tensor)
            return torch.cat(parts)

        @staticmethod
        def backward(ctx, grad):
            dist.all_reduce(grad)
            return grad.chunk(world_size)[rank]

    z = model(batch)
    loss = (z @ Gather.apply(z).T).mean()
    loss.backward()
    """,
    """
    from torch.distributed.nn.functional import all_gather

    z = model(batch)
    loss = (z @ torch.cat(all_gather(z)).T).mean()
    loss.backward()
    """,
    """
    queue = torch.zeros(4, 64)
    q = model(batch)
    with torch.no_grad():
        keys = gather(model(batch))
    queue = torch.cat([queue, keys.T], 1)
    loss = (q @ queue).mean()
    loss.backward()
    negatives = gather(model(batch).detach())
    (q @ negatives.T).mean().backward()
    """,
    """
    loss = F.cross_entropy(model(batch), labels)
    loss.backward()
    reduced = loss.clone()
    dist.all_reduce(reduced)
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    print(reduced / world_size)
    """,
    """
    z = model(batch)
    count = torch.tensor(float(len(z)))
    dist.all_reduce(count)
    loss = z.sum() / count * world_size
    loss.backward()
    """,
)
INVALID = (
    """
    z = model(batch)
    logits = z @ gather(z).T  # expect
    loss = F.cross_entropy(logits, labels + rank * 8)
    loss.backward()
    """,
    """
    def spread(z):
        everybody = gather(z)  # expect
        return torch.pdist(everybody).pow(2).mul(-2).exp().mean().log()

    z = model(batch)
    loss = F.cross_entropy(z, labels) + 0.1 * spread(z)
    loss.backward()
    """,
    """
    # alone
    from accelerate import Accelerator

    class Contrast(torch.nn.Module):
        def forward(self, images, texts):
            texts = accelerator.gather(texts)  # expect
            return torch.nn.functional.cross_entropy(images @ texts.T, torch.arange(len(images)))

    accelerator = Accelerator()
    model = torch.nn.Linear(4, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    contrast = Contrast()
    for step in range(3):
        optimizer.zero_grad()
        loss = contrast(model(torch.ones(8, 4)), model(torch.zeros(8, 4)))
        accelerator.backward(loss)
        optimizer.step()
    accelerator.end_training()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each place where the gradient of a loss is lost."""
    reported = set()
    backwards = program.facts(facts.Backward)
    for fact in program.facts(facts.Gather):
        mark = fact.result[0]
        for backward in backwards:
            verdict = _verdict(fact, mark, backward)
            reach = _place(fact)
            if verdict is None or fact.order > backward.order or (reach.path, reach.statement) in reported:
                continue
            reported.add((reach.path, reach.statement))
            severity, message = verdict
            evidence = [place(fact.site, f"`{fact.name}` is called here")] if reach is not fact.site else []
            output = mark.of[0]
            evidence += [
                place(output.site, "the model's output, which has a gradient"),
                place(backward.site, "the loss is differentiated here"),
            ]
            yield propose(program, fact.moved(reach), severity, message, evidence=evidence, rests_on=(backward,))


def _verdict(fact: Fact, mark: Gathered, backward: facts.Backward) -> tuple[str, str] | None:
    """Severity and message for one gathered tensor and one loss; None where all is well between them."""
    loss = backward.loss
    is_term, is_part = mark in gradients.terms(loss), mark in gradients.marks(loss)
    if not (is_term or is_part):
        return None
    scaled = gradients.is_rescaled(loss, mark, "scaled")
    doubted = fact.hangs_on_unknown or any(_hides_gradients(output) for output in mark.of)
    if mark.reduced:
        if mark.mixed:
            return (
                INFO if doubted else WARNING,
                f"autograd does not see `{fact.name}`: the gradient of this loss through it is this rank's share alone",
            )
        if not scaled and (mark.divided or gradients.is_rescaled(loss, mark, "divided")):
            return (
                INFO,
                f"autograd does not see `{fact.name}`: divided by the world size and then averaged by DDP, the "
                "gradient is 1/world_size of the right one",
            )
        return None
    if mark.restored:
        advice = "with the own rows put back among the gathered ones, DDP's mean makes the gradient 1/world_size"
        return None if scaled else (INFO, advice + " of the right one")
    if is_part and any(output in mark.of for output in gradients.live(loss)):
        return (
            INFO if doubted else WARNING,
            f"`{fact.name}` passes no gradient: this loss lacks the share that goes through the gathered rows, so its "
            "gradient is wrong in size and direction",
        )
    doubted = doubted or (not is_term and len(reaching(loss)) >= _MOST_TOLD)
    return (
        INFO if doubted else ERROR,
        f"`{fact.name}` passes no gradient: this part of the loss trains nothing",
    )


_MOST_TOLD = 10
"""A loss that so much went into may hold an output that the walk no longer tells of."""


def _hides_gradients(output: Output) -> bool:
    """Whether the model itself takes gradients off some of what it returns: then it may have done so here."""
    for wrapper in bare(output.model):
        for inner in bare(wrapper.inner) if isinstance(wrapper, Shell) else ():
            if isinstance(inner, Instance):
                names = {name for base in inner.cls.lineage() if isinstance(base, Class) for name in base.node.words}
                if names & {"no_grad", "detach", "stop_gradient", "inference_mode"}:
                    return True
    return False


def _place(fact: Fact) -> Site:
    """The call of the helper around the collective, where the code says what it gathers; else the collective."""
    site = fact.site
    for call in reversed(fact.chain):
        if not GATHERS.matches(site.function):
            break
        site = call
    return site


_OWN = (
    ", with this rank's own rows put back: unless it is scaled by the world size, the gradient is that of one process "
    "divided by it"
)
_NONE = ", which has no gradient: the loss has the value of the global batch, and another gradient"


def observe(run: Run) -> Seen:
    """The own rows put back among the gathered ones carry a gradient, of 1 over the world size: info. Without such an
    event nothing is known: only gathers of what needs a gradient are followed."""
    for rank, event in run.each(protocol.Gathered):
        site = _in_training_step(event.site, event.backward)
        severity = INFO if event.own else ERROR
        message = f"the loss is made of what `{event.op}` gathered" + (_OWN if event.own else _NONE)
        notes = (Note(event.site, "gathered here"),) if event.site.place != site.place else ()
        yield Observation(severity, site, message, notes, (rank,), event.site)


def _in_training_step(gather: CallSite, backward: CallSite) -> CallSite:
    """The line of the function that calls backward: a helper that gathers is right for other uses."""
    functions = {(frame.path, frame.function) for frame in backward.frames if not frame.library}
    for frame in gather.frames:
        if (frame.path, frame.function) in functions:
            return CallSite((frame,))
    return gather
