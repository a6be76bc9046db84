"""A learning rate schedule counts the steps of one process, and each rank makes fewer.

## What it does
Looks for a schedule whose number of steps is `len(dataset)` divided by the batch size of one rank, although the
loader of that dataset is sharded; under Accelerate, for a schedule on the length of a loader which does not fit the
way in which the scheduler is stepped; and for one that counts batches, and is stepped once for several that are
accumulated. A run tells too where a schedule is over long before it: all later steps have a rate of 0.

## Why is this bad?
With a DistributedSampler each rank makes `len(dataset) / (batch_size * world_size)` steps in an epoch. A schedule over
`len(dataset) / batch_size` steps is left after 1 / world_size of its course: the warm-up takes world_size times as
long, and the learning rate never decays. Nothing fails.

Accelerate steps a *prepared* scheduler num_processes times at each step: the length of the loader before `prepare` is
then right, the length after it makes the schedule end too early. A scheduler which is not prepared is the other way
round.

A schedule of k times too many steps ends where a k-th of it has passed: in the warm-up, or at its highest rate.

## Example
```python
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
scheduler = CosineAnnealingLR(optimizer, T_max=epochs * (len(dataset) // batch_size))
```

## Use instead
```python
scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
```

## References
- [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
- [Accelerate: a comparison of performance](https://huggingface.co/docs/accelerate/concept_guides/performance)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import (
    Const,
    Rank,
    WorldSize,
    bare,
    reaching,
)
from validate_ddp.record.iterations import training_turns
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.lengths_of_schedules import accelerated_wrongly, in_one_process, is_plain
from validate_ddp.rules.proposing import propose
from validate_ddp.rules.stepping import of_micro_batches

TRIGGER = facts.Scheduler
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling("a schedule as long as the run", once=True)

HEAD = """
    import math
    from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

    args = argparse.ArgumentParser().parse_args()
    dist.init_process_group("gloo")
    dataset = TensorDataset(torch.zeros(64, 4))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TAIL = """
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            model(batch).sum().backward()
            optimizer.step()
            scheduler.step()
    dist.destroy_process_group()
"""
_ACCELERATE = """
    # alone
    from accelerate import Accelerator
    from torch.optim.lr_scheduler import CosineAnnealingLR

    def main(epochs, batch_size):
        accelerator = Accelerator(OPTION)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        raw = DataLoader(TensorDataset(torch.zeros(64, 4)), batch_size=batch_size, shuffle=True)
        PREPARE
        for epoch in range(epochs):
            for (batch,) in loader:
                accelerator.backward(model(batch).sum())
                optimizer.step()
                scheduler.step()

    if __name__ == "__main__":
        main(3, 8)
"""


def _accelerated(prepare: str, option: str = "") -> str:
    return _ACCELERATE.replace("PREPARE", prepare.strip()).replace("OPTION", option)


