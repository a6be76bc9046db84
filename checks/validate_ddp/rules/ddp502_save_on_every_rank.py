"""Every rank writes the same file.

## What it does
Looks for checkpoints, configuration dumps, logs, images, sounds and tables that are written without a condition on the
rank, to a path that is the same on every rank, and for runs of a tracker (wandb, mlflow, comet, ...) that every rank
starts. A write in a short helper of another file is told where the helper is called.

It is an error for the state of a model or of its training, where the path and the conditions round it are known to be
equal on every rank: made of constants, options, configuration and counters of epochs or steps. It is a warning where
the path is not known, where ranks may differ about whether they come here (a loss, a look at the disk), or where each
may hold a part of what is written (FSDP, DeepSpeed, tensor and pipeline parallel). A path with a rank in it, also that
within a group or a mesh, is left alone. Where ranks only append to a file, nothing is lost, and it is an advice.

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
has there, else `dist.get_rank() == 0`. It is safe for a `torch.save` of a state of which every rank has a copy, to a
path that is known to be one, which reaches no collective and whose file no rank reads, copies or renames afterwards,
in a program that looks for no files by itself (`glob`, `subprocess`, ...); else it is unsafe, since the other ranks may
wait for each other or miss the file. There is none where the others' part would be lost: of sharded state, of appended
lines, where another caller of this statement puts a rank into the path; and none is safe where the write or a
condition around it names a rank.

## References
- [DDP tutorial: save and load checkpoints](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Edit, Fix, Place, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.ranks import PARTIAL
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Site
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.record.writers import by_one, is_of_script, logs, one_a_node, writers
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose
from validate_ddp.rules.sharing import (
    is_apart,
    is_checkpoint,
    is_equal,
    is_of_an_item,
    is_one_path,
    is_own_elsewhere,
    may_be_sharded,
    only_adds,
)
from validate_ddp.rules.writing_helpers import told_at_caller

_NOT_OF_ALL = frozenset({Flag.PROCESS_FIRST, Flag.DATASET, Flag.LOCKED, Flag.ANY_ERROR})
"""Surroundings in which ranks take turns, write what they happen to come across first (a cache of samples), or are
those that met an error: what one of them writes then, the others do not have."""
TRIGGER = facts.Save
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "safe"
TELLING = Telling("no path that two ranks write")

HEAD = """
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 2))
"""
VALID = (
    """
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
    """,
    """
    torch.save(torch.get_rng_state(), f"rng_{dist.get_rank()}.pt")
    """,
    """
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
    """,
    """
    import logging

    level = logging.INFO if dist.get_rank() == 0 else logging.WARNING
    logging.basicConfig(filename="train.log", level=level)
    """,
    """
    class Table:
        def __init__(self, path):
            self.path = path
            self.rows = {}
            self.file = None

        def write(self):
            with open(self.path, "wb") as file:
                file.write(b"rows")

    class Folder(Dataset):
        def __init__(self):
            if "process" in self.__class__.__dict__.keys():
                torch.save([1, 2], "processed.pt")

    Table(f"rows_{dist.get_rank()}").write()
    Folder()
    """,
    """
    import sys

    sys.stdout = open(sys.stdout.fileno(), mode="w", buffering=1, closefd=False)  # writes to no path
    log = os.fdopen(os.dup(2), "w")
    plain = open(1, "w", closefd=False)
    """,
    """
    # alone
    import lightning

    class Plain(lightning.LightningModule):
        pass

    if not os.path.exists("words.txt"):  # rank zero comes alone, and makes it
        with open("words.txt", "w") as file:
            file.write("one two")
    lightning.Trainer(strategy="ddp", devices=4).fit(Plain())
    """,
)
INVALID = (
    """
    torch.save(model.module.state_dict(), "model.pt")  # expect
    """,
    """
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
    """,
    """
    import yaml

    with open("config.yaml", "w") as stream:  # expect
        yaml.dump({"lr": 0.1}, stream)
    """,
    """
    if os.environ.get("LOCAL_RANK"):  # a launcher sets it on all ranks: as a text, "0" is true
        torch.save(model.module.state_dict(), "model.pt")  # expect
    """,
    """
    from cluster import numbers

    if dist.get_rank() != numbers[os.getpid()]:
        raise RuntimeError("the ranks were started in another order")
    torch.save(model.module.state_dict(), "model.pt")  # expect
    """,
    """
    class Tokens(Dataset):
        def __init__(self, path):
            self.path = path
            self.tokens = self.cached()

        def cached(self):
            if not os.path.exists(self.path):
                torch.save([1, 2], self.path)  # expect
            return [1, 2]

    Tokens("tokens.pt")
    """,
    """
    import logging

    level = logging.INFO if dist.get_rank() == 0 else logging.WARNING
    logging.basicConfig(filename="train.log", filemode="w", level=level)  # expect
    """,
    """
    # alone
    import lightning

    class Plain(lightning.LightningModule):
        pass

    with open("options.txt", "w") as file:  # expect
        file.write("lr 0.1")
    lightning.Trainer(strategy="ddp", devices=4).fit(Plain())
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each write that all ranks reach."""
    if not program.is_distributed or program.is_tool:
        return
    shared: dict[Site, list[facts.Save]] = {}
    for fact in program.facts(facts.Save):
        if fact.who != "all" or is_apart(fact) or is_of_an_item(program, fact) or _is_left_to_some(fact):
            continue
        if program.runs_on_many(fact) and fact.role != "unresolved":
            shared.setdefault(_told(program, fact).site, []).append(fact)
    for saves in shared.values():
        fact = min(saves, key=lambda fact: _doubts(program, fact))
        if _is_left_to_the_first(program, fact):
            continue
        told = _told(program, fact)
        checkpoint, doubts = is_checkpoint(fact), _doubts(program, fact)
        what = "this checkpoint" if checkpoint else "this file"
        once_more = Flag.RUN_AGAIN in fact.flags  # of two ranks each writes in its turn
        severity = INFO if only_adds(fact) else ERROR if checkpoint and not doubts and not once_more else WARNING
        yield propose(
            program,
            told,
            severity,
            _message(fact, what, may_be_sharded(program, fact)),
            evidence=_places(fact, told),
            fix=_fix(program, told, doubts + (told is not fact)),
        )


def _is_left_to_some(fact: facts.Save) -> bool:
    """Whether the ranks take turns, of which the first one's is the last to write, or not all have what is written."""
    if Flag.RUN_AGAIN in fact.flags and not _is_divided(fact):
        return bool(fact.flags & _NOT_OF_ALL - {Flag.PROCESS_FIRST})  # nobody looks whether it is there
    return bool(fact.flags & _NOT_OF_ALL)


