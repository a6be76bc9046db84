"""Every rank decides by the result of a collective that one rank has.

## What it does
Looks for `torch.distributed.reduce` of a tensor by which all ranks then decide: whether a loop ends, the model runs,
the optimizer steps or another collective is called, or how a schedule of the learning rate goes on.

## Why is this bad?
`reduce` leaves the result on the rank `dst`; on the others the tensor holds an intermediate sum, or their own number.
One rank leaves the loop, and the others wait in the next collective for ever; or the learning rates part, and the
replicas with them. With two ranks and similar losses it may go well for days.

Where a condition that reading cannot decide lies around it, or a name alone says on which ranks, this is a warning.

## Example
```python
dist.reduce(loss, dst=0)
if loss.item() / world_size > limit:
    break
```

## Use instead
```python
dist.all_reduce(loss)
if loss.item() / world_size > limit:
    break
```

## References
- [torch.distributed.reduce](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.surroundings import statement_at
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import reaching
from validate_ddp.rules.proposing import place, propose
from validate_ddp.source.syntax import Break, Continue, If, Return

TRIGGER = facts.RootedDecision
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "S"
FIX = "-"

HEAD = """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    sampler = DistributedSampler(range(8))
    loader = DataLoader(range(8), sampler=sampler)
"""
VALID = (
    """
    # Told by the rank that has it.
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.reduce(total, dst=0)
        if rank == 0:
            print(total.item())
            if total.item() > 9:
                print("it is large")
    """,
    """
    # Every rank has it.
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if total.item() > 9:
            break
    """,
    """
    # Sent on to the others before they decide.
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.reduce(total, dst=0)
        dist.broadcast(total, src=0)
        if total.item() > 9:
            break
    """,
    """
    # The decision of the rank that has it is everybody's.
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.reduce(total, 0)
        stop = [rank == 0 and total.item() > 9]
        dist.broadcast_object_list(stop, src=0)
        if stop[0]:
            break
    """,
    """
    # All ranks ask, but only the one that has it goes by the answer.
    best = 9.0
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.reduce(total, 0)
        if total.item() < best:
            best = total.item()
            if rank == 0:
                torch.save(model.module.state_dict(), "best.pt")
    """,
    """
    # A number that is not finite makes the job end.
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.reduce(total, 0)
        if torch.isnan(total):
            raise ValueError("not a number")
    """,
)
INVALID = (
    """
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.reduce(total, dst=0)
        if total.item() > 9:  # expect
            break
    """,
    """
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.reduce(total, 0)
        plateau.step(total.item())  # expect
    """,
    """
    def mean(number):
        number = number.clone()
        dist.reduce(number, dst=0, op=dist.ReduceOp.SUM)
        return number / dist.get_world_size()

    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        average = mean(loss.detach())
        if average < 9:  # expect
            loss.backward()
        optimizer.step()
    """,
)

_ACTING = (facts.Collective, facts.Backward, facts.Step, facts.ScheduleStep)
"""What goes wrong where some ranks do it and others do not."""
_SENDING = ("broadcast", "all_", "scatter", "allgather", "allreduce", "bcast", "gather_for", "Bcast", "All")


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such decision."""
    reported = set()
    for fact in program.facts(facts.RootedDecision):
        if fact.who != "all" or fact.site in reported or not program.runs_on_many(fact):
            continue
        if any(_sent(program, part, fact) for part in fact.result):
            continue
        acts = fact if fact.name == "step" else _hanging(program, fact)
        if acts is None:
            continue
        reported.add(fact.site)
        evidence = [place(fact.result[0].site, "one rank has the result of this")]
        if acts is not fact:
            evidence.append(place(acts.site, "some ranks come here, and others do not"))
        proposal = propose(
            program,
            fact,
            WARNING if fact.hangs_on_unknown else ERROR,
            "all ranks decide by the result of `reduce`, which one of them has: they part ways; call `all_reduce`",
            evidence=evidence,
        )
        yield proposal if fact.name == "step" else proposal._replace(expects=("place", ""))


def _sent(program: Program, part: object, fact: Fact) -> bool:
    """Whether the ranks that have it send it to the others, before they decide."""
    return any(
        other.order < fact.order
        and other.name.startswith(_SENDING)
        and any(part is sent for sent in reaching(other.arguments))
        for other in program.facts(facts.Collective)
    )


def _hanging(program: Program, decision: Fact) -> Fact | None:
    """What all ranks that pass the condition do, and only they; or what those miss who leave the loop by it."""
    acting = program.facts(*_ACTING)
    asked = decision.site.path, decision.site.statement
    under = (act for act in acting if any((guard.site.path, guard.site.statement) == asked for guard in act.guards))
    found = next((act for act in under if act.who == "all"), None)
    if found is None and decision.loops and _leaves(program, decision):
        turn = decision.loops[-1].serial
        found = next(
            (act for act in acting if act.who == "all" and any(turn == loop.serial for loop in act.loops)), None
        )
    return found


def _leaves(program: Program, decision: Fact) -> bool:
    """Whether the condition ends the loop that it stands in, or a turn of it."""
    node = statement_at(program.body(decision.site.path), decision.site.statement)
    own = decision.loops[-1].site
    return (
        isinstance(node, If)
        and (own.path, own.function) == (decision.site.path, decision.site.function)
        and any(body and isinstance(body[-1], (Break, Continue, Return)) for body in (node.body, node.orelse))
    )
