"""A process group is initialised and no path destroys it.

## What it does
Looks for a script that calls `init_process_group` and from which no call of `destroy_process_group` is reached on
every rank.

## Why is this bad?
NCCL's communicators then die with the process, in any order: PyTorch warns at exit (`destroy_process_group() was not
called`), a rank that ends early can make the others report a broken connection or hang in their own exit, and pending
work may be lost. A destroy that only rank zero reaches counts as missing.

## Example
```python
def main():
    dist.init_process_group("nccl")
    train()
```

## Use instead
```python
def main():
    dist.init_process_group("nccl")
    train()
    dist.destroy_process_group()
```
Call it on the normal path, not in `finally`: after an exception on one rank, destroying the group waits for work that
the other ranks will never finish.

## Fix safety
The fix adds the call at the end of the normal path: behind everything else in the main block (or at the end of the
script), or as the last statement of the function that each process was started with. It is safe where the function that
made the model has returned by then. Where the model is still alive it is unsafe: freed after the group, a model can
abort or hang the process with gloo (PyTorch 2.13). So it is where something may go on: code behind the main block, a
thread, an `atexit` handler, a checkpoint that is saved in the background. None is offered where the path ends in
another way, as `sys.exit`.

## References
- [torch.distributed: shutdown](https://docs.pytorch.org/docs/stable/distributed.html#shutdown)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Edit, Fix, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.ranks import PARTIAL, phrase
from validate_ddp.interpreter.trace import Program
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.ProcessGroup
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "safe"
TELLING = Telling("a group that was gone when the rank exited", of_the_script=True)

HEAD = ""
TAIL = ""
VALID = (
    """
    import atexit
    import threading

    def close():
        if dist.is_initialized():
            thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
            thread.start()
            thread.join(timeout=10.0)

    def main():
        dist.init_process_group("nccl")
        atexit.register(close)
        dist.barrier()

    if __name__ == "__main__":
        main()
    """,
    """
    def main():
        dist.init_process_group("nccl")
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        main()
    """,
    """
    from torch.distributed import destroy_process_group as shut_down

    def cleanup():
        if dist.is_initialized():
            shut_down()

    def main():
        dist.init_process_group("nccl")
        try:
            dist.barrier()
        finally:
            cleanup()

    main()
    """,
    """
    import atexit

    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)
    """,
    """
    class Trainer:
        def __init__(self):
            dist.init_process_group("gloo")

        def __del__(self):
            dist.destroy_process_group()

    Trainer()
    """,
)
INVALID = (
    """
    def main():
        dist.init_process_group("nccl")  # expect
        dist.barrier()

    if __name__ == "__main__":
        main()
    """,
    """
    def main():
        dist.init_process_group("nccl")  # expect
        dist.barrier()
        if dist.get_rank() == 0:
            dist.destroy_process_group()

    if __name__ == "__main__":
        main()
    """,
    """
    class Trainer:
        def __init__(self, rank):
            dist.init_process_group("nccl", rank=rank, world_size=2)  # expect

    def worker(rank):
        Trainer(rank)

    if __name__ == "__main__":
        mp.spawn(worker, nprocs=2)
    """,
    """
    def main():
        dist.init_process_group("nccl")  # expect
        try:
            dist.barrier()
        except KeyboardInterrupt:
            dist.destroy_process_group()
            raise

    if __name__ == "__main__":
        main()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding at the first initialisation of the script."""
    groups = program.facts(facts.ProcessGroup)
    started = [fact for fact in groups if fact.name == "init"]
    found = [fact for fact in groups if fact.name == "destroy"]
    destroyed = [fact for fact in found if Flag.HANDLER not in fact.flags]
    if not started or not program.complete:
        return
    if program.is_tool and program.mentions(mentions.GROUP_DESTROYED):
        return  # the trainers that it shares its set-up with clean up
    if any(fact.who not in PARTIAL or fact.who == started[0].who for fact in destroyed):
        return
    name = "deepspeed.init_distributed" if started[0].deepspeed else "init_process_group"
    message = f"`{name}` has no matching `destroy_process_group` on any path of this script"
    if found and not destroyed:
        message = f"`destroy_process_group` follows on `{name}` only where an error is handled"
    if destroyed:
        message = f"`destroy_process_group` is reached on {phrase(destroyed[0].who)}, the other ranks never call it"
    evidence = [place(fact.site, f"destroyed here, on {phrase(fact.who)}") for fact in found]
    fix = None if found else _fix(program, started[0])
    yield propose(program, started[0], WARNING, message, evidence=evidence, fix=fix)


def _fix(program: Program, started: facts.ProcessGroup) -> Fix | None:
    if started.loops or started.deepspeed:
        return None
    from validate_ddp.rules.edits import always_initialised, distributed
    from validate_ddp.rules.teardown import ending

    last = ending(program, started)
    if last is None:
        return None
    dist, imports = distributed(program, last.path, last.statement)
    call = f"{dist}.destroy_process_group()"
    title = f"call `{call}` at the end"
    if not always_initialised(program):
        call = f"if {dist}.is_initialized():\n    {call}"
    edit = Edit("insert_before" if last.before else "append", last.path, last.statement, call)
    return Fix(title, not last.in_use, (*imports, edit))


def observe(run: Run) -> Seen:
    """Looks at ranks that came to their end; after a crash a group that is up says nothing."""
    if run.outcome != "finished":
        return
    ends, left = 0, []
    for rank in run.ranks:
        groups, exits = run.of(rank, protocol.Group), run.of(rank, protocol.Exit)
        failed = bool(run.of(rank, protocol.UncaughtException))
        for event in exits or groups:
            gone = isinstance(event, protocol.Exit) and not event.initialized and not failed
            yield Well(event.site, held=bool(groups)) if gone else Unclear(event.site)
        if groups and not failed:
            ends += len(exits)
            left += [(rank, event.site) for event in exits if event.initialized and event.site is not None]
    if left:
        who = "every rank" if len(left) == ends else "rank " + ", ".join(str(rank) for rank, _ in left)
        message = f"the process group is still up when {who} exits: no `destroy_process_group()` was called"
        site = left[0][1]
        # A group that a library made is that library's to destroy, as with a Trainer.
        severity = INFO if site.frames and site.frames[0].library else WARNING
        yield Observation(severity, site, message, (), tuple(rank for rank, _ in left))
