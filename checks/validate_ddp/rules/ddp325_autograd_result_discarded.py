"""The result of a function of the program's own for autograd is thrown away.

## What it does
Looks for `apply` of a `torch.autograd.Function` of the program's own, called as a statement, where what went into it is
used on. Not where its forward changes its argument (`ctx.mark_dirty`).

## Why is this bad?
A function of autograd leaves its argument alone: what it returns hangs on it, and nothing else. Where nothing uses
the result its backward never runs, and what it is there for does not happen: the sum of the gradients over a group of
tensor parallel ranks, or the gradient of the loss that balances the experts. Every rank goes on, with other gradients
than meant.

## Example
```python
class BalanceLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, loss):
        ctx.save_for_backward(loss)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.ones_like(ctx.saved_tensors[0])

BalanceLoss.apply(hidden, loss)
```

## Use instead
```python
hidden = BalanceLoss.apply(hidden, loss)
```

## References
- [Extending torch.autograd](https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-autograd)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import Program
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Unapplied
SEVERITIES = (WARNING,)
EVIDENCE = "S"
FIX = "-"

HEAD = """
    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            dist.all_reduce(grad)
            return grad

    dist.init_process_group("gloo")
    loss = torch.ones(1, requires_grad=True)
"""
VALID = (
    """
    loss = Summed.apply(loss)
    loss.sum().backward()
    """,
    """
    Summed.apply(loss)  # nothing goes on with it
    """,
    """
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    x = loss * 1
    Doubled.apply(x)
    x.sum().backward()
    """,
    """
    class Barrier(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            dist.barrier()
            return x

    Barrier.apply(loss)
    print(loss)
    """,
)
INVALID = (
    """
    def split(hidden):
        Summed.apply(hidden)  # expect
        return hidden * 2

    split(loss).sum().backward()
    """,
    """
    total = loss * 2
    Summed.apply(total)  # expect
    total.sum().backward()
    """,
    """
    class Layer(nn.Module):
        def forward(self, x):
            if self.training:
                Summed.apply(x)  # expect
            return x * dist.get_world_size()

    Layer()(loss).sum().backward()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such call."""
    for fact in {fact.site: fact for fact in program.facts(facts.Unapplied)}.values():
        message = (
            f"the result of `{fact.name}.apply` is thrown away: its backward never runs, and no gradient flows by it"
        )
        evidence = [place(fact.chain[-1], "it is reached from here")] if fact.chain else []
        yield propose(program, fact, WARNING, message, evidence=evidence, on_any=True)
