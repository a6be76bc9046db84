"""The optimizer or the learning rate schedule steps on some ranks only.

## What it does
Looks for `step()` of an optimizer, a gradient scaler or a schedule that a condition on the rank leaves to some ranks,
in a loop in which every rank computes gradients.

## Why is this bad?
DistributedDataParallel averages gradients, and nothing else: the replicas stay equal because each takes the same steps
from the same start. A rank that does not step keeps its old weights; one whose schedule stands still takes steps of
another length. The replicas drift apart, each computes gradients of another model, and only the weights of the rank
that saves are ever seen. Nothing fails.

Where only a name says on which ranks it steps, or what steps, this is a warning.

An average of the weights (EMA) may be kept on one rank, if only that one uses it: of it nothing is said.

## Example
```python
optimizer.step()
if rank == 0:
    scheduler.step()
    print(scheduler.get_last_lr())
```

## Use instead
```python
optimizer.step()
scheduler.step()
if rank == 0:
    print(scheduler.get_last_lr())
```

## References
- [DistributedDataParallel: internal design](https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.objects import Batch
from validate_ddp.interpreter.ranks import PARTIAL, complementary, phrase
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Optimizer, Prepared
from validate_ddp.interpreter.values import bare, reaching
from validate_ddp.rules.proposing import kept_apart, place, propose

TRIGGER = facts.Backward
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "S"
FIX = "-"

HEAD = """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
"""
VALID = (
    """
    for batch in torch.ones(3, 2, 4):
        model(batch).sum().backward()
        optimizer.step()
        scheduler.step()
        if rank == 0:
            print(scheduler.get_last_lr())
    """,
    """
    # The average is of one rank, which alone evaluates it.
    import copy

    ema = copy.deepcopy(model.module)
    for batch in torch.ones(3, 2, 4):
        model(batch).sum().backward()
        optimizer.step()
        if rank == 0:
            for old, new in zip(ema.parameters(), model.parameters()):
                old.data.lerp_(new.data, 0.1)
    """,
    """
    # One rank fits a probe of its own.
    for batch in torch.ones(3, 2, 4):
        model(batch).sum().backward()
        optimizer.step()
        if rank == 0:
            probe = nn.Linear(4, 1)
            fitted = torch.optim.SGD(probe.parameters(), lr=0.1)
            probe(batch).sum().backward()
            fitted.step()
    """,
    """
    # Both step, each in its branch.
    for batch in torch.ones(3, 2, 4):
        model(batch).sum().backward()
        if rank == 0:
            optimizer.step()
            print("stepped")
        else:
            optimizer.step()
    """,
    """
    # One rank steps for all, and sends the weights round.
    for batch in torch.ones(3, 2, 4):
        model(batch).sum().backward()
        if rank == 0:
            optimizer.step()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
    """,
    """
    # Each rank steps its own part of the parameters, which all then gather.
    own = torch.optim.SGD(list(model.parameters())[rank::2], lr=0.1)
    for batch in torch.ones(3, 2, 4):
        model(batch).sum().backward()
        if rank < 2:
            own.step()
        dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1))
    """,
    """
    # The schedule's decision is one rank's, and its rate is sent round.
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        if rank == 0:
            plateau.step(loss.item())
        rate = [optimizer.param_groups[0]["lr"]]
        dist.broadcast_object_list(rate, src=0)
        optimizer.param_groups[0]["lr"] = rate[0]
    """,
)
INVALID = (
    """
    for batch in torch.ones(3, 2, 4):
        model(batch).sum().backward()
        optimizer.step()
        if rank == 0:
            scheduler.step()  # expect
    """,
    """
    def train_epoch(epoch):
        for batch in torch.ones(3, 2, 4):
            optimizer.zero_grad()
            model(batch).sum().backward()
            if rank != 0:
                continue
            optimizer.step()  # expect

    for epoch in range(3):
        train_epoch(epoch)
        scheduler.step()
    """,
    """
    # alone
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    for batch in torch.ones(3, 2, 4):
        loss = model(batch).sum()
        accelerator.backward(loss)
        optimizer.step()
        if accelerator.is_main_process:
            print(loss.item())
            scheduler.step()  # expect
    """,
    """
    scaler = torch.amp.GradScaler("cpu")
    for batch in torch.ones(3, 2, 4):
        scaler.scale(model(batch).sum()).backward()
        if dist.get_rank() == 0:
            scaler.step(optimizer)  # expect
            scaler.update()
    """,
)

_SENDING = ("broadcast", "scatter", "bcast", "Bcast")
_JOINING = ("all_", "allgather", "allreduce", "Allgather", "Allreduce", "reduce")
"""What may make the ranks equal again after one has stepped: the second where it is given no numbers of a batch."""


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such step."""
    backwards = program.facts(facts.Backward)
    steps = program.facts(facts.Step, facts.ScheduleStep)
    reported = set()
    for fact in steps:
        if fact.who not in PARTIAL or fact.who == "some" or fact.site in reported:
            continue
        backward = next((other for other in backwards if other.who == "all" and _in_one_loop(fact, other)), None)
        if backward is None or not program.runs_on_many(fact) or not _is_trained_by_all(program):
            continue
        if any(_of_these(fact, other) for other in backwards):
            continue  # those ranks train something of their own
        if any(fact.same_fork(other) and complementary(fact.who, other.who) for other in steps):
            continue
        if any(_sends(other, fact) for other in program.facts(facts.Collective)):
            continue
        reported.add(fact.site)
        what = "the optimizer" if isinstance(fact, facts.Step) else "the learning rate schedule"
        yield propose(
            program,
            fact,
            ERROR,
            f"{what} steps on {phrase(fact.who)}, while every rank computes gradients: the replicas drift apart",
            evidence=[*kept_apart(fact), place(backward.site, "every rank computes gradients here")],
            rests_on=[backward],
            guessed=isinstance(fact, facts.Step) and not _is_known(fact),
        )


def _in_one_loop(fact: Fact, other: Fact) -> bool:
    turns = {loop.serial for loop in fact.loops}
    return any(loop.serial in turns for loop in other.loops)


def _of_these(fact: Fact, backward: facts.Backward) -> bool:
    """Whether the ranks that step also have gradients computed that others have not."""
    return backward.who in PARTIAL and _in_one_loop(fact, backward)


def _is_trained_by_all(program: Program) -> bool:
    """Whether something averages gradients over the ranks: each may else train a model of its own."""
    return any(fact.name != "dp" for fact in program.facts(facts.Wrap))


def _sends(collective: facts.Collective, fact: Fact) -> bool:
    """Whether the ranks may be made equal after the step, in each turn of a loop around both."""
    if collective.order < fact.order or collective.wrapper or not _in_one_loop(fact, collective):
        return False
    if collective.name.startswith(_JOINING):
        return not any(isinstance(part, Batch) for part in reaching(collective.arguments))
    return collective.name.startswith(_SENDING)


def _is_known(fact: facts.Step) -> bool:
    """Whether what steps is surely an optimizer, and not just called one."""
    held = list(bare(fact.optimizer))
    held += [inner for atom in held if isinstance(atom, Prepared) for inner in bare(atom.inner)]
    return any(isinstance(atom, Optimizer) for atom in held)
