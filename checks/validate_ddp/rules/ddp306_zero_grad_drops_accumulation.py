"""Gradients that are accumulated for a later step are zeroed before it.

## What it does
Looks for `zero_grad()` in every turn of a loop whose optimizer steps only once in several turns, and for a
`zero_grad()` ahead of the backward inside `accelerator.accumulate`, where the number of turns can be above one.

## Why is this bad?
What the earlier backwards have summed is thrown away: each step sees the last micro-batch alone. The run costs k times
as much as the batch that it trains on, and the learning rate fits another batch size. Inside `accelerator.accumulate`
the prepared optimizer zeroes only in the turn that steps, which is why zeroing *first* there drops just what was
accumulated.

## Example
```python
with accelerator.accumulate(model):
    optimizer.zero_grad()
    accelerator.backward(criterion(model(x), y))
    optimizer.step()
```

## Use instead
```python
with accelerator.accumulate(model):
    accelerator.backward(criterion(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
```

## References
- [Gradient accumulation with Accelerate](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Place, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.accumulation import accumulations, zeroed_every_turn
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Const, bare
from validate_ddp.record.run import Run
from validate_ddp.record.updates import Update, updates
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.ZeroGrad
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling("no gradient thrown away", once=True)

HEAD = """
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(2, 4)] * 8
    k = 4
"""
_ACCELERATE = """
    # alone
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps={})
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(2, 4)] * 8
    model, optimizer = accelerator.prepare(model, optimizer)
"""
VALID = (
    """
    for i, batch in enumerate(batches):
        model(batch).sum().backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    """,
    """
    for i, batch in enumerate(batches):
        if i % k == 0:
            optimizer.zero_grad()
        model(batch).sum().backward()
        if (i + 1) % k == 0:
            optimizer.step()
    """,
    """
    for i, batch in enumerate(batches):
        loss = model(batch).sum()
        if loss.item() > 1000:
            optimizer.zero_grad()
            continue
        loss.backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    """,
    """
    for i, batch in enumerate(batches):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if i % k == 0:
            print(i)
    """,
    """
    class Trainer:
        def __init__(self):
            self.counter = 0

        def run_step(self, batch):
            if self.counter == 0:
                optimizer.zero_grad()
            model(batch).sum().backward()
            self.counter += 1
            if self.counter >= k:
                optimizer.step()
                self.counter = 0

        def train(self):
            for batch in batches:
                self.run_step(batch)

    Trainer().train()
    """,
    """
    second = DDP(torch.nn.Linear(4, 1))
    other = torch.optim.SGD(second.parameters(), lr=0.1)
    for i, batch in enumerate(batches):
        other.zero_grad()
        second(batch).sum().backward()
        other.step()
        model(batch).sum().backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    """,
    _ACCELERATE.format(4)
    + """
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
    """,
    _ACCELERATE.format(1)
    + """
    for batch in batches:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(model(batch).sum())
            optimizer.step()
    """,
)
INVALID = (
    _ACCELERATE.format(4)
    + """
    for batch in batches:
        with accelerator.accumulate(model):
            optimizer.zero_grad()  # expect
            accelerator.backward(model(batch).sum())
            optimizer.step()
    """,
    """
    for i, batch in enumerate(batches):
        optimizer.zero_grad()  # expect
        model(batch).sum().backward()
        if (i + 1) % k == 0:
            optimizer.step()
    """,
    """
    class Trainer:
        def __init__(self):
            self.turn = 0

        def run_step(self, batch):
            optimizer.zero_grad()  # expect
            model(batch).sum().backward()
            self.turn += 1
            if self.turn % k == 0:
                optimizer.step()

        def train(self):
            for batch in batches:
                self.run_step(batch)

    Trainer().train()
    """,
    """
    for step in range(3):
        for micro_step in range(k):
            optimizer.zero_grad()  # expect
            loss = model(batches[micro_step]).mean() / k
            loss.backward()
        optimizer.step()
    """,
)

_MESSAGE = "gradients accumulated for a later step are zeroed {}: each step trains on the last micro-batch alone"


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such ``zero_grad``."""
    reported = set()
    for row in accumulations(program):
        zeroed = None if Flag.ACCUMULATE in row.backward.flags else zeroed_every_turn(program, row)
        if zeroed is not None and zeroed.site not in reported:
            reported.add(zeroed.site)
            evidence = [place(row.backward.site, "accumulates here"), place(row.step.site, "one step for several")]
            yield _finding(program, zeroed, "in every turn", evidence)
    launchers = [launcher for fact in program.facts(facts.Launch) for launcher in fact.launcher]
    turns = [atom for launcher in launchers for atom in bare(launcher.accumulating)]
    if not turns:
        return
    surely = any(isinstance(atom, Const) and atom.value != 1 for atom in turns)
    for zeroed in program.facts(facts.ZeroGrad):
        backward = _following(program, zeroed)
        if backward is not None and zeroed.site not in reported:
            reported.add(zeroed.site)
            evidence = [place(backward.site, "the last of several backwards comes only now")]
            when = "inside `accumulate` before the last backward"
            yield _finding(program, zeroed, when if surely else f"{when}, where there are several", evidence, surely)


