"""An object that only rank zero has is used on every rank.

## What it does
Looks for a method or attribute of an object (a writer, a run, a logger) that was made under a condition on the rank,
used where the other ranks come along too, which hold None or never bound the name.

## Why is this bad?
The other ranks raise `AttributeError: 'NoneType' object has no attribute ...` or `NameError`. On one GPU, and on rank
zero, all is well; with two the job dies, or hangs if the failing rank had a collective to take part in.

Where the use hangs on a condition that reading cannot decide, and that may be one on the rank under another name, this
is advice. Where only the name of something unknown says on which ranks it was made, it is a warning.

## Example
```python
writer = SummaryWriter() if rank == 0 else None
writer.add_scalar("loss", loss, step)
```

## Use instead
```python
writer = SummaryWriter() if rank == 0 else None
if writer is not None:
    writer.add_scalar("loss", loss, step)
```

## Fix safety
The fix puts the statement under `if writer is not None:`. It is offered where the statement is nothing but that call,
the other ranks hold None, and no collective or backward is in it: the ranks that have the object do as before, the
others no longer fail. It is unsafe where its arguments call what is not known: a collective may be within, for which
rank zero would wait alone.

## References
- [PyTorch: distributed data parallel tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import ERROR, INFO, WARNING, Edit, Fix, Place, Proposal
from validate_ddp.interpreter.facts import Fact, Guard
from validate_ddp.interpreter.ranks import phrase
from validate_ddp.interpreter.surroundings import statement_at
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Instance, Resource, constant, unmarked
from validate_ddp.rules.proposing import place, propose, unless_guessed

TRIGGER = "absence"
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "safe"

_BUILTIN = frozenset("float int str len round abs min max sum list tuple dict range print repr".split())
_METHODS = frozenset("item detach cpu numpy tolist get_last_lr format".split())
"""Of tensors, schedulers and texts; `mean` or `get` may be a meter's, and reduce over the ranks."""
HEAD = """
    from torch.utils.tensorboard import SummaryWriter

    dist.init_process_group("gloo")
    rank = dist.get_rank()
"""
VALID = (
    """
    writer = SummaryWriter() if rank == 0 else None
    for step in range(3):
        if writer is not None:
            writer.add_scalar("loss", 0.0, step)
        if writer:
            writer.flush()
    if rank == 0:
        writer.close()
    """,
    """
    class Silent:
        def add_scalar(self, name, value, step):
            pass

    class Trainer:
        def __init__(self):
            self.run = None
            if rank == 0:
                self.writer = SummaryWriter()
                self.run = SummaryWriter()
            else:
                self.writer = Silent()

        def fit(self):
            for step in range(3):
                self.writer.add_scalar("loss", 0.0, step)
                if self.run is not None and self.run.log_dir:
                    self.run.flush()
                self.run and self.run.flush()

    Trainer().fit()
    """,
    """
    names = [None]
    if rank == 0:
        names[0] = "run-1"
    dist.broadcast_object_list(names, src=0)
    name = names[0]
    print(name.upper())

    def log(step):
        if rank != 0:
            return
        writer.add_scalar("loss", 0.0, step)

    if rank == 0:
        writer = SummaryWriter()
    log(0)
    try:
        writer.close()
    except NameError:
        pass
    """,
)
INVALID = (
    """
    writer = None
    if rank == 0:
        writer = SummaryWriter()
    for step in range(3):
        writer.add_scalar("loss", 0.0, step)  # expect
    """,
    """
    class Trainer:
        def __init__(self):
            if dist.get_rank() == 0:
                self.writer = SummaryWriter()

        def log(self, step):
            self.writer.add_scalar("loss", 0.0, step)  # expect

        def fit(self):
            for step in range(100):
                if step % 10 == 0:
                    self.log(step)

    Trainer().fit()
    """,
    """
    def make():
        if dist.get_rank() == 0:
            return SummaryWriter()

    writer = make()
    print(writer.log_dir)  # expect
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each statement that uses such an object."""
    reported = set()
    for fact in program.facts("absence"):
        statement = (fact.site.path, fact.site.statement)
        doubt = _doubt(program, fact)
        if statement in reported or not program.runs_on_many(fact) or doubt == "settled":
            continue
        reported.add(statement)
        said, holder = str(constant(fact.value("said"))), str(constant(fact.value("holder")))
        others = "is None" if constant(fact.value("none")) else "does not exist"
        yield propose(
            program,
            fact,
            INFO if doubt else unless_guessed(ERROR, constant(fact.value("sure")) is not True),
            f"`{said}` is made on {phrase(holder)} and {others} on the others, so `{said}.{fact.name}` raises there; "
            "guard it",
            evidence=_made(fact, said),
            fix=_fix(program, fact, said),
        )._replace(expects=("expression", ""))


def _made(fact: Fact, said: str) -> list[Place]:
    return [
        place(unmarked(atom).site, f"`{said}` is made here")
        for atom in fact.value("object")
        if isinstance(unmarked(atom), (Resource, Instance)) and unmarked(atom).site.span.line > 1
    ][:1]


def _doubt(program: Program, fact: Fact) -> str:
    """What the conditions of unknown truth around the use leave open: ``settled`` where one is about the object."""
    said = str(constant(fact.value("said")))
    texts = [program.text(guard.site) for guard in fact.guards if _is_unknown(guard)]
    name = said.rpartition(".")[2]
    if any(name in text or "rank" in text or "main" in text for text in texts):
        return "settled"
    return "open" if not all(_compares(text) for text in texts) else ""


def _is_unknown(guard: Guard) -> bool:
    return guard.who in ("all", "unclear") and not guard.exact


def _compares(text: str) -> bool:
    """Whether a condition compares with a constant or counts steps, which no condition on the rank in disguise does."""
    return any(sign in text for sign in ("==", "!=", "<", ">", "%")) and not any(
        word in text for word in ("rank", "main", "master", "local", "proc", "is None", "is not None")
    )


def _fix(program: Program, fact: Fact, said: str) -> Fix | None:
    if not constant(fact.value("whole")) or not constant(fact.value("none")):
        return None
    statement = (fact.site.path, fact.site.statement)
    for other in program.facts("collective", "sharded_state", "forward", "backward"):
        if any((site.path, site.statement) == statement for site in (other.site, *other.chain)):
            return None
    edit = Edit("guard", fact.site.path, fact.site.statement, f"{said} is not None")
    node = statement_at(program.body(fact.site.path), fact.site.statement)
    safe = node is not None and node[0] == "expr" and not _calls_others(node[2][2:4])
    return Fix(f"Use `{said}` only where it exists", safe, (edit,))


def _calls_others(node: Any) -> bool:
    """Whether something is called of which it is not known that it waits for no other rank."""
    if not isinstance(node, list):
        return False
    if len(node) == 5 and node[0] == "call":
        kind, known = node[1][0], {"name": _BUILTIN, "attr": _METHODS}
        if node[1][2 if kind == "attr" else 1] not in known.get(kind, ()):
            return True
    return any(map(_calls_others, node))
