"""The loss goes backward by itself, where Accelerate has to scale it.

## What it does
Looks for `loss.backward()` in a loop that trains what an `Accelerator` has prepared, where the Accelerator computes in
fp16, or accumulates gradients over several batches.

## Why is this bad?
`accelerator.backward(loss)` multiplies the loss by the scale that keeps fp16's small gradients from becoming zero, and
divides it by the number of batches that are accumulated. The prepared optimizer divides by that scale in any case:
after a plain `loss.backward()` its gradients are 65,536 times too small, or, without fp16, the sum over the batches in
the place of their mean.

## Example
```python
accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loss.backward()
```

## Use instead
```python
accelerator.backward(loss)
```

## References
- [Accelerator.backward](https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.backward)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Accelerator
from validate_ddp.interpreter.values import constant
from validate_ddp.rules.preparations import accelerators, is_optimizer_prepared
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Preparing
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "S"
FIX = "-"

IMPORTS = """
    import sys
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(x)

"""
_SCRIPT = """
    # alone
    accelerator = Accelerator(OPTION)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(64, 4)), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = model(batch).mean()
            BACKWARD
            optimizer.step()
            optimizer.zero_grad()
"""


def _script(option: str, backward: str) -> str:
    return _SCRIPT.replace("OPTION", option).replace("BACKWARD", backward)


VALID = (
    _script('mixed_precision="fp16"', "accelerator.backward(loss)"),
    _script('mixed_precision="bf16"', "loss.backward()"),
    _script("", "loss.backward()"),
    _script("gradient_accumulation_steps=4", "accelerator.backward(loss)"),
    """
    # alone
    accelerator = Accelerator(mixed_precision="fp16")
    model = accelerator.prepare(Net())
    noise = torch.zeros(8, 4, requires_grad=True)
    for step in range(3):  # guides the samples, and trains nothing
        model(noise).mean().backward()
        noise = (noise - noise.grad).detach().requires_grad_()
    """,
)
INVALID = (
    _script('mixed_precision="fp16"', "loss.backward()  # expect"),
    _script("gradient_accumulation_steps=4", "loss.backward()  # expect"),
    _script("mixed_precision=sys.argv[1]", "loss.backward()  # expect"),
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each backward that goes past the Accelerator."""
    launchers = accelerators(program)
    if len(launchers) != 1:
        return
    reported = set()
    for fact in program.facts(facts.Backward):
        if fact.launcher or fact.name == "engine" or fact.site in reported or not fact.loops:
            continue
        if not program.runs_on_many(fact) or fact.who != "all" or "scale(" in program.text(fact.site):
            continue
        stepped = [
            step
            for step in program.facts(facts.Step)
            if any(loop.serial == fact.loops[-1].serial for loop in step.loops)
            and is_optimizer_prepared(program, step.optimizer)
        ]
        why = _why(launchers[0], fact)
        if not stepped or why is None:
            continue
        reported.add(fact.site)
        severity, message = why
        evidence = [place(stepped[0].site, "the prepared optimizer steps here")]
        yield propose(
            program,
            fact,
            INFO if fact.hangs_on_unknown else severity,
            f"{message}: call `accelerator.backward(loss)`",
            evidence=[place(launchers[0].site, "the Accelerator is made here"), *evidence],
        )


def _why(launcher: Accelerator, fact: facts.Backward) -> tuple[str, str] | None:
    """Severity and message; None where a plain backward does the same."""
    precision = constant(launcher.precision) if launcher.precision else None
    if precision == "fp16":
        return ERROR, "this loss is not scaled, and the prepared optimizer divides its gradients by the scale of fp16"
    turns = constant(launcher.accumulating) if launcher.accumulating else None
    if isinstance(turns, int) and turns > 1 and Flag.ACCUMULATE in fact.flags:
        return WARNING, f"this loss is not divided by the {turns} batches over which gradients are accumulated"
    if precision is ...:
        return INFO, "with fp16 this loss is not scaled, and the prepared optimizer divides its gradients by the scale"
    return None
