"""Builtins and small parts of the standard library, as far as values flow through them."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import (
    arithmetic,
    attributes,
    calls,
    classes,
    conditions,
    configuration,
    drawing,
    gradients,
    iteration,
    lengths,
    records,
    turns,
    wrapped,
)
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names import DEVICES
from validate_ddp.interpreter.names_of_training import WRAPPER
from validate_ddp.interpreter.objects import (
    Days,
    Dict,
    Enumerate,
    Fields,
    Iterator,
    Key,
    List,
    Namespace,
    Range,
    Sequence,
    Super,
    Tuple,
    Zip,
)
from validate_ddp.interpreter.rows import api, method
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.training import DDP, DP, FSDP, Sampler, Wrapper
from validate_ddp.interpreter.values import (
    FALSE,
    NONE,
    TRUE,
    UNKNOWN,
    Class,
    Const,
    Instance,
    OnRanks,
    Opaque,
    Rank,
    Resource,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    constant,
    join,
    merged,
    on_ranks,
    unmarked,
)
from validate_ddp.models import orders, unknown
from validate_ddp.models.files import MOMENT


def _int(machine: Machine, symbol: Symbol, call: Call) -> Value:
    value = call.argument(0)
    ranks = [atom for atom in bare(value) if isinstance(atom, (Rank, WorldSize))]
    if ranks:
        return tuple(atom.number() if isinstance(atom, Rank) else atom for atom in ranks)
    for atom in bare(value):  # int(str(rank))
        if isinstance(atom, Opaque) and not atom.name and len(atom.carries) == 1 and isinstance(atom.carries[0], Rank):
            return atom.carries
    number = constant(value)
    if isinstance(number, (int, str)):
        try:
            return (Const(int(number)),)
        except ValueError:
            return UNKNOWN
    return gradients.cut(tuple(map(_whole, (atom for atom in value if isinstance(atom, Opaque))))) or UNKNOWN


def _whole(atom: Opaque) -> Opaque:
    """Of a moment the second, which several processes share."""
    return Opaque(atom.name) if atom.name == MOMENT else atom


def _str(machine: Machine, symbol: Symbol, call: Call) -> Value:
    value = call.argument(0)
    known = constant(value)
    if known is not ...:
        return (Const(str(known)),)
    name = next((atom.name for atom in bare(value) if isinstance(atom, Opaque)), "")
    return (Opaque(name, carried_by(value), is_alike(value)),)


def _bool(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return conditions.as_value(conditions.truth_of(call.argument(0)))


def _hasattr(machine: Machine, symbol: Symbol, call: Call) -> Value:
    name = constant(call.argument(1))
    atoms = bare(call.argument(0))
    if name == "module" and atoms:
        around = [isinstance(atom, Wrapper) for atom in atoms]
        if all(around):
            return TRUE
        if not any(around) and all(isinstance(atom, Instance) for atom in atoms):
            return FALSE
        return UNKNOWN
    if name in ("state_dict", "parameters") and atoms and all(isinstance(atom, Wrapper) for atom in atoms):
        return TRUE
    if name == "set_epoch" and any(isinstance(atom, Sampler) for atom in atoms):
        return TRUE
    if isinstance(name, str) and atoms:
        if all(classes.lacks_method(machine, atom, name) or wrapped.lacks(atom, name) for atom in atoms):
            return FALSE
    return (Opaque("", (), is_alike(call.argument(0))),)


def _isinstance(machine: Machine, symbol: Symbol, call: Call) -> Value:
    wanted = {atom.last for atom in _flat(call.argument(1)) if isinstance(atom, Symbol)}
    given = bare(call.argument(0))
    if given and all(isinstance(atom, Const) and type(atom.value).__name__ in wanted for atom in given):
        return TRUE
    atoms = bare(call.argument(0))
    if any(map(WRAPPER.matches, wanted)) and atoms:
        verdicts = [
            isinstance(atom, Wrapper)
            and any(_CLASSES.get(type(atom), "").endswith("." + w) or w.lower() in WRAPPER.words for w in wanted)
            for atom in atoms
        ]
        if all(verdicts):
            return TRUE
        if not any(verdicts) and not any(isinstance(atom, Opaque) for atom in atoms):
            return FALSE
        kinds = {type(atom) for atom in atoms}
        if DP in kinds and wanted <= _THREADED and not kinds.isdisjoint((DDP, FSDP)):
            return FALSE  # DataParallel is for a run of one process, and the walk is of the distributed launch
    if "DistributedSampler" in wanted and atoms:
        if all(isinstance(atom, Sampler) for atom in atoms):
            return TRUE
    return UNKNOWN


def _flat(value: Value) -> list[Any]:
    found: list[Any] = []
    for atom in bare(value):
        if isinstance(atom, Sequence):
            found.extend(part for item in atom.fields.values() for part in _flat(item))
        else:
            found.append(atom)
    return found


def _setattr(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return _set(machine, call.argument(0), call.argument(1), call.argument(2))


def _set(machine: Machine, holders: Value, names: Value, value: Value) -> Value:
    name = constant(names)
    if not isinstance(name, str):
        if not _set_each(machine, holders, names, value):
            configuration.override(machine, holders, value)  # by names that a run knows
        return NONE
    for atom in bare(holders):
        if isinstance(atom, (Instance, Resource)):
            machine.write(atom.fields, name, value)
        elif isinstance(atom, Class):
            machine.write(atom.members, name, value)
    return NONE


def _set_own(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``self.__setattr__(name, value)``, where the class has none of its own."""
    instance = atom.instance if isinstance(atom, Super) else atom
    return _set(machine, (instance,), call.argument(0), call.argument(1)) if isinstance(instance, Instance) else None


