"""One rank's failure in or before a collective is swallowed, and the ranks diverge.

## What it does
Looks for collectives of data inside a `try` whose handler catches any error, or `OutOfMemoryError`, which each rank
meets by itself, and goes on, calls that put together or
load the shards of a state among them, for the backward of a wrapped model in one inside a loop, and for collectives
that such a handler calls itself.

## Why is this bad?
An exception is raised on the rank that meets it. If that rank goes on with its own data, the others stay in the
collective until the time-out, or meet the next collective of the first one and exchange the wrong tensors. A barrier in
a handler is reached by the failing rank alone. Let the error end the rank: the launcher then ends the others.

Not reported are a handler that raises or exits, one for errors which every rank meets alike (`ImportError`,
`KeyError`), and a barrier tried on the way out. A `try` around a whole program is advice: that rank ends, and the
others wait for it.

## Example
```python
try:
    dist.all_reduce(loss)
except RuntimeError:
    pass  # go on with the local loss
```

## Use instead
```python
dist.all_reduce(loss)
```

## References
- [torchrun: a failing worker ends the others](https://docs.pytorch.org/docs/stable/elastic/run.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts, gradients
from validate_ddp.interpreter.fact import Fact, Flag, Guard
from validate_ddp.interpreter.ranks import PARTIAL
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Site
from validate_ddp.record.culprits import IN_HANDLER, observations
from validate_ddp.record.run import Run
from validate_ddp.record.sequences import met
from validate_ddp.record.verdict import Observation, Seen, Telling
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Collective
SEVERITIES = (WARNING, INFO, ERROR)  # error: a rehearsal has hung on it
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling("every rank call it, equally often", diverges_before=("DDP402",))

HEAD = """
    dist.init_process_group("gloo")
    loss = torch.ones(1)
"""
VALID = (
    """
    try:
        dist.all_reduce(loss)
    except RuntimeError as error:
        print(f"rank {dist.get_rank()}: {error}")
        raise
    try:
        dist.all_gather_into_tensor(torch.zeros(2), loss)
    except AttributeError:  # an old torch, on every rank
        dist.all_gather([torch.zeros(1), torch.zeros(1)], loss)
    """,
    """
    # alone
    def cleanup():
        try:
            dist.barrier()
            dist.destroy_process_group()
        except Exception:
            pass

    dist.init_process_group("gloo")
    cleanup()
    """,
    """
    try:
        import wandb
    except Exception:
        dist.barrier()
        wandb = None
    try:
        text = open("notes.txt").read()
    except OSError:
        text = ""
    dist.all_reduce(loss)
    """,
    """
    # alone
    def train():
        model = DDP(torch.nn.Linear(1, 1))
        for step in range(10):
            try:
                model(torch.ones(1)).sum().backward()
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise

    dist.init_process_group("gloo")
    try:
        train()
    except Exception as error:
        print(error)
        sys.exit(1)
    finally:
        dist.destroy_process_group()
    """,
)
INVALID = (
    """
    model = DDP(torch.nn.Linear(1, 1))
    for step in range(10):
        try:
            model(loss).sum().backward()  # expect
        except RuntimeError:  # out of memory
            torch.cuda.empty_cache()
    """,
    """
    try:
        dist.all_reduce(loss)  # expect
        loss /= dist.get_world_size()
    except RuntimeError:
        print("local loss")
    """,
    """
    def gathered(value):
        try:
            parts = [torch.zeros_like(value) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, value)  # expect
            return torch.cat(parts)
        except Exception:
            return value

    print(gathered(loss))
    """,
    """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

    def load(model, optimizer, path):
        try:
            state = torch.load(path, map_location="cpu")
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))  # expect
        except Exception as error:
            print(f"starting anew: {error}")

    sharded = FSDP(torch.nn.Linear(1, 1))
    load(sharded, torch.optim.Adam(sharded.parameters()), f"state-{dist.get_rank()}.pt")
    """,
    """
    for step in range(10):
        try:
            (loss * step).item()
        except RuntimeError as error:
            print(error)
            dist.barrier()  # expect
            continue
    """,
)


_WHOLE = (facts.ProcessGroup, facts.Wrap, facts.Loader)
"""What a ``try`` around a whole program holds."""
_BARRIERS = frozenset({"barrier", "monitored_barrier", "wait_for_everyone", "rendezvous"})
_GROUPS = frozenset({"new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh"})
_FARTHEST = 1
"""Calls between the ``try`` and the collective: a handler around a whole program ends that rank, if late."""


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such ``try``, and one for each collective in a handler."""
    reported: set[Site] = set()
    for fact in program.facts(facts.Collective, facts.ShardedState):
        if isinstance(fact, facts.ShardedState) and fact.sure is not True:
            continue
        if Flag.ANY_ERROR in fact.flags:
            if fact.site not in reported and fact.who not in PARTIAL:  # those are DDP401's
                reported.add(fact.site)
                yield _in_handler(program, fact)
            continue
        tried = _swallowed(fact)
        if tried is None or fact.name in _BARRIERS or fact.name in _GROUPS or tried.site in reported:
            continue
        reported.add(tried.site)
        yield _in_try(program, fact, tried, f"without the others in `{fact.name}`")
    for backward in program.facts(facts.Backward):
        tried = _swallowed(backward)
        if tried is None or tried.site in reported or Flag.NO_SYNC in backward.flags:
            continue
        if gradients.live(backward.loss) and _goes_round(backward, tried):
            reported.add(tried.site)
            yield _in_try(program, backward, tried, "without the others in the all-reduce of the gradients")
    yield from _round_programs(program, reported)