def _told(program: Program, fact: facts.Save) -> facts.Save:
    """The write at the place to mend: where all that is known of it is known, that is the caller of a short helper."""
    return fact if _is_divided(fact) else told_at_caller(program, fact)


def _places(fact: facts.Save, told: facts.Save) -> list[Place]:
    writes = [place(asked.site, "every rank writes to it here") for writer in fact.writer for asked in writer.at]
    if told is not fact:
        return [place(fact.site, "written here"), *writes]
    return [*(place(site, "called from here") for site in fact.chain[-1:]), *writes]


def _doubts(program: Program, fact: facts.Save) -> int:
    """How much is not known of what an error says: that all ranks come here, to one path, with the whole model."""
    unknown = _is_divided(fact) or _is_for_one_process(program, fact)
    return unknown + (not is_one_path(fact)) + may_be_sharded(program, fact)


def _is_for_one_process(program: Program, fact: facts.Save) -> bool:
    """Whether it is of one of several candidates, of which another writes on some ranks only: of ``{"single": Trainer,
    "ddp": DDPTrainer}[name]().save()`` the one that writes on all may be for launches without ranks."""
    ways = {(guard.site, guard.way) for guard in fact.guards if guard.way}
    others = [other for other in program.facts(facts.Save) if other.who in PARTIAL and is_checkpoint(other)]
    return any(
        guard.way and guard.site == site and guard.way != way
        for other in others
        for guard in other.guards
        for site, way in ways
    )


