"""Some ranks leave while the others go on to a collective or a backward.

## What it does
Looks for `break`, `continue`, `return`, `sys.exit(0)` and `os._exit(0)` under a condition on the rank, or on whether
this rank's own loss is a number or its batch holds anything, or all it should, where the other ranks still have a
collective or backward to come: later, or in the next turn of the loop; and for a backward left out on such a condition.

## Why is this bad?
A backward of DistributedDataParallel, like a collective, needs every rank. Those that go on wait for the one that has
left, until the time-out, or its next call pairs with an older one of theirs and the gradients of different batches are
mixed. An exit with code 0 is no help: the launcher takes it for success and leaves the others waiting.

Not reported: `raise` and `sys.exit(1)` on a loss that is not a number, since the launcher then ends the job, and
conditions on a value that a collective has made the same on all ranks. A collective which the other ranks reach
directly behind the exit is DDP401's. Where only the name of something unknown says that a condition is one on the
rank, it is a warning.

## Example
```python
if not torch.isfinite(loss):
    continue
loss.backward()
```

## Use instead
```python
bad = (~torch.isfinite(loss)).float()
dist.all_reduce(bad, op=dist.ReduceOp.MAX)
if bad.item():
    continue
loss.backward()
```

## References
- [torch.distributed: every rank must call a collective](https://docs.pytorch.org/docs/stable/distributed.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.ranks import PARTIAL, complementary, phrase
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Site, bare, constant
from validate_ddp.record.leaving import by_batches, ended, gone
from validate_ddp.record.run import Run
from validate_ddp.record.sequences import divergences
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.rules import together
from validate_ddp.rules.own_numbers import LEAVE, has_talked, in_call, is_mixed, is_of_wrapped, is_within, missed
from validate_ddp.rules.proposing import kept_apart, place, propose

TRIGGER = facts.Exit
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling(diverges_before=("DDP408",))

HEAD = """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(2, 2))
"""
VALID = (
    """
    for step in range(10):
        loss = model(torch.ones(2, 2)).sum()
        if not torch.isfinite(loss):
            sys.exit(1)
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if torch.isnan(bad):
            continue
        loss.backward()
    """,
    """
    for step in range(10):
        model(torch.ones(2, 2)).sum().backward()
        if rank != 0:
            continue
        print(step)
        for name in ("a", "b"):
            if step > 3:
                break
    """,
    """
    # alone
    def log(step):
        if rank != 0:
            return
        print(step)

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(2, 2))
    stop = torch.zeros(1)
    for step in range(10):
        model(torch.ones(2, 2)).sum().backward()
        if rank == 0 and step > 5:
            stop += 1
        log(step)
        dist.broadcast(stop, 0)
        if stop.item():
            break
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        sys.exit(0)
    """,
    """
    with model.join():
        for step in range(10):
            if rank == 1 and step == 5:
                break
            model(torch.ones(2, 2)).sum().backward()
    """,
    """
    # What all ranks have put together is equal on all of them, and so are gradients after a backward.
    loader = DataLoader(range(64), sampler=DistributedSampler(range(64), shuffle=False))
    for batch in loader:
        loss = model(batch).sum()
        shared = torch.tensor(loss.item())
        dist.all_reduce(shared)
        if torch.isnan(shared):
            continue
        loss.backward()
        if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
            continue
        if torch.isnan(loss):
            print("this one was lost")
            continue
        print(loss)

    def mean(values, mask):
        if mask is None:
            return values.mean()
        return (values * mask).sum()

    for batch in loader:
        mean(model(batch), batch > 0).backward()
    for batch in loader:
        loss_all = reduce_of_somewhere(model(batch).sum())
        if torch.isnan(loss_all):
            continue
        loss_all.backward()
    """,
    """
    from torch.distributed.algorithms.join import Join

    with Join([model]):
        for step in range(10):
            if rank == 1 and step == 5:
                break
            model(torch.ones(2, 2)).sum().backward()
    """,
    """
    def filled(data):
        for batch in data:
            if batch is None:
                continue
            yield batch

    def first(data):
        batch = next(iter(data))
        while batch is None:
            batch = next(iter(data))
        yield batch

    data = DataLoader(range(64), sampler=DistributedSampler(range(64), shuffle=False))
    for given in (filled, first):
        for batch in given(data):
            if batch is None:
                continue
            model(batch).sum().backward()
    """,
)
INVALID = (
    """
    for step in range(10):
        loss = model(torch.ones(2, 2)).sum()
        if torch.isnan(loss).any():
            continue  # expect
        loss.backward()
    """,
    """
    import math

    loader = DataLoader(range(64), sampler=DistributedSampler(range(64), shuffle=False))

    def step(batch):
        loss = model(batch).sum()
        if torch.isnan(loss):
            return  # expect
        loss.backward()

    total = torch.zeros(1)
    for batch in loader:
        dist.all_reduce(total)
        loss = model(batch).sum()
        value = loss.item()
        if not math.isfinite(value):
            continue  # expect
        loss.backward()
    for batch in loader:
        step(batch)
    """,
    """
    loader = DataLoader(range(64), sampler=DistributedSampler(range(64), shuffle=False))
    for batch in loader:
        if batch is None:
            continue  # expect
        loss = model(batch).sum()
        if torch.isfinite(loss):
            loss.backward()  # expect
    """,
    """
    best = 0.0
    for epoch in range(10):
        model(torch.ones(2, 2)).sum().backward()
        if rank == 0:
            score = float(torch.rand(1))
            if score < best:
                break  # expect
            best = score
    """,
    """
    def train(epoch, last):
        model(torch.ones(2, 2)).sum().backward()
        if rank == 0 and epoch >= last:
            torch.save(model.module.state_dict(), "model.pt")
            os._exit(0)  # expect

    for epoch in range(100):
        train(epoch, 10)
    """,
    """
    def prepare(path):
        if rank == 0 and os.path.exists(path):
            return  # expect
        print("prepare")
        dist.barrier()

    prepare("data")
    """,
    """
    with model.join():
        for step in range(10):
            if rank == 1 and step == 5:
                break  # expect
            model(torch.ones(2, 2)).sum().backward()
            dist.barrier()
    """,
    """
    # alone
    from accelerate import Accelerator
    from models import build

    accelerator = Accelerator()
    model = accelerator.prepare(build())
    for step in range(10):
        loss = model(torch.ones(2, 2)).sum()
        if torch.isnan(loss):
            continue  # expect
        accelerator.backward(loss)
        if step > 5 and accelerator.is_main_process:
            exit()  # expect
    """,
)
_JOINED = (facts.Collective, facts.ShardedState, facts.Backward)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such way out."""
    exits = program.facts(facts.Exit)
    launching = {loop.serial for launch in program.starts for loop in launch.loops}
    meetings = program.facts(*_JOINED)
    sharded = [atom for fact in program.facts(facts.Shard) for atom in bare(fact.model)]
    wraps = together.wrappings(program)
    by_hand = [] if wraps else together.averages_by_hand(program)
    awaited = program.facts(facts.Backward) if wraps else by_hand  # a backward by itself waits for nobody
    surely = any(not fact.hangs_on_unknown for fact in wraps if not isinstance(fact, facts.Preparing))
    reported = set()
    for fact in exits:
        if fact.site in reported or fact.flags & {Flag.HANDLER, Flag.NO_GRAD, Flag.DATASET}:
            continue
        if not program.runs_on_many(fact):
            continue
        if fact.name in LEAVE and constant(fact.code) not in (0, None):
            continue  # the launcher ends the job
        if fact.who in PARTIAL:
            waiting = _waited_for(program, fact, exits, meetings, launching)
        else:
            waiting = missed(fact, awaited, sharded)
        if waiting is None:
            continue
        reported.add(fact.site)
        own = fact.who not in PARTIAL
        severity = INFO if _is_open(fact) else ERROR
        if own and (
            not (surely or is_of_wrapped(fact))
            or fact.lacking
            or fact.hangs_on_unknown
            or is_mixed(fact)
            or has_talked(fact, meetings)
        ):
            severity = WARNING
        what = "backward" if isinstance(waiting, facts.Backward) else f"`{waiting.name}`"
        alone = f"a rank whose own batch is {fact.lacking}" if fact.lacking else "a rank whose own loss is not a number"
        left = "the backward is left out" if fact.name == "skip" else f"`{fact.name}`"
        yield propose(
            program,
            fact,
            severity,
            f"{left} on {alone if own else phrase(fact.who)}: the others go on to {what} and wait there; "
            "let all ranks agree first",
            evidence=[*kept_apart(fact), place(waiting.site, "the others wait here")],
        )._replace(expects=("statement", ""))