def _round_programs(program: Program, reported: set[Site]) -> Iterator[Proposal]:
    """One finding for each ``try`` around a whole training, however deep in it ranks wait for each other."""
    for fact in program.facts(facts.Wrap, facts.Backward):
        if isinstance(fact, facts.Backward) and not gradients.live(fact.loss):
            continue
        tried = next((guard for guard in fact.guards if guard.swallows and _is_whole(program, guard)), None)
        if tried is None or tried.site in reported or tried.depth >= len(fact.chain):
            continue
        reported.add(tried.site)
        yield _in_try(program, fact.moved(fact.chain[tried.depth]), tried, "to the end without the others")


def _is_whole(program: Program, tried: Guard) -> bool:
    return any(tried.site == guard.site for kind in program.facts(*_WHOLE) for guard in kind.guards if guard.swallows)


def _in_try(program: Program, fact: Fact, tried: Guard, how: str) -> Proposal:
    return propose(
        program,
        fact,
        INFO if fact.hangs_on_unknown or _is_whole(program, tried) else WARNING,
        f"an error that one rank meets here is swallowed, and it goes on {how}: they wait for it, or pair with its "
        "next collective",
        evidence=[place(tried.site, "the handler of this `try` catches any error and goes on")],
    )


def _goes_round(fact: Fact, tried: Guard) -> bool:
    """Whether a loop lies around the ``try``, so that the next step follows a failed one."""
    return any(loop.site.path == tried.site.path and loop.site.span.line < tried.site.span.line for loop in fact.loops)


def _in_handler(program: Program, fact: Fact) -> Proposal:
    evidence = [place(fact.chain[-1], "it is reached from here")] if fact.chain else []
    return propose(
        program,
        fact,
        INFO if fact.hangs_on_unknown else WARNING,
        f"`{fact.name}` in an exception handler: only the ranks that failed call it, and the others never join",
        evidence=evidence,
    )


def _swallowed(fact: Fact) -> Guard | None:
    """The innermost ``try`` around the fact that swallows its failure, if it is near."""
    for guard in reversed(fact.guards):
        if guard.swallows and len(fact.chain) - guard.depth <= _FARTHEST:
            return guard
    return None


def observe(run: Run) -> Seen:
    """Looks where the sequences of calls of two ranks first differ."""
    what = "a collective in an exception handler, which the other ranks do not enter"
    went_on = _goes_on(run)
    yield from [went_on] if went_on else observations(run, IN_HANDLER, WARNING, what)
    yield from met(run, protocol.Collective)


def _goes_on(run: Run) -> Observation | None:
    """A rank that calls further collectives after one of its own has raised, and comes to no bad end."""
    for rank in run.ranks:
        failed = {event.n: event.error for event in run.of(rank, protocol.Done) if event.error}
        if run.of(rank, protocol.UncaughtException):
            continue
        calls = run.of(rank, protocol.GroupCall)
        for call in calls[:-1]:
            if isinstance(call, protocol.Collective) and call.n in failed and call.sequence:
                error = failed[call.n].splitlines()[0]
                message = f"`{call.op}` fails on rank {rank} ({error}), and the rank goes on without it"
                since = ((rank, call.time),)
                return Observation(WARNING, call.site, message, (), (rank,), since=since)
    return None
