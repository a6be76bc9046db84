"""A number is passed where a process group wants a timedelta, or seconds where a timedelta takes days.

## What it does
Looks for a number given as `timeout` to `init_process_group`, `new_group` or `deepspeed.init_distributed`, and for a
`timedelta` of a hundred days or more there, whose number has no name: `timedelta(4800)` is 4800 days.

## Why is this bad?
PyTorch refuses a number: `TypeError: Expected timeout argument to be of type datetime.timedelta`. The job dies when it
starts, on every rank, after it has waited for its GPUs.

A time-out of years never comes: a job whose ranks wait for each other holds its GPUs until somebody looks.

## Example
```python
dist.init_process_group("nccl", timeout=1800)
```

```python
dist.init_process_group("nccl", timeout=timedelta(1800))
```

## Use instead
```python
dist.init_process_group("nccl", timeout=timedelta(seconds=1800))
```

## Fix safety
The fix is safe: the script cannot run as it is. It takes the number for seconds.

## References
- [init_process_group](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Edit, Fix, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.objects import Days
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import constant, reaching
from validate_ddp.record.verdict import Telling
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.ProcessGroup
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "S"
FIX = "safe"
TELLING = Telling(crashes=("TypeError", "AttributeError"))

HEAD = ""
VALID = (
    """
    from datetime import timedelta

    dist.init_process_group("nccl", timeout=timedelta(seconds=1800))
    """,
    """
    import datetime

    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=int, default=30)
    args = parser.parse_args()
    timeout = datetime.timedelta(minutes=args.timeout) if args.timeout else None
    dist.init_process_group("nccl", timeout=timeout)
    """,
    """
    dist.init_process_group("gloo", None, None)
    dist.monitored_barrier(timeout=30.0)
    store = dist.TCPStore("localhost", 29500, timeout=30)
    """,
    """
    from datetime import timedelta

    dist.init_process_group("nccl", timeout=timedelta(0, 4800))
    dist.new_group([0, 1], timeout=timedelta(2))
    """,
)
INVALID = (
    """
    dist.init_process_group("nccl", timeout=1800)  # expect
    """,
    """
    TIMEOUT = 2 * 60 * 60

    def main():
        dist.init_process_group("nccl", timeout=TIMEOUT)  # expect

    main()
    """,
    """
    from datetime import timedelta

    dist.init_process_group("nccl", timeout=timedelta(hours=1))
    group = dist.new_group([0, 1], timeout=60.0, backend="gloo")  # expect
    """,
    """
    import datetime

    dist.init_process_group("nccl", timeout=datetime.timedelta(4800))  # expect
    """,
)
_STARTING = ("new_group", "new_subgroups", "new_subgroups_by_enumeration")


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such call."""
    yield from _of_days(program)
    starting = [fact for fact in program.facts(facts.ProcessGroup, facts.Collective) if fact.timeout]
    for fact in starting:
        if isinstance(fact, facts.Collective) and fact.name not in _STARTING:
            continue
        number = constant(fact.timeout)
        if type(number) not in (int, float):
            continue
        name = fact.name if isinstance(fact, facts.Collective) else "init_process_group"
        name = "deepspeed.init_distributed" if isinstance(fact, facts.ProcessGroup) and fact.deepspeed else name
        yield propose(
            program,
            fact,
            INFO if fact.hangs_on_unknown else ERROR,
            f"`timeout={number}` is a number: `{name}` raises a TypeError at start, it takes a `timedelta`",
            fix=_fix(fact),
        )


def _of_days(program: Program) -> Iterator[Proposal]:
    """One finding for each time-out of so many days that seconds are meant."""
    for fact in program.facts(facts.ProcessGroup, facts.Collective):
        spans = [part for part in reaching(fact.timeout) if isinstance(part, Days)]
        days = constant(spans[0].count) if len(spans) == 1 and len(fact.timeout) == 1 else None
        if isinstance(days, (int, float)) and days >= _NEVER:
            yield propose(
                program,
                fact,
                INFO if fact.hangs_on_unknown else WARNING,
                f"`timedelta({days})` is {days} days: its first argument counts days; "
                f"say `timedelta(seconds={days})`, or what is meant",
                evidence=[place(spans[0].site, "the time-out is made here")],
            )


_NEVER = 100
"""Days for which no job waits."""


def _fix(fact: facts.ProcessGroup | facts.Collective) -> Fix | None:
    text = fact.timeout_text
    if not text:
        return None
    path, span = fact.site.path, fact.site.span
    edits = (
        Edit("add_import", path, span, "from datetime import timedelta"),
        Edit("replace_argument", path, span, f"timeout, timeout=timedelta(seconds={text})"),
    )
    return Fix(f"pass `timedelta(seconds={text})`", True, edits)