_ACCUMULATED = (
    """
    # alone
    """
    + HEAD.strip()
    + """
    scheduler = CosineAnnealingLR(optimizer, T_max=STEPS)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for i, (batch,) in enumerate(loader):
            with nullcontext() if (i + 1) % args.every == 0 else model.no_sync():
                model(batch).sum().backward()
            if (i + 1) % args.every == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
    dist.destroy_process_group()
    """
)
VALID = (
    """
    scheduler = CosineAnnealingLR(optimizer, T_max=3 * len(loader))
    """,
    _ACCUMULATED.replace("STEPS", "3 * len(loader) // args.every"),
    _ACCUMULATED.replace("STEPS", "args.updates"),
    """
    scheduler = CosineAnnealingLR(optimizer, T_max=3 * (len(dataset) // args.total_batch_size))
    """,
    """
    steps = len(dataset) // (args.batch_size * args.accumulation * dist.get_world_size())
    scheduler = CosineAnnealingLR(optimizer, T_max=3 * steps)
    """,
    """
    steps = math.ceil(len(dataset) / (args.batch_size * dist.get_world_size()))
    scheduler = OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=steps)
    """,
    """
    steps = len(dataset) // args.batch_size  # args.batch_size is that of all ranks
    loader = DataLoader(dataset, batch_size=args.batch_size // dist.get_world_size(), sampler=sampler)
    scheduler = CosineAnnealingLR(optimizer, T_max=3 * steps)
    """,
    """
    steps = len(dataset) // args.batch_size
    if dist.is_initialized():
        steps = steps // dist.get_world_size()
    scheduler = CosineAnnealingLR(optimizer, T_max=3 * steps)
    """,
    _accelerated("""
        scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(raw))
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, raw, scheduler)
    """),
    _accelerated("""
        model, optimizer, loader = accelerator.prepare(model, optimizer, raw)
        scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    """),
    _accelerated("""
        model, optimizer, loader = accelerator.prepare(model, optimizer, raw)
        steps = epochs * len(loader) * accelerator.num_processes
        scheduler = accelerator.prepare(CosineAnnealingLR(optimizer, T_max=steps))
    """),
    _accelerated(
        """
        scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(raw))
        model, optimizer, loader = accelerator.prepare(model, optimizer, raw)
        """,
        "split_batches=True",
    ),
)
INVALID = (
    _ACCUMULATED.replace("STEPS", "3 * len(loader))  # expect").replace("expect)", "expect"),
    """
    steps = len(dataset) // (args.batch_size * args.accumulation)
    scheduler = CosineAnnealingLR(optimizer, T_max=3 * steps)  # expect
    """,
    _ACCUMULATED.replace(
        "CosineAnnealingLR(optimizer, T_max=STEPS)",
        "OneCycleLR(optimizer, 0.1, total_steps=args.epochs * args.steps_per_epoch)  # expect",
    )
    .replace("i, (batch,) in enumerate(loader)", "i in range(args.steps_per_epoch)")
    .replace("batch)", "torch.ones(1, 4))"),
    """
    steps = 3 * (len(dataset) // args.batch_size)
    scheduler = CosineAnnealingLR(optimizer, T_max=steps)  # expect
    """,
    """
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    per_epoch = math.ceil(len(dataset) / 8)
    scheduler = OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=per_epoch)  # expect
    """,
    """
    from transformers import get_linear_schedule_with_warmup

    class Trainer:
        def __init__(self, data):
            self.data = data

        def schedule(self):
            updates = len(self.data) // args.batch_size // args.gradient_accumulation_steps
            return get_linear_schedule_with_warmup(optimizer, 10, int(updates * args.epochs))  # expect

    scheduler = Trainer(dataset).schedule()
    """,
    _accelerated("""
        scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(raw))  # expect
        model, optimizer, loader = accelerator.prepare(model, optimizer, raw)
    """),
    _accelerated("""
        model, optimizer, loader = accelerator.prepare(model, optimizer, raw)
        scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))  # expect
        scheduler = accelerator.prepare(scheduler)
    """),
)


