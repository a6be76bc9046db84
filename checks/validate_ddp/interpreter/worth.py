"""Which functions of the program are worth a walk, and how many."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import attributes, gradients, late, registering
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.nested import modules_of
from validate_ddp.interpreter.objects import Batch, Container, Options, Output
from validate_ddp.interpreter.training import Scheduler
from validate_ddp.interpreter.values import (
    Class,
    Const,
    Function,
    Instance,
    Opaque,
    Rank,
    Resource,
    Value,
    bare,
    reaching,
)
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Assign, AugAssign, For, FunctionDef, Lambda, Name, Return
from validate_ddp.source.traversal import is_name, walk

_MOST_WALKS = 5
_MOST_WALKS_OF_SHORT = 40
"""How often one function is walked; after that, its earlier results stand for it. Surroundings (which ranks, in a loop
or not) in which it was never walked get their walk all the same: five guarded calls of `save` must not hide the sixth
that every rank makes. What differs in arguments alone may be lost, which is not said: every larger program has such."""
_MOST_WALKS_OF_DECORATORS = 200
"""What registers a class puts it into one of many registries, each of which is asked for what it holds."""
_MOST_WALKS_OF_GETTERS = 2_000
ENOUGH = 2
"""After so many walks in such surroundings that met nothing new, a function's earlier results stand for it. Not said:
what was not met twice is hardly met the third time."""
_MOST_MODULES = 40
"""Forwards in forwards that are looked into. Not said: what more of a network does is what its layers do."""
_LIGHT = (Container, Options, Batch, Scheduler, Const)
_SUMMING = frozenset("sum mean".split())
_CRITERIA = frozenset("CrossEntropyLoss NLLLoss".split())
_CROSS_ENTROPY = frozenset("cross_entropy nll_loss".split())
_SHORT = 2
"""Functions of so few statements are walked in any case: that costs less than to be wrong about a getter."""


def most_walks(machine: Machine, function: Function) -> int:
    """How often a function is walked at most."""
    if machine.registering:
        return _MOST_WALKS_OF_DECORATORS
    if _is_getter(function):
        return _MOST_WALKS_OF_GETTERS
    is_small = isinstance(function.node, Lambda) or len(function.node.body) <= 4
    return _MOST_WALKS_OF_SHORT if is_small else _MOST_WALKS


def _is_getter(function: Function) -> bool:
    """Whether it gives what it is asked for and does nothing besides: what it gave to another key says nothing."""
    node = function.node
    if isinstance(node, FunctionDef) and node.name == "__getattr__":
        return True
    if not isinstance(node, FunctionDef) or len(node.body) != 1 or not isinstance(node.body[0], Return):
        return False
    return sum(1 for part in walk(node.body) if isinstance(part, syntax.Call)) <= 1


def is_short(function: Function) -> bool:
    """Whether it is a getter or the like, whose result may hang on its arguments alone."""
    return isinstance(function.node, FunctionDef) and len(function.node.body) <= _SHORT


def is_worth_walking(machine: Machine, function: Function, call: Call) -> bool:
    """Whether a walk of the function with these arguments can meet anything that rules ask about."""
    node = function.node
    if isinstance(node, Lambda) or node.is_generator or len(node.body) <= _SHORT:
        return True
    if machine.library.interesting(function.module, node.words):
        return True
    if machine.registering or registering.is_registry(machine, function.bound):
        return True
    if registering.names_one(machine, function):
        return True
    if node.name == "__init__":
        if _is_of_criterion(function) or any(_is_active(machine, atom) for atom in bare(call.given)):
            return True
    if not _CRITERIA.isdisjoint(node.words):
        return True
    if id(node) in machine.due or late.is_handed(machine, call.given) or late.is_holding(machine, function):
        return True
    if is_of_loss(machine, call, node.words) or _is_above(machine, function.bound, node.words, set()):
        return True
    return _is_notable(machine, call) or any(registering.is_registry(machine, atom) for atom in bare(call.given))


def is_of_loss(machine: Machine, call: Call, words: list[str]) -> bool:
    """Whether a function may say by what a loss is divided: it is given the output of a model that is being trained, or
    a batch, and has a mean or a sum and what is called a loss in it."""
    if not machine.loops or gradients.is_off(machine):
        return False
    given = reaching(call.given)
    if any(isinstance(part, Output) and part.live for part in given):
        return True
    return any(isinstance(part, Batch) for part in given) and _has_loss(words)


def _has_loss(words: list[str]) -> bool:
    if not _CROSS_ENTROPY.isdisjoint(words):
        return True
    return not _SUMMING.isdisjoint(words) and any("loss" in word for word in words)


def _is_of_criterion(function: Function) -> bool:
    """Whether it makes what works out a loss: whether that divides by a count may hang on what is kept here."""
    made = function.bound
    return isinstance(made, Instance) and any(
        isinstance(each, Class) and _has_loss(each.node.words) for each in made.cls.lineage()
    )


def _is_active(machine: Machine, atom: Any) -> bool:
    """Whether it is an object of the program with methods that can matter: who keeps it may call them."""
    return isinstance(atom, Instance) and bool(machine.library.interesting(atom.cls.module, atom.cls.node.words))


def leads_on(machine: Machine, function: Function, seen: set[tuple[int, int]] | None = None) -> bool:
    """Whether a ``forward`` can meet anything that rules ask about: by its own words, or in the modules that its object
    has and that it speaks of, however many networks stand in between."""
    seen = set() if seen is None else seen
    seen.add((id(function.node), id(function.bound)))
    words = function.node.words
    return machine.library.interesting(function.module, words) or _is_above(machine, function.bound, words, seen)


def _is_above(machine: Machine, holder: Any, words: list[str], seen: set[tuple[int, int]]) -> bool:
    """Whether one of these fields of a module has another whose forward leads on, or a method named here does: to call
    a module names no function."""
    if not isinstance(holder, Instance) or holder.cls.find("forward")[0] is None:
        return False
    for word in words:
        called = [(module, "forward") for module in modules_of(holder.fields.get(word, ()))] or [(holder, word)]
        for module, name in called:
            for atom in bare(module.cls.find(name)[0] or ()):
                if not isinstance(atom, Function) or (id(atom.node), id(module)) in seen or len(seen) > _MOST_MODULES:
                    continue
                methods = [each for each in bare(attributes.bound((atom,), module)) if isinstance(each, Function)]
                if any(leads_on(machine, method, seen) for method in methods):
                    return True
    return False


def handed_back(function: Function, call: Call) -> Value:
    """The argument that a function surely returns as it got it: ``def frozen(model): ...; return model``."""
    node = function.node
    if not isinstance(node, FunctionDef) or not isinstance(node.body[-1], Return) or function.marks:
        return ()
    name = node.body[-1].value
    names = [parameter.name for parameter in node.args.parameters]
    if not isinstance(name, Name) or name.id not in names:
        return ()
    for part in walk(node.body):
        if isinstance(part, Return) and not is_name(part.value, name.id):
            return ()
        if isinstance(part, (Assign, AugAssign, For)):
            bound = part.targets if isinstance(part, Assign) else [part.target]
            if any(is_name(each, name.id) for each in walk(bound)):
                return ()
    return call.argument(names.index(name.id) - (function.bound is not None), name.id)


def passes_on(machine: Machine, call: Call) -> bool:
    """Whether an argument is, or was computed from, something that the result may depend on."""
    return _is_notable(machine, call) or any(isinstance(atom, Opaque) and atom.carries for atom in bare(call.given))


def _is_notable(machine: Machine, call: Call) -> bool:
    if machine.gathers and gradients.marks(call.given):
        return True
    return any(isinstance(atom, (Resource, Rank, Function, Class)) for atom in _weighty(call))


def _weighty(call: Call) -> list[Any]:
    """The arguments' atoms worth a walk into a function that seems to do nothing of note."""
    return [atom for atom in bare(call.given) if not isinstance(atom, _LIGHT)]