def _set_each(machine: Machine, holders: Value, names: Value, given: Value) -> bool:
    """``for name, value in given.items(): setattr(self, name, value)``, where what is given is known."""
    keys = bare(names)
    if len(keys) != 1 or not isinstance(keys[0], Key) or "*" in keys[0].of.fields or not keys[0].of.fields:
        return False
    for name, held in keys[0].of.fields.items():
        value = held if set(held) <= set(given) else given
        for atom in bare(holders):
            if isinstance(atom, (Instance, Resource)):
                machine.write(atom.fields, name, value)
    return True


def _vars(machine: Machine, symbol: Symbol, call: Call) -> Value:
    value = call.argument(0)
    return tuple(Fields(atom) if isinstance(atom, Instance) else atom for atom in bare(value))


def _as_dict(machine: Machine, symbol: Symbol, call: Call) -> Value:
    known = [atom for atom in bare(call.argument(0)) if isinstance(atom, Instance)]
    if not known:
        return (Opaque(f"{symbol.name}()", carried_by(call.given), is_alike(call.argument(0))),)
    return (Dict(call.site, {**dict.fromkeys(records.fields_of(known[0].cls), UNKNOWN), **known[0].fields}),)


def _zip(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Zip(call.site, {str(index): value for index, value in enumerate(call.args)}),)


def _iter(machine: Machine, symbol: Symbol, call: Call) -> Value:
    given = call.argument(0)
    value = drawing.opened(machine, given)
    if value is not given:
        drawing.note(machine, value, call.site, "iter")
    found = iteration.loaders(value)
    if found:
        iteration.note(machine, value, call.site, "iter")
        return (Iterator(call.site, {"*": iteration.element(value)}),)
    return value or UNKNOWN