_MICRO = (
    "the schedule counts batches, and goes on once for several of them: it is never more than begun; divide "
    "its length by the number of batches that are accumulated"
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each schedule."""
    trained = [fact for fact in program.facts(facts.Iterate) if program.trains(fact)]
    reported: set[Any] = set()
    for fact in program.facts(facts.Scheduler):
        steps = fact.steps
        if not program.is_distributed or not program.runs_on_many(fact) or fact.who != "all":
            continue
        counted = of_micro_batches(program, fact)
        if counted is not None and fact.site not in reported:
            reported.add(fact.site)
            yield propose(program, fact, WARNING if counted.sure else INFO, _MICRO, evidence=counted.evidence)
            continue
        if any(isinstance(part, (Rank, WorldSize)) for part in reaching(steps)):
            continue
        for length in fact.lengths:
            judged = in_one_process(length, trained) or accelerated_wrongly(program, fact, length, trained)
            if judged is None or not is_plain(length) or id(length.site) in reported:
                continue
            reported.add(id(length.site))
            message, evidence = judged
            stepped = any(scheduler.stepped for scheduler in fact.scheduler)
            unsure = not stepped or fact.hangs_on_unknown or any(isinstance(atom, Const) for atom in bare(steps))
            yield propose(program, fact, INFO if unsure else WARNING, message, evidence=evidence)


_CLOSE = 0.06
_LEFT = 0.2
"""Share of the steps without a rate that no rounding of a schedule's length explains."""
_ENOUGH = 4
"""Steps of an epoch from which on rounding explains little else."""


def observe(run: Run) -> Seen:
    """Only of runs that came to their end whole: a run that is cut short takes fewer steps by intent."""
    if run.world_size < 2 or run.truncated or run.outcome != "finished" or not run.ranks:
        return
    rank = run.ranks[0]
    counts = Counter(event.schedule for event in run.of(rank, protocol.Scheduled))
    steps: dict[int | None, list[protocol.Step]] = {}
    for step in run.of(rank, protocol.Step):
        steps.setdefault(step.optimizer, []).append(step)
    for schedule in run.of(rank, protocol.Schedule):
        taken = counts[schedule.schedule]
        if not taken:
            continue
        its = steps.get(schedule.optimizer, [])
        early = _steps_too_often(run.world_size, schedule, taken, its) or _over_early(schedule, its)
        if early:
            yield Observation(WARNING, schedule.site, early, (), (rank,))
            continue
        if run.simulated and _still_rises(steps.get(schedule.optimizer, [])):
            message = f"the learning rate still rises at the last of {taken} steps: its warm-up is longer than the run"
            yield Observation(WARNING, schedule.site, message, (), (rank,))
            continue
        if schedule.steps is None:
            continue
        ratio = schedule.steps / taken
        if abs(ratio / run.world_size - 1) < _CLOSE or _rounded(run, rank, schedule.steps, taken):
            message = (
                f"`{schedule.kind}` is made for {schedule.steps:g} steps, and the run takes {taken}: "
                f"{run.world_size} times fewer, as many as there are ranks"
            )
            yield Observation(WARNING, schedule.site, message, (), (rank,))
        elif abs(ratio - 1) < _CLOSE:
            yield Well(schedule.site)
        else:
            yield Well()
            yield Unclear(schedule.site)


def _still_rises(steps: list[protocol.Step]) -> bool:
    """Whether the rate is at its highest at the last step, and rises all the time; of a run of its full length."""
    rates = [max(step.rates) for step in steps if step.rates]
    return len(rates) > 1 and rates == sorted(rates) and rates[-1] > rates[-2]


def _steps_too_often(size: int, schedule: protocol.Schedule, taken: int, steps: list[protocol.Step]) -> str:
    """That a schedule that is stepped once for each rank comes to its end too early, in words: at a known number of
    steps, or at a rate of zero for all that is left of the run."""
    if len(steps) < _ENOUGH * size or abs(taken / len(steps) / size - 1) > _CLOSE:
        return ""
    last = -(-len(steps) // size)
    rates = [max(step.rates, default=1.0) if step.rates else 1.0 for step in steps]
    over = not any(rates[last + 1 :]) and any(rates[:last])
    if not over and (schedule.steps is None or abs(taken / schedule.steps / size - 1) > _CLOSE):
        return ""
    return (
        f"`{schedule.kind}` is stepped {size} times at each of {len(steps)} optimizer steps, as Accelerate does for "
        f"{size} ranks, and is made for as many steps as a rank takes: it is over after {last} of them"
    )


def _over_early(schedule: protocol.Schedule, steps: list[protocol.Step]) -> str:
    """That what is left of a run after the end of its schedule trains nothing, in words."""
    rates = [max(step.rates, default=1.0) if step.rates else 1.0 for step in steps]
    moved = max((at for at, rate in enumerate(rates, 1) if rate), default=0)
    if not moved or len(rates) - moved < max(_ENOUGH, _LEFT * len(rates)):
        return ""
    return (
        f"`{schedule.kind}` is over after {moved} of {len(rates)} optimizer steps: at the others the rate is 0, and "
        "nothing is learned"
    )


def _rounded(run: Run, rank: int, steps: float, taken: int) -> bool:
    """Whether it is as many times more in each epoch, but for the last batch, which need not be whole."""
    epochs = len([turn for turn in training_turns(run, rank) if turn.exhausted is not None])
    if not epochs or taken % epochs or taken // epochs < _ENOUGH:
        return False
    each = taken // epochs
    return each - 1 < steps / epochs / run.world_size <= each
