"""Gradients of a sharded model are clipped by the norm of each rank's own shard.

## What it does
Looks for `torch.nn.utils.clip_grad_norm_` over the parameters of a model in `FullyShardedDataParallel` (FSDP1) whose
strategy shards gradients.

In a run, it also looks at norms that a script takes by hand. What `reduce_scatter` has left to a rank, its shard of the
gradient, is a multiple of that a little later: where the ranks multiply by different numbers, each has taken the norm
of its own shard. And a number that ranks add up is the sum of the squares of all gradients of each: where some of these
are alike on all of them, as those of norms under tensor parallelism, and others are not, what is alike counts as often
as there are ranks.

## Why is this bad?
A rank of FSDP1 holds a part of each parameter, as an ordinary tensor. torch's function knows nothing of the others:
each rank computes the norm of its own shard, smaller by about the square root of the number of ranks, and scales its
shard by its own factor. Gradients are clipped too little, and in another direction than the gradient's.

`model.clip_grad_norm_` of the wrapper adds up the norms of all ranks. The parameters of `fully_shard` (FSDP2) are
DTensors, for which torch's function is right from torch 2.4 on where all of them are of one mesh. Under `NO_SHARD` each
rank holds all of the gradient. Of these nothing is said.

Where the strategy, or whether the model is wrapped, hangs on what reading cannot decide, this is a warning.

## Example
```python
model = FullyShardedDataParallel(model)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
```

## Use instead
```python
model = FullyShardedDataParallel(model)
model.clip_grad_norm_(1.0)
```

## References
- [FullyShardedDataParallel.clip_grad_norm_](https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_)
- [FSDP2 and DTensor](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.surroundings import levels
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import DDP, FSDP
from validate_ddp.interpreter.values import Atom, Instance, Opaque, Symbol, Value, bare, reaching
from validate_ddp.record.norms import norms
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Well
from validate_ddp.rules.proposing import place, propose
from validate_ddp.source.syntax import Call, Constant, If, With
from validate_ddp.source.traversal import last_name, walk

TRIGGER = facts.Clip
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "-"

HEAD = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import ShardingStrategy, fully_shard

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = Net()
"""
VALID = (
    """
    model = FSDP(model)
    model(torch.ones(2, 4)).sum().backward()
    model.clip_grad_norm_(1.0)
    """,
    """
    fully_shard(model)
    model(torch.ones(2, 4)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """,
    """
    # Every rank holds the whole gradient.
    model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)
    model(torch.ones(2, 4)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """,
    """
    # One or the other, asked of the model.
    if "--shard" in sys.argv:
        model = FSDP(model)
    else:
        model = DDP(model)
    model(torch.ones(2, 4)).sum().backward()
    if isinstance(model, FSDP):
        model.clip_grad_norm_(1.0)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """,
    """
    # One or the other, asked of the option again.
    shard = "--shard" in sys.argv
    model = FSDP(model) if shard else DDP(model)
    model(torch.ones(2, 4)).sum().backward()
    if shard:
        model.clip_grad_norm_(1.0)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """,
    """
    # What has the wrapper's method is asked for it.
    model = FSDP(model)
    model(torch.ones(2, 4)).sum().backward()
    if hasattr(model, "clip_grad_norm_"):
        model.clip_grad_norm_(1.0)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """,
    """
    # Whole gradients on every rank, for as long as the block lasts.
    model = FSDP(model)
    model(torch.ones(2, 4)).sum().backward()
    with FSDP.summon_full_params(model, with_grads=True):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """,
    """
    # The teacher is sharded, the student is not.
    teacher, student = FSDP(Net()), DDP(model)
    loss = (student(torch.ones(2, 4)) - teacher(torch.ones(2, 4)).detach()).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    """,
)
INVALID = (
    """
    model = FSDP(model)
    model(torch.ones(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect
    """,
    """
    from torch.nn.utils import clip_grad_norm_

    class Trainer:
        def __init__(self):
            self.model = FSDP(Net(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)
            self.optimizer = torch.optim.AdamW(self.model.parameters())

        def step(self, batch):
            self.model(batch).sum().backward()
            if "--clip" in sys.argv:
                clip_grad_norm_([p for p in self.model.parameters() if p.grad is not None], 1.0)  # expect
            self.optimizer.step()

    Trainer().step(torch.ones(2, 4))
    """,
    """
    # The wrapper shards in place: the name from before holds the same shards.
    wrapped = FSDP(model)
    wrapped(torch.ones(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect
    """,
    """
    # Clipped alike, however it is wrapped.
    model = FSDP(model) if "--shard" in sys.argv else DDP(model)
    model(torch.ones(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect warning
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such call."""
    wraps = [fact for fact in program.facts(facts.Wrap) if fact.name == "fsdp"]
    reported = set()
    for fact in program.facts(facts.Clip) if wraps else ():
        held = [part for part in reaching(fact.parameters) if _is_model(part)]
        sharded = [wrap for wrap in wraps if wrap.order < fact.order and any(_is_of(part, wrap) for part in held)]
        if not sharded or fact.site in reported or _is_cared_for(program, fact):
            continue
        surely = all(any(_is_of(part, wrap) for wrap in sharded) for part in held)
        surely = surely and not any(wrap.hangs_on_unknown for wrap in sharded)
        strategies = [_shards(wrap.sharding_strategy) for wrap in sharded]
        if not any(strategies) or (fact.hangs_on_unknown and not surely):
            continue  # whoever asks before clipping may have asked for this
        reported.add(fact.site)
        whole = surely and all(strategies) and Flag.HANDLER not in fact.flags
        yield propose(
            program,
            fact,
            ERROR if whole else WARNING,
            f"`{fact.name}` takes the norm of each rank's own shard, so each rank clips by another factor; call "
            "`clip_grad_norm_` of the FSDP model",
            evidence=[place(sharded[0].site, "the model is sharded here")],
            rests_on=sharded,
            on_any=True,
        )


def observe(run: Run) -> Seen:
    """Of shards that are scaled, and of squares that are added up."""
    for events, message in norms(run):
        site = next(iter(events.values())).site
        yield Observation(WARNING, site, message, (), tuple(events)) if message else Well()


def _is_model(part: Atom) -> bool:
    return isinstance(part, (DDP, FSDP, Instance, Opaque))


def _is_of(part: Atom, wrap: facts.Wrap) -> bool:
    """Whether it is what FSDP made, or what it was made of, which FSDP changes in place."""
    return any(part is wrapper for wrapper in wrap.wrapper) or any(part is inner for inner in bare(wrap.inner))


def _shards(strategy: Value) -> bool | None:
    """Whether the strategy, of which FULL_SHARD is the default, surely shards gradients; None where it may."""
    names = {atom.last if isinstance(atom, Symbol) else "" for atom in bare(strategy)}
    if names <= {"NO_SHARD"} and names:
        return False
    return True if names <= _SHARDING else None


_SHARDING = frozenset({"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})


def _is_cared_for(program: Program, fact: facts.Clip) -> bool:
    """Whether it stands in ``summon_full_params``, which gathers gradients too where it is told to, or where the
    wrapper's own method is asked for."""
    for level in levels(program.body(fact.site.path), fact.site.statement):
        owner = level.owner
        if isinstance(owner, With):
            called = [item.context_expr for item in owner.items]
            if any(isinstance(call, Call) and last_name(call.func) == "summon_full_params" for call in called):
                return True
        elif isinstance(owner, If) and any(
            isinstance(node, Constant) and node.value == "clip_grad_norm_" for node in walk(owner.test)
        ):
            return True
    return False