def _next(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return drawing.following(machine, call.argument(0)) or iteration.element(call.argument(0))


def _list(machine: Machine, symbol: Symbol, call: Call) -> Value:
    value = call.argument(0)
    if not any(isinstance(atom, OnRanks) for atom in value):
        return orders.of_set(machine, call) or _listed(call, value)
    # What differs between ranks still does as a list.
    each = [(_listed(call, (unmarked(atom),)), atom) for atom in value]
    return tuple(
        part
        for listed, atom in each
        for part in (on_ranks(listed, atom.who, atom.sure) if isinstance(atom, OnRanks) else listed)
    )


def _listed(call: Call, value: Value) -> Value:
    for atom in bare(value):
        if isinstance(atom, Sequence):
            return (List(call.site, dict(atom.fields)),)
    return (List(call.site, {"*": iteration.element(value)} if value else {}),)


def _dict(machine: Machine, symbol: Symbol, call: Call) -> Value:
    fields = dict(call.keywords)
    for atom in bare(call.argument(0)):
        if isinstance(atom, Resource):
            fields.update(atom.fields)
    return (Dict(call.site, fields),)


def _range(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Range(call.site, {str(index): value for index, value in enumerate(call.args)}),)


def _len(machine: Machine, symbol: Symbol, call: Call) -> Value:
    for atom in bare(call.argument(0)):
        if isinstance(atom, Opaque):
            if DEVICES.matches(atom.name):
                return (WorldSize(),)
    return gradients.cut(lengths.of(call.argument(0), call.site))


def _super(machine: Machine, symbol: Symbol, call: Call) -> Value:
    for frame in reversed(machine.frames):
        if frame.function is not None and frame.function.bound is not None:
            if not isinstance(frame.function.bound, Instance):
                return UNKNOWN
            return (Super(call.site, frame.function.bound, frame.function.owner),)
    return UNKNOWN


_THREADED = frozenset({"DataParallel"})
_CLASSES: dict[type[Resource], str] = {
    DDP: "torch.nn.parallel.DistributedDataParallel",
    DP: "torch.nn.DataParallel",
    FSDP: "torch.distributed.fsdp.FullyShardedDataParallel",
    Sampler: "torch.utils.data.DistributedSampler",
}


def _type(machine: Machine, symbol: Symbol, call: Call) -> Value:
    result: Value = ()
    for atom in bare(call.argument(0)):
        if isinstance(atom, Resource) and type(atom) in _CLASSES:
            result = join(result, (Symbol(_CLASSES[type(atom)]),))
        else:
            result = join(result, (atom.cls,) if isinstance(atom, Instance) else (Opaque("type"),))
    return result or (Opaque("type"),)


def _set_default(machine: Machine, symbol: Symbol, call: Call) -> Value:
    attributes.note_world(machine, call.argument(0), call.argument(1))
    return attributes.environment(machine, call.argument(0))


def _getenv(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A variable with a default is a setting of the job; one that must be there may be the launcher's or the node's."""
    default = call.value("default")
    return attributes.environment(machine, call.value("key"), constant(default) not in (..., None))


def _time_span(machine: Machine, symbol: Symbol, call: Call) -> Value:
    held = (Days(call.site, count=call.value("count")),) if call.value("count") else ()
    return (Opaque("datetime.timedelta()", merged(*held, *carried_by(call.given)), is_alike(call.given)),)


def _namespace(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Namespace(call.site, dict(call.keywords)),)


def _any_all(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Opaque(symbol.last, carried_by(call.given)),)


def _field(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A field's default, or what its factory makes: the same for all objects, which shares what nobody changes."""
    for name in ("default_factory", "factory"):
        if name in call.keywords:
            result: Value = ()
            for atom in bare(call.keywords[name]):
                result = join(result, calls.call_values(machine, atom))
            return result
    default = call.argument(-1, "default")
    return default or (Opaque(f"{symbol.name}()"),)


def _replace(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return records.replaced(machine, call.argument(0), call)


def _largest(machine: Machine, symbol: Symbol, call: Call) -> Value:
    found = unknown.unresolved(machine, symbol, call)
    return iteration.picked(machine, found) if len(call.args) == 1 else found


def _divmod(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``divmod(count, several)``: as ``//`` and ``%`` give it."""
    if len(call.args) != 2:
        return UNKNOWN
    left, right = call.args
    carries, alike = carried_by((*left, *right)), is_alike(left) and is_alike(right)
    name = turns.REMAINDER if machine.loops and turns.leaves_over(left, right) else ""
    whole = arithmetic.of_ranks("FloorDiv", left, right) or (Opaque("", carries, alike),)
    rest = arithmetic.of_ranks("Mod", left, right) or (Opaque(name, carries, alike),)
    return (Tuple(call.site, {"0": whole, "1": rest}),)


def _is_bar(name: str) -> bool:
    """Whether it shows progress over what it is given."""
    return name.startswith("tqdm.") or (name.endswith(".tqdm") and name != "builtins.tqdm")


def _named(names: str) -> list[str]:
    return [f"builtins.{name}" for name in names.split()]


DECLARED = (
    api(_named("int float"), _int),
    api(_named("str"), _str),
    api(_named("bool"), _bool),
    api(_named("hasattr"), _hasattr),
    api(_named("isinstance"), _isinstance),
    api([*_named("setattr"), "builtins.object.__setattr__"], _setattr),
    method("__setattr__", _set_own),
    api(_named("enumerate"), parameters="inner=iterable", makes=Enumerate),
    api([*_named("zip"), "itertools.chain"], _zip),
    api(_named("iter"), _iter),
    api(_named("next"), _next),
    api(_named("list tuple"), _list),
    api(_named("reversed"), parameters="iterable", result="iterable"),
    api("typing.cast", parameters="typ value=val", result="value"),
    api([*_named("dict"), "collections.OrderedDict"], _dict),
    api(_named("range"), _range),
    api(_named("max min"), _largest),
    api(_named("divmod"), _divmod),
    api(_named("len"), _len),
    api(_named("super"), _super),
    api(_named("type"), _type),
    api(_named("vars"), _vars),
    api("dataclasses.asdict attr.asdict attrs.asdict", _as_dict),
    api("dataclasses.field attr.ib attr.field attrs.field pydantic.Field", _field),
    api("dataclasses.replace attr.evolve attrs.evolve copy.replace", _replace),
    api(_named("any all"), _any_all),
    api("os.getenv os.environ.get os.environ.pop", _getenv, parameters="key= default"),
    api("os.environ.setdefault", _set_default),
    api("functools.wraps", result=(Symbol("functools.wrapper"),)),
    api("datetime.timedelta", _time_span, parameters="count="),
    api("argparse.Namespace types.SimpleNamespace", _namespace),
    api(model=_range, where=lambda name: _is_bar(name) and name.endswith("trange")),
    api(where=_is_bar, parameters="iterable", result="iterable"),
)
