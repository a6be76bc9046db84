"""An object that only rank zero has is used on every rank.

## What it does
Looks for a method or attribute of an object (a writer, a run, a logger) that was made under a condition on the rank,
used where the other ranks come along too, which hold None or never bound the name; and for a name read there which the
other ranks never bound.

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

import re
from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Edit, Fix, Place, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Guard
from validate_ddp.interpreter.names import ASKS_FOR_RANK, MAY_ASK_FOR_RANK
from validate_ddp.interpreter.ranks import phrase
from validate_ddp.interpreter.surroundings import statement_at
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Instance, Resource, unmarked
from validate_ddp.record.events import Site as CallSite
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose
from validate_ddp.source.syntax import Attribute, Call, Expr, Expression, Name
from validate_ddp.source.traversal import last_name, walk

TRIGGER = facts.Absence
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "safe"
TELLING = Telling(crashes=("NameError", "UnboundLocalError", "AttributeError", "TypeError"))

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
    """
    if rank == 0:
        start, path = 0, "run-1"
        show = lambda: print(path)
    if rank != 0:
        start = 1
        show = lambda: None
    show()
    found = {"path": path if rank == 0 else None}
    many = [path for _ in range(3) if rank == 0]
    path = found["path"]
    print(start, path)
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
    """
    if rank == 0:
        start = 1
    for step in range(start, 3):  # expect
        print(step)
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each statement that uses such an object."""
    reported = set()
    for fact in sorted(program.facts(facts.Absence), key=lambda fact: not fact.name):  # what is taken says more
        statement = (fact.site.path, fact.site.statement)
        doubt = _doubt(program, fact)
        if statement in reported or not program.runs_on_many(fact) or doubt == "settled":
            continue
        reported.add(statement)
        said = fact.said
        others = "is None" if fact.none else "does not exist"
        yield propose(
            program,
            fact,
            INFO if doubt else ERROR,
            f"`{said}` is made on {phrase(fact.holder)} and {others} on the others, so "
            + (f"`{said}.{fact.name}` raises there; guard it" if fact.name else "to read it raises there; guard it"),
            evidence=_made(fact, said),
            fix=_fix(program, fact, said),
            guessed=not fact.sure,
        )._replace(expects=("expression", "") if fact.name else ("reading", said))


def _made(fact: facts.Absence, said: str) -> list[Place]:
    return [
        place(unmarked(atom).site, f"`{said}` is made here")
        for atom in fact.object
        if isinstance(unmarked(atom), (Resource, Instance)) and unmarked(atom).site.span.line > 1
    ][:1]


def _doubt(program: Program, fact: facts.Absence) -> str:
    """What the conditions of unknown truth around the use leave open: ``settled`` where one is about the object."""
    said = fact.said
    texts = [program.text(guard.site) for guard in fact.guards if _is_unknown(guard)]
    name = said.rpartition(".")[2]
    if any(name in text or ASKS_FOR_RANK.matches(text) for text in texts):
        return "settled"
    return "open" if not all(_compares(text) for text in texts) else ""


def _is_unknown(guard: Guard) -> bool:
    return guard.who in ("all", "unclear") and not guard.exact


def _compares(text: str) -> bool:
    """Whether a condition compares with a constant or counts steps, which no condition on the rank in disguise does."""
    compares = any(sign in text for sign in ("==", "!=", "<", ">", "%"))
    return compares and not MAY_ASK_FOR_RANK.matches(text) and "is None" not in text and "is not None" not in text


def _fix(program: Program, fact: facts.Absence, said: str) -> Fix | None:
    if not fact.whole or not fact.none:
        return None
    statement = (fact.site.path, fact.site.statement)
    for other in program.facts(facts.Collective, facts.ShardedState, facts.Forward, facts.Backward):
        if any((site.path, site.statement) == statement for site in (other.site, *other.chain)):
            return None
    edit = Edit("guard", fact.site.path, fact.site.statement, f"{said} is not None")
    node = statement_at(program.body(fact.site.path), fact.site.statement)
    safe = isinstance(node, Expr) and not _calls_others(node.value)
    return Fix(f"Use `{said}` only where it exists", safe, (edit,))


def _calls_others(expression: Expression) -> bool:
    """Whether an argument calls something of which it is not known that it waits for no other rank."""
    if not isinstance(expression, Call):
        return False
    for node in walk([*expression.args, *(keyword.value for keyword in expression.keywords)]):
        if isinstance(node, Call):
            known = _BUILTIN if isinstance(node.func, Name) else _METHODS if isinstance(node.func, Attribute) else ()
            if last_name(node.func) not in known:
                return True
    return False


_WANTING = re.compile(
    r"'NoneType' object|argument of type 'NoneType'|^name '\w+' is not defined|cannot access (local|free) variable|"
    r"referenced before assignment"
)


def observe(run: Run) -> Seen:
    """Rank zero has come as far and has not failed like the others: what is wanting on all ranks is another case."""
    if run.world_size < 2 or 0 not in run.ranks:
        return
    failed = {rank: event for rank, event in run.each(protocol.UncaughtException) if _WANTING.search(event.message)}
    if not failed or 0 in failed or any(_done(run, 0) < _done(run, rank) for rank in failed):
        return
    for rank, event in failed.items():
        frame = event.own
        if frame is not None:
            ranks = tuple(other for other, its in failed.items() if its.own == frame)
            message = f"rank {rank} fails here with {event.kind}: {event.message.splitlines()[0]}; rank 0 does not"
            yield Observation(ERROR, CallSite((frame,)), message, (), ranks)


def _done(run: Run, rank: int) -> int:
    return len(run.of(rank, protocol.GroupCall, protocol.Step, protocol.Batch))
