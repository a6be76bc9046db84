"""Every rank writes the same file.

## What it does
Looks for checkpoints, configuration dumps and logs that are written without a condition on the rank, to a path that is
the same on every rank.

## Why is this bad?
The ranks write into one file at the same time: the result can be a mix of both, and a reader can find it half written.
A checkpoint broken in this way is found out when it is needed. For a configuration or a log it is mostly noise:
duplicated lines, contents of whichever rank came last.

## Example
```python
torch.save(model.module.state_dict(), "model.pt")
```

## Use instead
```python
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
```

## Fix safety
The fix puts the write under a condition that holds on rank zero alone: a rank, a flag or an accelerator that the code
has there, else `dist.get_rank() == 0`. It is safe for a `torch.save` that reaches no collective and whose file no rank
reads, copies or renames afterwards; else it is unsafe, since the other ranks may wait for each other or miss the file.

## References
- [DDP tutorial: save and load checkpoints](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.catalogue import ERROR, WARNING, Edit, Fix, Proposal
from validate_ddp.program.facts import Fact
from validate_ddp.program.trace import Program
from validate_ddp.program.values import (
    WRAPPERS,
    Instance,
    OnRanks,
    Opaque,
    Rank,
    Resource,
    Symbol,
    bare,
    constant,
    contents,
    reaching,
)
from validate_ddp.rules.proposing import place, propose

_ONE_BY_ONE = frozenset({"process_first", "dataset", "locked"})
"""Surroundings in which ranks take turns, or write what they happen to come across first: a cache of samples."""
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "safe"

_HEAD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
"""
VALID = (
    _HEAD
    + """
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
""",
    _HEAD
    + """
torch.save(torch.get_rng_state(), f"rng_{dist.get_rank()}.pt")
dist.destroy_process_group()
""",
    _HEAD
    + """
import functools

def main_only(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        if dist.get_rank() == 0:
            return function(*args, **kwargs)
    return inner

@main_only
def save(path):
    torch.save(model.module.state_dict(), path)

save("model.pt")
dist.destroy_process_group()
""",
)
INVALID = (
    _HEAD
    + """
torch.save(model.module.state_dict(), "model.pt")  # expect
dist.destroy_process_group()
""",
    _HEAD
    + """
class Trainer:
    def __init__(self, net):
        self.net = net

    def save(self, epoch):
        torch.save(self.net.module.state_dict(), f"model_{epoch}.pt")  # expect

    def fit(self):
        for epoch in range(3):
            if epoch % 2 == 0:
                self.save(epoch)

Trainer(model).fit()
dist.destroy_process_group()
""",
    _HEAD
    + """
import yaml

with open("config.yaml", "w") as stream:  # expect
    yaml.dump({"lr": 0.1}, stream)
dist.destroy_process_group()
""",
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each write that all ranks reach."""
    if not program.is_distributed or program.is_tool:
        return
    reported = set()
    for fact in program.facts("save"):
        if fact.who != "all" or fact.site in reported or _is_apart(fact) or fact.flags & _ONE_BY_ONE:
            continue
        if not program.runs_on_many(fact) or constant(fact.value("role")) == "unresolved":
            continue
        reported.add(fact.site)
        if _is_left_to_the_first(program, fact):
            continue
        checkpoint = constant(fact.value("role")) == "checkpoint" and _holds_model(fact)
        what = "this checkpoint" if checkpoint else "this file"
        yield propose(
            program,
            fact,
            ERROR if checkpoint else WARNING,
            f"every rank writes {what} to the same path (`{fact.name}`); guard it with rank zero",
            evidence=[place(site, "called from here") for site in fact.chain[-1:]],
            fix=_fix(program, fact),
        )


def _is_left_to_the_first(program: Program, fact: Fact) -> bool:
    from validate_ddp.rules.save.guarding import comes_after_a_wait

    return comes_after_a_wait(program, fact)


def _fix(program: Program, fact: Fact) -> Fix | None:
    from validate_ddp.rules.save.guarding import can_be_left_out, goes_unnoticed

    if constant(fact.value("role")) == "log" or not can_be_left_out(program, fact):
        return None  # the other ranks need the logger
    from validate_ddp.rules.fixing import rank_zero

    found = rank_zero(program, fact)
    if found is None:
        return None
    condition, imports = found
    edit = Edit("guard", fact.site.path, fact.site.statement, condition)
    return Fix(f"write on rank zero only: `if {condition}:`", goes_unnoticed(program, fact), (*imports, edit))


def _holds_model(fact: Fact) -> bool:
    """Whether what is written is the state of a model or an optimizer, rather than predictions or a cache."""
    held = fact.value("object")
    if not held:
        return True
    for part in (*bare(held), *reaching(held), *contents(held)):
        if isinstance(part, Instance) or (isinstance(part, Resource) and part.kind in ("state", *WRAPPERS, "prepared")):
            return True
        if isinstance(part, Opaque) and any(word in part.name.lower() for word in ("state", "model", "net", "ckpt")):
            return True
    return False


def _is_apart(fact: Fact) -> bool:
    """Whether each rank surely writes somewhere else, or not to a file."""
    path = fact.value("path")
    if any(isinstance(atom, OnRanks) and constant((atom.atom,)) is None for atom in path):
        return True  # no path on the other ranks
    if fact.value("writer") and not any(atom.get("used") for atom in bare(fact.value("writer"))):
        return True  # each process has an event file of its own, and only some write to theirs
    if any(isinstance(atom, Resource) and atom.kind in ("file", "writer") for atom in bare(path)):
        return True  # an open handle: opening it was the write
    for part in (*bare(path), *reaching(path)):
        if isinstance(part, Rank):
            return True
        if isinstance(part, Resource) and part.kind in ("buffer", "unique", "batch"):
            return True
        if isinstance(part, Resource) and part.kind == "item" and constant(fact.value("role")) != "checkpoint":
            return True  # a file for each item of some data, which may well be this rank's share
        if isinstance(part, Symbol) and part.name in ("os.devnull", "sys.stdout", "sys.stderr"):
            return True
    quiet = any(isinstance(atom, Resource) and atom.get("quiet") for atom in bare(fact.value("handler")))
    return quiet or constant(path) in ("/dev/null", None)