def _is_open(fact: Fact) -> bool:
    """Whether it also hangs on a condition of unknown truth in a function called under the condition on the rank."""
    split = next((guard for guard in reversed(fact.guards) if guard.who in PARTIAL), None)
    return split is not None and any(guard.depth > split.depth and not guard.exact for guard in fact.guards)


def _waited_for(
    program: Program, fact: Fact, exits: list[facts.Exit], meetings: list[Fact], launching: set[int]
) -> Fact | None:
    """What the other ranks go on to after a way out under a condition on the rank."""
    split = next(guard for guard in reversed(fact.guards) if guard.who in PARTIAL)
    if any(other is not fact and complementary(fact.who, other.who) and _same_stretch(fact, other) for other in exits):
        return None  # the others leave too
    behind = [other for other in meetings if any(_same_place(guard.site, split.site) for guard in other.guards)]
    if any(not isinstance(other, facts.Backward) and other.who in PARTIAL for other in behind):
        return None  # DDP401 tells of it
    for other in meetings:
        rest = next((guard.who for guard in other.guards if _same_place(guard.site, split.site)), None)
        if rest:  # behind the way out, or in its other branch
            if rest != "unclear" and not (isinstance(other, facts.Backward) and complementary(fact.who, rest)):
                continue
        elif other.who != "all" and not (isinstance(other, facts.Backward) and complementary(fact.who, other.who)):
            continue
        if Flag.NO_GRAD in other.flags or _shares_unknown(fact, other) or _stands_in(fact, other):
            continue
        if _comes_after(fact, other, launching) and (fact.name != "return" or in_call(program, fact, other)):
            return other
    return None


