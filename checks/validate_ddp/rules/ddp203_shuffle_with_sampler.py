"""A DataLoader is given both `shuffle=True` and a sampler.

## What it does
Looks for `DataLoader(..., shuffle=True, sampler=...)` where the sampler is surely not None.

## Why is this bad?
The sampler decides the order, so PyTorch refuses the combination: `ValueError: sampler option is mutually exclusive
with shuffle`. The script dies where the loader is made, after the queue and the start-up were paid for.

## Example
```python
DataLoader(dataset, shuffle=True, sampler=DistributedSampler(dataset))
```

## Use instead
```python
DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=True))
```
Where the sampler may be None: `shuffle=(sampler is None)`.

## Fix safety
The fix drops `shuffle=True`; where the sampler is made under a condition and has a name, it writes
`shuffle=sampler is None` instead, so that a single process goes on to shuffle. It is safe: the call fails as it stands.

## References
- [torch.utils.data.DataLoader](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, Edit, Fix, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Sampler
from validate_ddp.interpreter.values import Const, Instance, Resource, bare, constant
from validate_ddp.record.verdict import Telling
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Loader
SEVERITIES = (ERROR,)
EVIDENCE = "S"
FIX = "safe"
TELLING = Telling(crashes=("ValueError",))

VALID = (
    """
    def build(dataset, distributed):
        sampler = DistributedSampler(dataset) if distributed else None
        return DataLoader(dataset, shuffle=(sampler is None), sampler=sampler)

    build(range(8), True)
    build(range(8), False)
    """,
    """
    loader = DataLoader(range(8), sampler=DistributedSampler(range(8), shuffle=True))
    """,
    """
    options = dict(shuffle=True)
    sampler = None
    if dist.get_world_size() > 1:
        sampler = DistributedSampler(range(8))
        options["shuffle"] = False
    loader = DataLoader(range(8), sampler=sampler, **options)
    """,
)
INVALID = (
    """
    loader = DataLoader(range(8), shuffle=True, sampler=DistributedSampler(range(8)))  # expect
    """,
    """
    def build(dataset, shuffle):
        sampler = DistributedSampler(dataset, shuffle=shuffle)
        return DataLoader(dataset, 4, shuffle, sampler)  # expect

    build(range(8), True)
    """,
    """
    class Data:
        def __init__(self):
            self.sampler = DistributedSampler(range(8))

        def loader(self):
            return DataLoader(range(8), sampler=self.sampler, shuffle=True)  # expect

    Data().loader()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such loader."""
    for fact in program.facts(facts.Loader):
        samplers = bare(fact.sampler)
        surely = samplers and all(isinstance(atom, (Resource, Instance)) for atom in samplers)
        if surely and constant(fact.shuffle) is True and not any(isinstance(a, Const) for a in samplers):
            evidence = [
                place(atom.site, "the sampler is made here")
                for atom in samplers
                if isinstance(atom, (Resource, Instance))
            ]
            yield propose(
                program,
                fact,
                ERROR,
                "`shuffle=True` beside `sampler=` raises ValueError: let the sampler shuffle",
                evidence=evidence,
                fix=_fix(program, fact),
            )


def _fix(program: Program, fact: facts.Loader) -> Fix | None:
    from validate_ddp.interpreter.surroundings import call_at
    from validate_ddp.source.syntax import NONE, Constant
    from validate_ddp.source.traversal import dotted, keywords_of

    call = call_at(program.body(fact.site.path), fact.site.span)
    keywords = keywords_of(call) if call is not None else {}
    shuffle = keywords.get("shuffle")
    if not isinstance(shuffle, Constant) or shuffle.value is not True:
        return None  # given by position, or computed
    name = dotted(keywords.get("sampler", NONE))
    conditional = any(isinstance(atom, Sampler) and atom.conditional for atom in bare(fact.sampler))
    if conditional and name is not None:
        edit = Edit("replace_argument", fact.site.path, fact.site.span, f"shuffle, shuffle={name} is None")
        return Fix(f"shuffle only without a sampler: `shuffle={name} is None`", True, (edit,))
    edit = Edit("remove_argument", fact.site.path, fact.site.span, "shuffle")
    return Fix("drop `shuffle=True`", True, (edit,))
