"""A model or an optimizer that trains was not given to Accelerate's `prepare`, although the others were.

## What it does
Looks for a model whose loss an `Accelerator` takes backward and whose parameters an optimizer holds, and which was not
prepared although something else was; and for an optimizer which was not prepared, where the Accelerator computes in
fp16, or accumulates gradients over several batches. A training loader that is not prepared is told by DDP202.

## Why is this bad?
Only a prepared model is wrapped: without that its gradients are those of one rank, and the ranks train models which
drift apart. An optimizer that is not prepared takes steps with gradients that are multiplied by the scale of fp16, and
a step for every batch instead of one for all that are accumulated.

## Example
```python
optimizer, loader = accelerator.prepare(optimizer, loader)
```

## Use instead
```python
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
```

## References
- [Accelerator.prepare](https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.prepare)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.objects import Output
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Accelerator
from validate_ddp.interpreter.values import Instance, bare, constant, reaching
from validate_ddp.models.optimizers import has_parameters, parts_of
from validate_ddp.rules.preparations import accelerators, optimizers_left_out, prepared
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Preparing
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "S"
FIX = "-"

IMPORTS = """
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(x)

    def train(accelerator, model, optimizer, loader):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
                optimizer.step()
                optimizer.zero_grad()

"""
_SCRIPT = """
    # alone
    accelerator = Accelerator(OPTION)
    model, teacher = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(64, 4)), batch_size=8, shuffle=True)
    PREPARE
    train(accelerator, model, optimizer, loader)
"""


def _script(prepare: str, option: str = "") -> str:
    return _SCRIPT.replace("PREPARE", prepare).replace("OPTION", option)


_ALL = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
_PART = "model, loader = accelerator.prepare(model, loader)"
_LINE = "train(accelerator, model, optimizer, loader)"
VALID = (
    _script(_ALL),
    _script(_ALL, 'mixed_precision="fp16"'),
    _script(_PART),
    _script(_PART, 'mixed_precision="bf16"'),
    _script(f"{_ALL}; teacher.eval(); print(teacher(torch.zeros(1, 4)))"),
    _script("things = [model, optimizer, loader]; model, optimizer, loader = accelerator.prepare(*things)"),
)


def _alone(prepare: str, line: str, option: str = "") -> str:
    body = _script(prepare, option).replace("# alone", "").replace(_LINE, "")
    loop = """
    for (batch,) in loader:
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
    """
    return "\n    # alone" + body + loop.replace(line, f"{line}  # expect")


INVALID = (
    _alone("optimizer, loader = accelerator.prepare(optimizer, loader)", "accelerator.backward(model(batch).mean())"),
    _alone("loader = accelerator.prepare(loader)", "accelerator.backward(model(batch).mean())"),
    _alone(_PART, "optimizer.step()", 'mixed_precision="fp16"'),
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each model and each optimizer that was left out."""
    launchers = accelerators(program)
    if len(launchers) != 1 or not program.complete:
        return
    if not any("reduce" in fact.name and not fact.launcher for fact in program.facts(facts.Collective)):
        yield from _models(program)  # else the script may average gradients itself
    yield from _optimizers(program, launchers[0])


def _models(program: Program) -> Iterator[Proposal]:
    given = {id(part) for atom in prepared(program) for part in parts_of((atom,))}
    held = {id(part) for fact in program.facts(facts.Optimizer) for part in parts_of(reaching(fact.parameters))}
    reported: set[int] = set()
    for fact in program.facts(facts.Backward):
        if not fact.launcher or fact.who != "all" or not program.runs_on_many(fact):
            continue
        outputs = [part for part in reaching(fact.loss) if isinstance(part, Output)]
        models = [atom for output in outputs for atom in bare(output.model)]
        for model in models:
            if not isinstance(model, Instance) or id(model) in reported or id(model) in given:
                continue
            if any(id(part) in given for part in parts_of((model,))) or not has_parameters(model):
                continue
            if id(model) not in held or any(not isinstance(other, Instance) for other in models):
                continue
            reported.add(id(model))
            yield propose(
                program,
                fact,
                INFO if fact.hangs_on_unknown else ERROR,
                f"`{model.cls.name}` is trained here and was not given to `prepare`: its gradients are those of one "
                "rank, and the ranks' models drift apart",
                evidence=[place(model.site, "the model is made here")],
            )


def _optimizers(program: Program, launcher: Accelerator) -> Iterator[Proposal]:
    scaled = constant(launcher.precision) == "fp16" if launcher.precision else False
    turns = constant(launcher.accumulating) if launcher.accumulating else 1
    several = isinstance(turns, int) and turns > 1
    if not scaled and not several:
        return
    reported = set()
    accelerated = {loop.serial for fact in program.facts(facts.Backward) if fact.launcher for loop in fact.loops}
    for fact in program.facts(facts.Step):
        left_out = optimizers_left_out(program, fact.optimizer)
        if not left_out or fact.site in reported or not any(loop.serial in accelerated for loop in fact.loops):
            continue
        if not scaled and Flag.ACCUMULATE not in fact.flags:
            continue
        reported.add(fact.site)
        what = (
            "its gradients are still multiplied by the scale of fp16"
            if scaled
            else f"it steps for each of the {turns} batches that are accumulated"
        )
        yield propose(
            program,
            fact,
            INFO if fact.hangs_on_unknown else ERROR if scaled else WARNING,
            f"this optimizer was not given to `prepare`: {what}",
            evidence=[place(left_out[0].site, "the optimizer is made here")],
        )