def _stands_in(fact: Fact, other: Fact) -> bool:
    """Whether ranks that have left take part in it all the same, which ``Join`` sees to where its block ends early."""
    return isinstance(other, facts.Backward) and fact.name == "break" and Flag.JOIN in fact.flags & other.flags


def _same_place(first: Site, second: Site) -> bool:
    return (first.path, first.span) == (second.path, second.span)


def _comes_after(fact: Fact, other: Fact, launching: set[int]) -> bool:
    """Whether the ranks that stay meet ``other`` once this one has left."""
    later = other.order > fact.order
    serials = {loop.serial for loop in other.loops} - launching  # one turn of those is one rank
    if fact.name in LEAVE:
        return later or any(loop.serial in serials for loop in fact.loops)
    if fact.name == "return":
        depth = len(fact.chain)
        around = [loop.serial for loop in fact.loops if is_within(loop.site, fact)]
        return other.chain[:depth] == fact.chain and (later or any(serial in serials for serial in around))
    if not fact.loops or fact.loops[-1].serial not in serials:
        return False
    return later or fact.name == "break"


def _same_stretch(fact: Fact, other: Fact) -> bool:
    """Whether two ways out leave the same loop, or the same call of a function."""
    if fact.loops and other.loops and fact.loops[-1].serial == other.loops[-1].serial:
        return True
    return fact.chain == other.chain and len(fact.loops) == len(other.loops)


def _shares_unknown(fact: Fact, other: Fact) -> bool:
    """Whether both lie under one condition of unknown truth: they may be its two branches."""
    unknown = [guard.site for guard in fact.guards if guard.who == "all" and not guard.exact]
    return any(_same_place(guard.site, site) for guard in other.guards for site in unknown)


def observe(run: Run) -> Seen:
    """Compares ranks batch by batch."""
    if run.world_size < 2 or len(run.ranks) < 2 or not run.wraps:
        return
    compared = list(by_batches(run))
    left = next((each for each in compared if each is not None), None) or gone(run) or ended(run)
    if left is not None:
        since = ((left.rank, left.since),)
        yield Observation(ERROR, left.site, left.message, left.notes, (left.rank,), left.call, since=since)
    elif compared and not divergences(run):
        yield Well()
