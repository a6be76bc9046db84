"""Random numbers: seeds, what a training step draws, and random transforms of samples."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import calls, facts, gradients, vocabulary
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names_of_training import RANDOM_CLASS, RANDOM_OPTION, SEEDING
from validate_ddp.interpreter.objects import Asked, Augmented, Batch, Sequence, Worker
from validate_ddp.interpreter.rows import api, made_of_arguments, method
from validate_ddp.interpreter.training import RNG
from validate_ddp.interpreter.values import (
    NONE,
    Const,
    Function,
    Opaque,
    Symbol,
    Value,
    bare,
    carried_by,
    constant,
    join,
    merged,
)
from validate_ddp.source import syntax
from validate_ddp.source.traversal import is_name, keywords_of

DRAWS = frozenset("randn randn_like rand rand_like randint randint_like normal".split())
_TRANSFORMS = frozenset(
    """RandomResizedCrop RandomCrop RandomHorizontalFlip RandomAffine RandomRotation RandomErasing ColorJitter
    AutoAugment RandAugment TrivialAugmentWide""".split()
)
_MASKING = "DataCollatorForLanguageModeling DataCollatorForWholeWordMask DataCollatorForPermutationLanguageModeling"
_SURE = 2
"""So many parameters of that kind leave no doubt."""


def _seed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    library = "torch.cuda" if symbol.name.startswith("torch.cuda.") else symbol.name.partition(".")[0]
    seed, device_specific = call.value("seed"), call.value("device_specific")
    machine.record(facts.Seed(symbol.last, seed=seed, library=library, device_specific=device_specific), call.site)
    return NONE


def _generator(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Opaque("torch.Generator()", (RNG(call.site),)),)


def generator_seeded(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``generator.manual_seed(seed)``: the generator remembers its seeds, and where the last one is set."""
    for part in carried_by((atom,)):
        if isinstance(part, RNG) and call.args:
            machine.write(part.fields, "seed", join(part.seed, call.args[0]))
            machine.write(part.fields, "at", (Asked(call.site),))
            machine.record(facts.Seed("generator", seed=call.args[0], library="generator"), call.site)
    return None


def _draw(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """Noise, time steps and latents: what is drawn outside of loops initialises something."""
    if machine.loops and Flag.NO_GRAD not in machine.flags and not _is_single(call):
        sized = tuple(part for part in carried_by(call.given) if isinstance(part, Batch))
        machine.record(facts.Draw(symbol.last, generator=call.value("generator"), sized=sized), call.site)
    value: Value = (Opaque(f"torch.{symbol.last}()", carried_by(call.given)),)
    return gradients.cut(value) if machine.gathers else value


def _is_single(call: Call) -> bool:
    """Whether one number is drawn, as for a decision: ranks had better agree on that."""
    sizes = [call.keywords["size"]] if "size" in call.keywords else call.args[-1:]
    for atom in bare(sizes[0]) if sizes else ():
        if isinstance(atom, Sequence):
            return all(constant(part) == 1 for part in atom.fields.values())
    return all(constant(value) == 1 for value in call.args)


def _named(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A transform or data set out of sight, whose name says that it changes samples at random."""
    held = Augmented(call.site, f"`{symbol.last}`", True)
    return (Opaque(f"{symbol.name}()", merged(held, *carried_by(call.given))),)


def _masking(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A collator that hides words at random, unless it is told to leave them all."""
    if constant(call.value("mlm")) is False:
        return (Opaque(f"{symbol.name}()"),)
    return _named(machine, symbol, call)


def noted(call: Call, carries: Value) -> Value:
    """What the result of something out of sight carries which was given a parameter of RANDOM_OPTION, or several.

    One that is off says nothing; one of unknown value does, but not for sure.
    """
    named = [name for name in call.keywords if name in RANDOM_OPTION.words and _may_be_on(call.keywords[name])]
    if not named:
        return carries
    sure = len(named) >= _SURE or constant(call.keywords[named[0]]) is not ...
    said = " and ".join(f"`{name}=`" for name in named[:2])
    return merged(Augmented(call.site, said, sure), *carries)


def _may_be_on(value: Value) -> bool:
    return any(not isinstance(atom, Const) or bool(atom.value) for atom in bare(value))


def seed_workers(machine: Machine, call: Call) -> None:
    """Walk the function that a loader's workers start with, if it seeds them: its facts are marked ``worker``."""
    keywords: dict[str, Value] = {}
    written = keywords_of(call.node).get("worker_init_fn") if call.node else None
    if isinstance(written, syntax.Call) and is_name(written.func, "partial"):
        keywords = {each.arg: machine.evaluate(each.value) for each in written.keywords if each.arg is not None}
    for atom in bare(call.keywords["worker_init_fn"]):
        if isinstance(atom, Function) and (
            isinstance(atom.node, syntax.Lambda) or not _SEEDS.isdisjoint(atom.node.words)
        ):
            keywords["*"] = (Worker(call.site),)  # a call with that is always walked
            with machine.flagged(Flag.WORKER):
                calls.call_atom(machine, atom, Call("", [(Const(1),)], keywords, call.site))


_SEEDS = SEEDING.words | {"seed", "manual_seed"}


def _is_named_random(name: str) -> bool:
    """Whether, of what lies out of sight, the name says that it is random."""
    root, _, _ = name.partition(".")
    return root not in vocabulary.LIBRARIES and RANDOM_CLASS.matches(name.replace("_", ""))


_OF_SEED = "seed= * device_specific"

_STATES = """torch.set_rng_state torch.random.set_rng_state torch.cuda.set_rng_state torch.cuda.set_rng_state_all
    torch.cuda.random.set_rng_state numpy.random.set_state random.setstate"""

DECLARED = (
    api(_STATES, parameters="state=state=new_state=new_states", fact=facts.RandomState, result=NONE),
    api("manual_seed manual_seed_all seed", _seed, within="torch", parameters=_OF_SEED, fact=facts.Seed),
    api("seed", _seed, within="random numpy", parameters=_OF_SEED, fact=facts.Seed),
    api(SEEDING.words, _seed, within="*", parameters="seed= device_specific", fact=facts.Seed),
    api("fix_random_seed", _seed, within="lhotse", parameters=_OF_SEED, fact=facts.Seed),
    api((f"torch.{name}" for name in DRAWS), _draw, parameters="* generator", fact=facts.Draw),
    api("torch.Generator", _generator),
    api(_TRANSFORMS, within="torchvision", fact=facts.Draw, transform=True, result=made_of_arguments),
    api(_MASKING, _masking, within="transformers", parameters="tokenizer mlm"),
    api(model=_named, where=_is_named_random),
    method("manual_seed", generator_seeded, fact=facts.Seed),
)
