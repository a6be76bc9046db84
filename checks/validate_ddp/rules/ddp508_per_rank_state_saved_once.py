"""The random state of rank zero is saved, and every rank goes on with it.

## What it does
Looks for a state of a random number generator that only rank zero saves, and that all ranks put back from the one
file: `torch.get_rng_state()` in a checkpoint, `torch.set_rng_state` after it is loaded.

## Why is this bad?
Each rank has a random state of its own, that it may draw other noise, masks and augmentations than the others. After a
restart from one state all of them draw the same: with N ranks there is one N-th of the variety, and nothing says so.
Nor does the training go on as it would have.

## Example
```python
if rank == 0:
    torch.save({"model": model.state_dict(), "rng": torch.get_rng_state()}, "last.pt")
dist.barrier()
torch.set_rng_state(torch.load("last.pt")["rng"])
```

## Use instead
```python
states = [None] * dist.get_world_size()
dist.all_gather_object(states, torch.get_rng_state())
if rank == 0:
    torch.save({"model": model.state_dict(), "rng": states}, "last.pt")
dist.barrier()
torch.set_rng_state(torch.load("last.pt")["rng"][rank])
```

## References
- [torch.set_rng_state](https://docs.pytorch.org/docs/stable/generated/torch.set_rng_state.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.objects import contents
from validate_ddp.interpreter.sameness import hangs_on_rank
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Loaded
from validate_ddp.interpreter.values import Opaque, bare, reaching
from validate_ddp.rules.proposing import kept_apart, place, propose

TRIGGER = facts.RandomState
SEVERITIES = (WARNING,)
EVIDENCE = "S"
FIX = "-"

HEAD = """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
"""
VALID = (
    """
    # The states of all ranks, each of which takes its own.
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    if rank == 0:
        torch.save({"rng": states}, "last.pt")
    dist.barrier()
    torch.set_rng_state(torch.load("last.pt", map_location="cpu")["rng"][rank])
    """,
    """
    # A file for each rank.
    torch.save({"rng": torch.get_rng_state()}, f"state_{rank}.pt")
    torch.set_rng_state(torch.load(f"state_{rank}.pt", map_location="cpu")["rng"])
    """,
    """
    # Put back on rank zero alone; or what this rank itself has kept.
    kept = torch.get_rng_state()
    if rank == 0:
        torch.save({"rng": torch.get_rng_state()}, "last.pt")
        torch.set_rng_state(torch.load("last.pt", map_location="cpu")["rng"])
    torch.set_rng_state(kept)
    """,
    """
    # Seeded anew for each rank after it.
    if rank == 0:
        torch.save({"rng": torch.get_rng_state()}, "last.pt")
    dist.barrier()
    torch.set_rng_state(torch.load("last.pt", map_location="cpu")["rng"])
    torch.manual_seed(rank)
    """,
    """
    # All ranks draw the same on purpose.
    torch.manual_seed(0)
    if rank == 0:
        torch.save({"rng": torch.get_rng_state()}, "last.pt")
    dist.barrier()
    torch.set_rng_state(torch.load("last.pt", map_location="cpu")["rng"])
    """,
)
INVALID = (
    """
    if rank == 0:
        torch.save({"rng": torch.get_rng_state()}, "last.pt")
    dist.barrier()
    torch.set_rng_state(torch.load("last.pt", map_location="cpu")["rng"])  # expect
    """,
    """
    import random

    import numpy as np

    def save(path):
        state = {"numpy": np.random.get_state(), "python": random.getstate()}
        if rank == 0:
            torch.save(state, path)

    def resume(path):
        state = torch.load(path, map_location="cpu")
        np.random.set_state(state["numpy"])  # expect
        random.setstate(state["python"])

    if "--resume" in sys.argv:
        resume("last.pt")
    for epoch in range(3):
        save("last.pt")
    """,
    """
    resumed = {"rng": None, "step": 0}
    if os.path.exists("last.pt"):
        resumed = torch.load("last.pt", map_location="cpu")
        torch.cuda.set_rng_state_all(resumed["rng"])  # expect
    for step in range(resumed["step"], 100):
        if step % 10 == 0 and rank == 0:
            torch.save({"rng": torch.cuda.get_rng_state_all(), "step": step}, "last.pt")
    """,
)
_TAKEN = frozenset("get_rng_state get_rng_state_all get_state getstate".split())
_OF = ("torch.", "numpy.random.", "random.")


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each function in which such states are put back."""
    saves = [fact for fact in program.facts(facts.Save) if fact.who == "zero" and _holds_state(fact)]
    if not saves or not any(program.runs_on_many(fact) for fact in saves):
        return
    seeds = program.facts(facts.Seed)
    if seeds and not any(hangs_on_rank(fact.seed) for fact in seeds):
        return  # all ranks draw the same from the start
    reported = set()
    for fact in program.facts(facts.RandomState):
        where = (fact.site.path, fact.site.function)
        if where in reported or fact.who != "all" or not _is_of_one_file(fact) or _is_seeded_anew(program, fact):
            continue
        reported.add(where)
        yield propose(
            program,
            fact,
            WARNING,
            "every rank goes on with the random state of rank 0, and all draw the same from here on: gather the states "
            "of all ranks, save them, and give each its own",
            evidence=[*kept_apart(saves[0]), place(saves[0].site, "saved here, of rank 0 alone")],
        )


def _holds_state(fact: facts.Save) -> bool:
    """Whether a generator's state is in what is saved, as it was taken on this rank."""
    return not hangs_on_rank(fact.path) and any(
        isinstance(atom, Opaque)
        and atom.name.startswith(_OF)
        and atom.name.removesuffix("()").rpartition(".")[2] in _TAKEN
        for atom in (*bare(fact.object), *contents(fact.object))
    )


def _is_of_one_file(fact: facts.RandomState) -> bool:
    """Whether it comes from a file that all ranks read, and a part of it that is the same for all."""
    if hangs_on_rank(fact.state):
        return False
    return any(isinstance(part, Loaded) and not hangs_on_rank(part.path) for part in reaching(fact.state))


def _is_seeded_anew(program: Program, fact: facts.RandomState) -> bool:
    return any(other.order > fact.order and hangs_on_rank(other.seed) for other in program.facts(facts.Seed))
