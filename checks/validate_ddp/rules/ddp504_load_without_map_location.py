"""`torch.load` without `map_location`, on every rank.

## What it does
Looks for `torch.load(path)` that every rank calls and whose content goes into a `load_state_dict`. Files of the rank's
own, weights that are handed out under their hash (`vgg19-dcbb9e9d.pth`), states without tensors (of a sampler, a
scheduler), states that were gathered on the CPU and scripts that know gloo alone and no GPU are left alone.

## Why is this bad?
Tensors go back to the device that they were saved from: rank zero's GPU. Each rank then puts its own copy of the whole
checkpoint on GPU 0, which runs out of memory exactly when a job of many ranks resumes.

## Example
```python
model.load_state_dict(torch.load("model.pt"))
```

## Use instead
```python
model.load_state_dict(torch.load("model.pt", map_location="cpu"))
```

## Fix safety
The fix adds `map_location="cpu"`. It is safe where the loaded value flows just into `load_state_dict`, which copies to
the model's own device; else it is unsafe.

## References
- [torch.load](https://docs.pytorch.org/docs/stable/generated/torch.load.html)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import WARNING, Edit, Fix, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.names_of_training import WITHOUT_TENSORS
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Loaded
from validate_ddp.interpreter.values import Instance, Opaque, Rank, Resource, bare, constant, reaching
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Load
SEVERITIES = (WARNING,)
EVIDENCE = "S"
FIX = "safe"

HEAD = """
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(2, 2))
"""
VALID = (
    """
    # alone
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 2))
    model.module.load_state_dict(torch.load("model.pt"))
    dist.destroy_process_group()
    """,
    """
    model.module.load_state_dict(torch.load("model.pt", map_location="cpu"))
    """,
    """
    state = torch.load(f"state_{dist.get_rank()}.pt")
    model.load_state_dict(state)
    """,
    """
    group = dist.group.WORLD if torch.cuda.is_available() else None
    model.load_state_dict(torch.load(f"state_{group.rank()}_of_{group.size()}.pt"))
    """,
    """
    def build(optimizer, steps):
        if len(sys.argv) > 1:
            return None
        return torch.optim.lr_scheduler.StepLR(optimizer, steps)

    class Trainer:
        def __init__(self):
            self.slow = build(torch.optim.SGD(model.parameters(), lr=1.0), 10)

        def resume(self):
            self.slow.load_state_dict(torch.load("slow.pt"))

    Trainer().resume()
    """,
    """
    if dist.get_rank() == 0:
        model.module.load_state_dict(torch.load("model.pt"))
    for parameter in model.parameters():
        dist.broadcast(parameter, src=0)
    """,
)
INVALID = (
    """
    model.module.load_state_dict(torch.load("model.pt"))  # expect
    """,
    """
    def resume(net, path):
        checkpoint = torch.load(path)  # expect
        net.load_state_dict(checkpoint["model"])

    resume(model.module, "model.pt")
    """,
    """
    state = torch.load("model.pt", weights_only=True)["model"]  # expect
    state = {key.replace("module.", ""): value for key, value in state.items()}
    model.module.load_state_dict(state)
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such load."""
    if not program.is_distributed or program.is_tool or program.mentions(mentions.ON_CPU):
        return  # consolidated checkpoints hold CPU tensors
    groups = [constant(fact.backend) for fact in program.facts(facts.ProcessGroup) if fact.name == "init"]
    on_gpu = program.mentions(mentions.ON_GPU) or any(wrap.device_ids for wrap in program.facts(facts.Wrap))
    if groups and set(groups) == {"gloo"} and not on_gpu:
        return  # it trains on the CPU
    used = _uses(program)
    reported = set()
    for fact in program.facts(facts.Load):
        loaded = fact.loaded[0]
        if not program.runs_on_many(fact):
            continue
        if fact.who != "all" or fact.map_location or fact.site in reported or loaded.site not in used:
            continue
        if any(isinstance(part, Rank) for part in (*bare(fact.path), *reaching(fact.path))):
            continue
        if _is_published(program, fact):
            continue
        reported.add(fact.site)
        fix = Fix(
            'add `map_location="cpu"`',
            safe=_only_loaded(loaded, used[loaded.site]),
            edits=(Edit("add_argument", fact.site.path, fact.site.span, 'map_location="cpu"'),),
        )
        yield propose(
            program,
            fact,
            WARNING,
            "`torch.load` without `map_location` on every rank: each puts its copy on the GPU that saved it, "
            "which is GPU 0 as a rule",
            evidence=(place(used[loaded.site].site, "loaded into the model here"),),
            fix=fix,
        )


_HASHED = re.compile(r"-[0-9a-f]{8,64}\.(pth|pt|bin|ckpt|tar)\b")


def _is_published(program: Program, fact: facts.Load) -> bool:
    """Whether the file is called as weights that are handed out, `vgg19-dcbb9e9d.pth`: those hold CPU tensors."""
    path = constant(fact.path)
    return _HASHED.search(path if isinstance(path, str) else program.text(fact.site)) is not None


def _name(fact: facts.LoadState) -> str:
    atoms = bare(fact.target)
    names = [atom.name for atom in atoms if isinstance(atom, Opaque)]
    classes = [atom.cls.lineage() for atom in atoms if isinstance(atom, Instance)]
    known = [type(atom).__name__ for atom in atoms if isinstance(atom, Resource)]
    return " ".join(names + known + [base.name for lineage in classes for base in lineage])


def _only_loaded(loaded: Loaded, use: facts.LoadState) -> bool:
    """Whether the file's content goes into ``load_state_dict``, which copies, and nowhere else."""
    named, consumed = constant(loaded.named), constant(loaded.consumed)
    times = 0 if named is ... else named
    nested = times == 0 and use.site.statement == loaded.site.statement
    return not use.assign and (nested or times == consumed)


def _uses(program: Program) -> dict[Any, facts.LoadState]:
    """Where loaded files go into a model or optimizer, by the place of the load."""
    found: dict[Any, facts.LoadState] = {}
    used = [(fact, _name(fact)) for fact in program.facts(facts.LoadState)]
    light = {fact.site for fact, name in used if WITHOUT_TENSORS.matches(name)}
    for fact, name in used:
        if WITHOUT_TENSORS.matches(name) or (fact.site in light and not name):
            continue  # what may be None, or nothing known, besides a schedule is one too
        for part in reaching(fact.state):
            if isinstance(part, Loaded):
                found.setdefault(part.site, fact)
    return found