def _is_divided(fact: facts.Save) -> bool:
    """Whether it hangs on more than options and counters whether a rank comes here."""
    return fact.divides is not None or Flag.HANDLER in fact.flags


def _message(fact: facts.Save, what: str, in_parts: bool) -> str:
    who = "every rank that gets here" if _is_divided(fact) else "every rank"
    if fact.role == "run":
        return f"{who} starts a run of its own in the tracker (`{fact.name}`); start it on rank zero"
    where, instead = "to the same path", "guard it with rank zero"
    if not is_one_path(fact):
        where, instead = "to what looks like one path", "guard it with rank zero, or put the rank into the path"
    if only_adds(fact):
        return f"{who} appends to {what}: what each adds stands there among that of the others"
    if in_parts:  # a guard would lose the other ranks' parts
        instead = "put the rank into the path, or gather the whole state for rank zero"
    return f"{who} writes {what} {where} (`{fact.name}`); {instead}"


def _is_left_to_the_first(program: Program, fact: facts.Save) -> bool:
    from validate_ddp.rules.guarding import comes_after_a_wait

    return comes_after_a_wait(program, fact)


def _fix(program: Program, fact: facts.Save, doubts: int) -> Fix | None:
    from validate_ddp.rules.guarding import can_be_left_out, goes_unnoticed

    if fact.role in ("log", "run") or not can_be_left_out(program, fact):
        return None  # the other ranks need the logger
    if Flag.RUN_AGAIN in fact.flags:
        return None  # no rank is known yet
    if may_be_sharded(program, fact) or is_own_elsewhere(program, fact):
        return None  # what the other ranks write is theirs alone
    from validate_ddp.rules.edits import rank_zero

    found = rank_zero(program, fact)
    if found is None:
        return None
    condition, imports = found
    edit = Edit("guard", fact.site.path, fact.site.statement, condition)
    safe = not doubts and is_equal(fact) and program.has_seen_all(fact) and goes_unnoticed(program, fact)
    safe = safe and not _speaks_of_ranks(program, fact)
    return Fix(f"write on rank zero only: `if {condition}:`", safe, (*imports, edit))


def _speaks_of_ranks(program: Program, fact: facts.Save) -> bool:
    """Whether the write, its path in it, or a condition around it names a rank, of whatever kind."""
    from validate_ddp.interpreter.names import ASKS_FOR_RANK

    sites = [fact.site, *(guard.site for guard in fact.guards)]
    return any(ASKS_FOR_RANK.matches(program.text(site)) for site in sites)


def observe(run: Run) -> Seen:
    """A checkpoint is an error, any other file that the script itself opens a warning; a log to which they append,
    which loses nothing, is told."""
    if run.world_size < 2 or len(run.ranks) < 2:
        return
    yield from by_one(run)
    for path, writes in writers(run).items():
        ranks = sorted({rank for rank, _ in writes})
        several = len(ranks) > 1 and not one_a_node(run, ranks)
        severity, event = _worst([event for _, event in writes]) if several else (INFO, None)
        if event is None:
            yield Well()
            continue
        message = f"{len(ranks)} ranks write `{path}`: which one's is left, and whether it is whole, is left to chance"
        if _appends(event):
            message = f"{len(ranks)} ranks append to `{path}`: what each writes stands there among that of the others"
        yield Observation(severity, event.site, message, (), tuple(ranks))


def _worst(events: list[protocol.Save | protocol.Write]) -> tuple[str, protocol.Save | protocol.Write | None]:
    for event in events:
        if isinstance(event, protocol.Save) and event.tensors:
            return ERROR, event
    opened = [event for event in events if is_of_script(event)]
    for event in sorted(opened, key=_appends):
        if not (_appends(event) and logs(event)):
            return WARNING, event
    return INFO, opened[0] if opened else None


def _appends(event: protocol.Save | protocol.Write) -> bool:
    return isinstance(event, protocol.Write) and event.mode == "append"
