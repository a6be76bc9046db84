"""How steps of an optimizer follow on backwards: in every turn of a loop, or once for several of them."""

from __future__ import annotations

from typing import NamedTuple

from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Fact, Flag, Loop
from validate_ddp.interpreter.names_of_training import GRADIENT
from validate_ddp.interpreter.objects import Output
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import DDP
from validate_ddp.interpreter.turns import ONCE
from validate_ddp.interpreter.values import Opaque, Site, Value, bare, reaching


class Accumulation(NamedTuple):
    """Gradients of several turns of ``loop`` are summed: ``backward`` runs in each of them, ``step`` in the last or
    after all."""

    backward: facts.Backward
    step: facts.Step
    loop: Loop


def accumulations(program: Program) -> list[Accumulation]:
    """Every backward with the step that comes once for several of its turns."""
    steps = program.facts(facts.Step)
    found = []
    # DeepSpeed's engine knows by itself when to reduce; the model may be a wrapper in another launch of the same line.
    engines = {fact.site for fact in program.facts(facts.Backward) if fact.name == "engine"}
    for backward in program.facts(facts.Backward):
        if not backward.loops or Flag.NO_GRAD in backward.flags or backward.site in engines:
            continue
        loop = backward.loops[-1]
        inside = [fact for fact in steps if any(outer.serial == loop.serial for outer in fact.loops)]
        step = _by_condition(backward, inside) if inside else _after_loop(program, backward, steps)
        if step is not None:
            found.append(Accumulation(backward, step, loop))
    return found


def _by_condition(backward: Fact, inside: list[facts.Step]) -> facts.Step | None:
    """``if (i + 1) % k == 0: optimizer.step()``, where no other step follows the backward."""
    if any(guard.every for guard in backward.guards):
        return None
    following = [fact for fact in inside if fact.order > backward.order]
    if not following or not all(any(guard.every == ONCE for guard in fact.guards) for fact in following):
        return None
    return following[0]


def _after_loop(program: Program, backward: Fact, steps: list[facts.Step]) -> facts.Step | None:
    """``for _ in range(k): loss.backward()``, then ``optimizer.step()``, with nothing zeroed in between: what a branch
    zeroes that the step is not in, as one that skips a batch, is none of it."""
    loop, around = backward.loops[-1], backward.loops[:-1]
    if loop.once or not around:
        return None
    serials = [outer.serial for outer in around]
    following = [
        fact for fact in steps if fact.order > backward.order and [outer.serial for outer in fact.loops] == serials
    ]
    if not following:
        return None
    step = following[0]
    between = program.facts(facts.ZeroGrad, facts.Backward)
    kept = {guard.site for guard in (*backward.guards, *step.guards)}
    for fact in between:
        aside = isinstance(fact, facts.ZeroGrad) and any(not g.exact and g.site not in kept for g in fact.guards)
        if backward.order < fact.order < step.order and not _shares(fact, loop) and not aside:
            return None
    return step


def _shares(fact: Fact, loop: Loop) -> bool:
    return any(outer.serial == loop.serial for outer in fact.loops)


def wrapped_forward(program: Program, backward: Fact) -> Fact | None:
    """The training forward of a DistributedDataParallel model in the innermost loop of ``backward``."""
    loop = backward.loops[-1]
    for fact in program.facts(facts.Forward):
        if fact.name == "ddp" and Flag.NO_GRAD not in fact.flags and _shares(fact, loop):
            return fact
    return None


def wrappers_behind(backward: facts.Backward) -> list[DDP]:
    """The DistributedDataParallel models whose output the loss was computed from."""
    return [
        model
        for part in reaching(backward.loss)
        if isinstance(part, Output)
        for model in bare(part.model)
        if isinstance(model, DDP)
    ]


def zeroed_every_turn(program: Program, found: Accumulation) -> Fact | None:
    """The ``zero_grad`` that throws away, in every turn, what the turns before have summed. One under a condition does
    where the backward is under it too, not where the turn ends there."""
    conditions = {guard.site for guard in found.backward.guards if not guard.exact}
    for fact in program.facts(facts.ZeroGrad):
        if not fact.loops or fact.loops[-1].serial != found.loop.serial:
            continue
        if any(not guard.exact and guard.site not in conditions for guard in fact.guards) or any(
            guard.every for guard in fact.guards
        ):
            continue
        if _same_optimizer(fact.target, found.step.optimizer):
            return fact
        held = wrappers_behind(found.backward)
        if any(target is wrapper for target in bare(fact.target) for wrapper in held):
            return fact
    return None


def _same_optimizer(first: Value, second: Value) -> bool:
    return any(
        one is other or (isinstance(one, Opaque) and isinstance(other, Opaque) and one.name and one.name == other.name)
        for one in bare(first)
        for other in bare(second)
    )


def seen_from_loop(fact: Fact, loop: Loop) -> Site:
    """Where the function that holds the loop calls what leads to the fact; its own place if it lies there itself."""
    home = (loop.site.path, loop.site.function)
    if (fact.site.path, fact.site.function) == home:
        return fact.site
    return next((site for site in reversed(fact.chain) if (site.path, site.function) == home), fact.site)


def gradients_reduced_by_hand(program: Program) -> bool:
    """Whether gradients may go through a collective of the script's own."""
    return program.mentions(mentions.AVERAGED_BY_HAND) or any(
        fact.name.lstrip("_").startswith(("all_reduce", "allreduce", "reduce"))
        and any(GRADIENT.matches(getattr(atom, "name", "")) for atom in bare(fact.arguments))
        for fact in program.facts(facts.Collective)
    )
