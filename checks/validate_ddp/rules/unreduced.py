"""Trainings over shared-out data whose gradients nothing in the program can reduce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.names_of_training import GRADIENT
from validate_ddp.interpreter.objects import Batch, Open
from validate_ddp.interpreter.ranks import PARTIAL
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Layer, Loader, Sampler
from validate_ddp.interpreter.values import Instance, Opaque, Value, bare, reaching
from validate_ddp.models.optimizers import has_parameters, parts_of
from validate_ddp.rules.between import calls_between

_NO_TENSOR = ("barrier", "monitored_barrier", "new_group", "destroy_process_group", "init_process_group")
_HOOKS = mentions.Mention(
    "gradients may be reduced as they come, or weights averaged",
    *"register_hook register_post_accumulate average_parameters parameters_to_vector comm_hook".split(),
    *"isend irecv P2POp dist.send distributed.send".split(),  # from hand to hand
    case="parameter.register_hook(average)",
    otherwise="gradients that a hook averages count as never averaged",
)


_PLAIN = frozenset(
    """backward step zero_grad scale unscale_ update item detach cpu float print info debug log clip_grad_norm_ isfinite
    isnan clip_grad_value_ parameters get_lr get_last_lr time perf_counter synchronize format append len""".split()
)
"""Calls of which it is sure that none of them reduces gradients."""


class Unreduced(NamedTuple):
    """A step on gradients of the rank's own share. sampler: where the data is shared out. sure: whether all parts of
    the model are known."""

    step: facts.Step
    optimizer: facts.Optimizer
    sampler: Sampler
    sure: bool


def unreduced(program: Program) -> Iterator[Unreduced]:
    """One for each optimizer. Nothing where there is any other way to several GPUs, or a collective may get what is of
    the model and of no batch: gradients or weights."""
    if _reduces(program):
        return
    made = {id(atom): fact for fact in program.facts(facts.Optimizer) for atom in bare(fact.optimizer)}
    seen = set()
    for step in program.facts(facts.Step):
        fact = next((made[id(atom)] for atom in bare(step.optimizer) if id(atom) in made), None)
        if fact is None or id(fact) in seen or {step.who, fact.who} & {*PARTIAL}:
            continue
        sampler = _shared_out(program, step)
        parts = parts_of(fact.parameters)
        modules = [part for part in parts if isinstance(part, (Instance, Layer)) and has_parameters(part)]
        if sampler is None or not modules or not _is_of_own(program, step):
            continue
        seen.add(id(fact))
        sure = (
            program.complete
            and not any(isinstance(part, Open) for part in parts)
            and all(any(isinstance(inner, Layer) for inner in parts_of((atom,))) for atom in bare(fact.parameters))
        )
        yield Unreduced(step, fact, sampler, sure)


def _reduces(program: Program) -> bool:
    others = (facts.Wrap, facts.Shard, facts.Partition, facts.DataParallel, facts.NoSync)
    if program.facts(*others) or any(fact.name not in ("spawn", "Process") for fact in program.facts(facts.Launch)):
        return True
    if program.mentions(mentions.AVERAGED_BY_HAND) or program.mentions(_HOOKS):
        return True
    return any(
        fact.name not in _NO_TENSOR and "object" not in fact.name and _may_be_gradients(fact.arguments)
        for fact in program.facts(facts.Collective)
    )


def _may_be_gradients(arguments: Value) -> bool:
    """Whether what is sent is of a model and of no batch, or is called so."""
    if any(GRADIENT.matches(getattr(atom, "name", "")) for atom in bare(arguments)):
        return True
    held = [*bare(arguments), *reaching(arguments)]
    of_batch = any(isinstance(part, Batch) for part in held)
    return not of_batch and any(isinstance(part, (Instance, Layer, Opaque)) for part in held)


def _shared_out(program: Program, step: facts.Step) -> Sampler | None:
    """The sampler by which the loop of the step gets its share of the data."""
    loops = {(loop.site.path, loop.site.span) for loop in step.loops}
    for fact in program.facts(facts.Iterate):
        if (fact.site.path, fact.site.span) in loops:
            for loader in bare(fact.loader):
                found = _sampler_of(loader)
                if found is not None:
                    return found
    return None


def _sampler_of(loader: object) -> Sampler | None:
    if not isinstance(loader, Loader) or loader.prepared:
        return None
    held = [*bare(loader.sampler), *reaching(loader.sampler)]
    return next((atom for atom in held if isinstance(atom, Sampler)), None)


def _is_of_own(program: Program, step: facts.Step) -> bool:
    """Whether a backward is the last before the step that may touch gradients: what is called in between is known."""
    loops = {loop.site for loop in step.loops}
    for fact in reversed(program.facts(facts.Backward)):
        if fact.order < step.order and any(loop.site in loops for loop in fact.loops):
            called = calls_between(program, fact, step)
            return called is not None and _PLAIN.issuperset(called)
    return False
