"""What puts items into an order, or into parts: splits of data sets, shuffles, permutations, lists of sets."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import binding, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import List, Shuffled
from validate_ddp.interpreter.rows import api, method
from validate_ddp.interpreter.values import (
    NONE,
    Opaque,
    Symbol,
    Value,
    bare,
    carried_by,
    constant,
    join,
    merged,
)
from validate_ddp.source.syntax import Attribute, Name


def _split(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``random_split`` and ``train_test_split``: parts of what they are given."""
    library = symbol.name.partition(".")[0]
    if constant(call.value("shuffle")) is not False:
        split = facts.Order(
            symbol.last,
            items=call.argument(0),
            generator=call.value("generator"),
            seed=call.value("random_state"),
            library="numpy" if library == "sklearn" else library,
            splits=True,
        )
        machine.record(split, call.site)
    return (Opaque(symbol.name + "()", carried_by(call.given)),)


def _split_itself(machine: Machine, atom: Any, call: Call) -> Value:
    """``dataset.train_test_split(0.1)`` of Hugging Face: drawn from NumPy's generator where no seed is given."""
    if constant(call.value("shuffle")) is not False:
        generator, seed = call.value("generator"), call.value("seed")
        split = facts.Order(call.name, items=(atom,), generator=generator, seed=seed, library="numpy", splits=True)
        machine.record(split, call.site)
    return (Opaque(call.name + "()", carried_by((atom,))),)


def _chosen(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``numpy.random.choice(n, k, replace=False)``: some of the items, in a new order."""
    if constant(call.value("replace")) is False:
        return _permuted(machine, symbol, call)
    return (Opaque(symbol.name + "()", carried_by(call.given)),)


def _permuted(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``torch.randperm`` and its kin: a new order."""
    mark = _noted(machine, symbol, call, call.value("generator"))
    return (Opaque(symbol.name + "()", merged(mark, *carried_by(call.given))),)


def _shuffled(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``random.shuffle(items)``: the name that holds them holds them in another order from here on."""
    mark = _noted(machine, symbol, call, ())
    target = call.node.args[0] if call.node and call.node.args else None
    if isinstance(target, (Name, Attribute)):
        binding.assign(machine, target, _marked(machine, call.argument(0), mark), written=False)
    return NONE


def _noted(machine: Machine, symbol: Symbol, call: Call, generator: Value) -> Shuffled:
    mark = Shuffled(call.site)
    library = symbol.name.partition(".")[0]
    order = facts.Order(symbol.last, items=call.argument(0), generator=generator, library=library, result=(mark,))
    machine.record(order, call.site)
    return mark


def _marked(machine: Machine, value: Value, mark: Shuffled) -> Value:
    """The items with the mark: a list of items told apart is one of any of them from here on."""
    result: Value = ()
    for atom in bare(value):
        if isinstance(atom, Opaque):
            result = join(result, (Opaque(atom.name, merged(mark, *atom.carries)),))
        elif isinstance(atom, List):
            held: Value = (Opaque("", (mark,)),)
            for part in atom.fields.values():
                held = join(held, part)
            result = join(result, (List(atom.site, {"*": held}),))
        else:
            result = join(result, (atom,))
    return result


def of_set(machine: Machine, call: Call) -> Value:
    """``list(set(items))``: the order of strings in it hangs on the process's own hashes; empty for other lists."""
    given = bare(call.argument(0))
    if not given or not all(isinstance(atom, Opaque) and atom.name == "builtins.set()" for atom in given):
        return ()
    mark = Shuffled(call.site)
    machine.record(facts.Order("set", items=call.argument(0), result=(mark,)), call.site)
    return (List(call.site, {"*": (Opaque("", merged(mark, *carried_by(call.argument(0)))),)}),)


def _sorted(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return _in_order(call.value("iterable"))


def _in_order(value: Value) -> Value:
    """The value without the marks of another order."""
    if not any(isinstance(part, Shuffled) for part in carried_by(value)):
        return value
    return (Opaque("sorted", tuple(part for part in carried_by(value) if not isinstance(part, Shuffled))),)


def _sort(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``items.sort()``."""
    target = call.node.func.value if call.node and isinstance(call.node.func, Attribute) else None
    if isinstance(target, (Name, Attribute)) and any(isinstance(part, Shuffled) for part in carried_by((atom,))):
        binding.assign(machine, target, _in_order((atom,)), written=False)
    return None


_SEEDED = "* generator"

DECLARED = (
    api(
        "random_split",
        _split,
        within="torch.utils.data",
        parameters="items=dataset lengths generator * random_state shuffle",
        fact=facts.Order,
    ),
    api(
        "sklearn.model_selection.train_test_split",
        _split,
        parameters="* generator random_state shuffle",
        fact=facts.Order,
    ),
    api("torch.randperm", _permuted, parameters=_SEEDED, fact=facts.Order),
    api("numpy.random.permutation random.sample", _permuted, parameters=_SEEDED, fact=facts.Order),
    api("numpy.random.choice", _chosen, parameters="a size replace * generator", fact=facts.Order),
    method("train_test_split", _split_itself, parameters="* shuffle generator seed", fact=facts.Order),
    api("random.shuffle numpy.random.shuffle", _shuffled, fact=facts.Order),
    api("builtins.sorted", _sorted, parameters="iterable"),
    method("sort", _sort),
)