def _finding(program: Program, zeroed: Fact, when: str, evidence: list[Place], surely: bool = True) -> Proposal:
    """surely: whether it is known that several backwards come to a step."""
    severity = INFO if zeroed.hangs_on_unknown else ERROR if surely else WARNING
    return propose(program, zeroed, severity, _MESSAGE.format(when), evidence=evidence)


def _following(program: Program, zeroed: Fact) -> Fact | None:
    """The backward after a ``zero_grad`` in a turn of ``accumulate``, where no step stands before it."""
    if Flag.ACCUMULATE not in zeroed.flags or not zeroed.loops:
        return None
    turn = [
        fact
        for fact in program.facts(facts.Backward, facts.Step, facts.ZeroGrad)
        if Flag.ACCUMULATE in fact.flags and fact.loops and fact.loops[-1].serial == zeroed.loops[-1].serial
    ]
    before = [fact for fact in turn if fact.order < zeroed.order and not isinstance(fact, facts.ZeroGrad)]
    after = [fact for fact in turn if fact.order > zeroed.order and not isinstance(fact, facts.ZeroGrad)]
    if before or tuple(map(type, after)) != (facts.Backward, facts.Step):
        return None
    return after[0]


def observe(run: Run) -> Seen:
    """Only where it happens at most steps: a step that is skipped once, for a loss that is not finite, is no defect."""
    rank = run.ranks[0] if run.ranks else 0
    of_optimizers = list(updates(run, rank).values())
    yield from _zeroed(run, rank, [update for steps in of_optimizers for update in steps])
    for steps in of_optimizers:
        dropping = [update for update in steps if _drops(update)]
        yield Unclear() if dropping else Well()
        if len(dropping) > 1 and len(dropping) > 0.8 * len(steps):
            total, dropped = len(dropping[0].backwards), dropping[0].dropped
            lost = sum(len(each) for _, each in dropped)
            message = f"`zero_grad()` throws away the gradients of {lost} of the {total} micro-batches of each step"
            yield Observation(ERROR, dropped[0][0].site, message, (), (rank,))


def _zeroed(run: Run, rank: int, steps: list[Update]) -> Seen:
    """Calls of zero_grad in a run that accumulates, by whether they found nothing which a later step wanted."""
    if any(len(update.backwards) > 1 for update in steps):
        dropped = {event.site.place for update in steps for event, _ in update.dropped}
        for event in run.of(rank, protocol.ZeroGrad):
            lost = event.site.place in dropped
            yield Unclear(event.site) if lost else Well(event.site, held=False)


def _drops(update: Update) -> bool:
    """Whether what was dropped came from the backward that the step uses: others are another loss's."""
    if not update.dropped or not update.backwards:
        return False
    used = update.backwards[-1].site.place
    return any(event.site.place == used for _, lost in update.dropped for event in lost)
