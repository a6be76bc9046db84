"""`no_sync` is asked of a model of `fully_shard`, which does not have it.

## What it does
Looks for `no_sync()` and `require_backward_grad_sync`, by which DistributedDataParallel leaves out the reduction of a
micro-batch, on a model to which `fully_shard` (FSDP2) is applied.

## Why is this bad?
A model of `fully_shard` is no wrapper, and has neither. `require_backward_grad_sync = False` sets a field that nobody
reads, and `no_sync()` fails, or is passed over where the code asks first whether it is there: each micro-batch sends
its gradients all the same. With 8 micro-batches a step that is 8 times the communication that is needed, without a
word.

## Example
```python
fully_shard(model)
for number, batch in enumerate(batches):
    model.require_backward_grad_sync = number == len(batches) - 1
    model(batch).sum().backward()
```

## Use instead
```python
fully_shard(model)
for number, batch in enumerate(batches):
    model.set_requires_gradient_sync(number == len(batches) - 1)
    model(batch).sum().backward()
```

## References
- [fully_shard: set_requires_gradient_sync](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html#torch.distributed.fsdp.FSDPModule.set_requires_gradient_sync)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import bare
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.NoSync
SEVERITIES = (WARNING,)
EVIDENCE = "S"
FIX = "-"

HEAD = """
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    batches = [torch.ones(2, 4)] * 4
    model = Net()
"""
VALID = (
    """
    model = DDP(model)
    for number, batch in enumerate(batches):
        model.require_backward_grad_sync = number == 3
        model(batch).sum().backward()
    """,
    """
    fully_shard(model)
    for number, batch in enumerate(batches):
        model.set_requires_gradient_sync(number == 3)
        model(batch).sum().backward()
    """,
    """
    # One or the other, and each asked for what it has.
    sharded = "--sharded" in sys.argv
    if sharded:
        fully_shard(model)
    else:
        model = DDP(model)
    for number, batch in enumerate(batches):
        with nullcontext() if sharded or number == 3 else model.no_sync():
            model(batch).sum().backward()
    """,
    """
    # The script's own.
    class Accumulating(Net):
        def no_sync(self):
            self.set_requires_gradient_sync(False)
            return nullcontext()

    model = Accumulating()
    fully_shard(model)
    with model.no_sync():
        model(batches[0]).sum().backward()
    """,
)
INVALID = (
    """
    fully_shard(model)
    for number, batch in enumerate(batches):
        model.require_backward_grad_sync = number == 3  # expect
        model(batch).sum().backward()
    """,
    """
    fully_shard(model.layer)
    fully_shard(model)
    for number, batch in enumerate(batches):
        with nullcontext() if number == 3 else model.no_sync():  # expect
            model(batch).sum().backward()
    """,
    """
    fully_shard(model)
    for number, batch in enumerate(batches):
        if number < 3 and hasattr(model, "no_sync"):
            with model.no_sync():  # expect
                model(batch).sum().backward()
        else:
            model(batch).sum().backward()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such place."""
    sharded = [fact for fact in program.facts(facts.Shard) if not fact.hangs_on_unknown]
    reported = set()
    for fact in program.facts(facts.NoSync):
        models = bare(fact.model)
        cut = next(
            (each for each in sharded if any(atom is model for atom in bare(each.model) for model in models)), None
        )
        if cut is None or cut.order > fact.order or fact.site in reported:
            continue
        reported.add(fact.site)
        by = "`no_sync()`" if fact.name == "no_sync" else f"`{fact.name}`"
        proposal = propose(
            program,
            fact,
            WARNING,
            f"{by} does nothing for a model of `fully_shard`, which sends gradients after each backward; call "
            "`set_requires_gradient_sync`",
            evidence=[place(cut.site, "the model is sharded here")],
        )
        yield proposal if fact.name == "no_sync" else proposal._replace(expects=("statement", ""))
