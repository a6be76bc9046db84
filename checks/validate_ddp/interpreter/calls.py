"""What calls do: functions and classes of the program are walked, those of libraries are modelled."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import (
    attributes,
    candidates,
    configuration,
    counters,
    facts,
    gradients,
    late,
    lengths,
    metrics,
    presence,
    ranks,
    records,
    roles,
    standing,
    unwalked,
    worth,
)
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.callables import Called, Choice, Partial
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Frame, Machine, Scope
from validate_ddp.interpreter.names_of_training import DATASET, REDUCING, SCHEDULE
from validate_ddp.interpreter.objects import Asked, Batch, Dict, Generator, Mapping, Open, Sequence, Tuple
from validate_ddp.interpreter.training import Host, Sampler
from validate_ddp.interpreter.values import (
    NONE,
    UNKNOWN,
    Class,
    Function,
    Instance,
    ModuleRef,
    OnRanks,
    Opaque,
    Resource,
    Site,
    Symbol,
    Value,
    bare,
    carried_by,
    join,
    on_ranks,
)
from validate_ddp.source import syntax

_DEEPEST = 40
"""Frames, those of modules and of arguments included. What is called deeper is not walked, which can lose a finding:
it is said (DDP004)."""
_MOST_GIVEN = 60
"""Values that an object may hold of unknown origin. Beyond that the rest is merged with nothing: a finding that hangs
on one of sixty arguments of an unread function would be a guess anyway, so it is not said."""


def call_node(machine: Machine, node: syntax.Call) -> Value:
    function = node.func
    frame = machine.frames[-1]
    call = Call("", [], {}, None, (frame, node.span, frame.statement))
    call.node = node
    who, sure = presence.EVERY_RANK
    if isinstance(function, syntax.Attribute):
        call.name = function.attr
        call.receiver = machine.evaluate(function.value)
        who, sure = presence.taken(machine, function.value, call.receiver, call.name, node.span)
        if call.name in machine.epoch_setters:
            machine.record(facts.SetEpoch(call.name, target=call.receiver), call.site)
        targets: list[Any] = []
    else:
        call.name = function.id if isinstance(function, syntax.Name) else ""
        targets = bare(machine.evaluate(function))
    for argument in node.args:
        if isinstance(argument, syntax.Starred):
            call.open = True
            call.args.extend(_spread(machine.evaluate(argument.value)))
        else:
            call.args.append(machine.evaluate(argument))
    for keyword in node.keywords:
        value = machine.evaluate(keyword.value)
        if keyword.arg is not None:
            call.keywords[keyword.arg] = value
            continue
        call.open = call.open or not configuration.is_told(machine, keyword.value, value)
        for atom in bare(value):
            if isinstance(atom, Mapping):
                call.keywords.update({k: v for k, v in atom.fields.items() if k != "*"})
    result: Value = ()
    if isinstance(function, syntax.Attribute):
        with machine.guarded(who, sure=sure):
            for atom in bare(call.receiver):
                result = join(result, call_method(machine, atom, call))
    elif targets:
        result = candidates.in_turn(machine, targets, lambda atom: call_atom(machine, atom, call))
    return result or UNKNOWN


def _spread(value: Value) -> list[Value]:
    for atom in bare(value):
        if isinstance(atom, Sequence) and "*" not in atom.fields:
            return list(atom.fields.values())
    return []


def call_method(machine: Machine, atom: Any, call: Call) -> Value:
    """Call the method ``call.name`` of ``atom``."""
    if isinstance(atom, Symbol):
        return machine.registry.call_symbol(machine, Symbol(f"{atom.name}.{call.name}"), call)
    if isinstance(atom, Choice):
        return _call_one_of(machine, atom, call)
    if isinstance(atom, Resource):
        return machine.registry.call_resource(machine, atom, call)
    if isinstance(atom, Instance):
        return _call_member(machine, atom, call)
    if isinstance(atom, (ModuleRef, Class)):
        inherited = machine.registry.class_method(call.name) if isinstance(atom, Class) else None
        if inherited is not None and isinstance(atom, Class) and atom.find(call.name)[0] is None:
            return inherited(machine, atom, call)
        result: Value = ()
        for target in bare(attributes.get(machine, atom, call.name)):
            result = join(result, call_atom(machine, target, call))
        return result or UNKNOWN
    return machine.registry.call_unknown(machine, atom, call)


def _call_one_of(machine: Machine, choice: Choice, call: Call) -> Value:
    """Call the method of one of several objects, or the function of one of several modules."""
    if all(isinstance(option, Instance) for option in choice.options):
        return candidates.each(machine, choice, lambda option: call_method(machine, option, call))
    result: Value = ()
    for target in bare(candidates.members(machine, choice, call.name)):
        result = join(result, call_atom(machine, target, call))
    return result or UNKNOWN


def _call_member(machine: Machine, instance: Instance, call: Call) -> Value:
    if call.name in instance.fields:
        result: Value = ()
        for target in bare(instance.fields[call.name]):
            result = join(result, call_atom(machine, target, call))
        return result or UNKNOWN
    member, _ = instance.cls.find(call.name)
    if instance.base is not None and call.name in ("step", "zero_grad"):  # of a derived optimizer
        machine.registry.call_resource(machine, instance.base, call)
    if member is not None:
        result = ()
        for target in bare(attributes.bound(member, instance)):
            result = join(result, call_atom(machine, target, call))
        return gradients.past_wrapper(machine, instance, call, result or UNKNOWN)
    elsewhere = [atom for atom in attributes.delegated(machine, instance, call.name) if isinstance(atom, Function)]
    if elsewhere:
        result = ()
        for target in elsewhere:
            given_back = call_atom(machine, target, call) or UNKNOWN
            result = join(result, gradients.past_wrapper(machine, target.bound, call, given_back))
        return result
    if instance.base is not None and machine.registry.answers(instance.base, call.name):
        return machine.registry.call_resource(machine, instance.base, call)
    return machine.registry.call_unknown(machine, instance, call)


def call_atom(machine: Machine, atom: Any, call: Call) -> Value:
    """Call ``atom`` itself."""
    if isinstance(atom, Function):
        return call_function(machine, atom, call)
    if isinstance(atom, Class):
        return instantiate(machine, atom, call)
    if isinstance(atom, Symbol):
        return machine.registry.call_symbol(machine, atom, call)
    if isinstance(atom, Choice):
        return candidates.each(machine, candidates.fitting(atom, call), lambda option: call_atom(machine, option, call))
    if isinstance(atom, Called):
        call.name = "__call__"
        return machine.registry.call_resource(machine, atom, call)
    if isinstance(atom, Resource):
        return machine.registry.call_object(machine, atom, call)
    if isinstance(atom, ModuleRef):
        return _call_module(machine, atom, call)
    if isinstance(atom, Instance):
        member, _ = atom.cls.find("__call__")
        if member is None:
            return machine.registry.call_object(machine, atom, call)
        result: Value = ()
        for target in bare(attributes.bound(member, atom)):
            result = join(result, call_atom(machine, target, call))
        return result or UNKNOWN
    return machine.registry.call_unknown(machine, atom, call)


def _call_module(machine: Machine, atom: ModuleRef, call: Call) -> Value:
    """A module that is called stands for its function of the same name: the package's ``__init__`` is not there."""
    stem = atom.module.file.rpartition("/")[2].removesuffix(".py")
    result: Value = ()
    for target in bare(machine.library.member(machine, atom.module, stem)):
        if isinstance(target, (Function, Class)):
            result = join(result, call_atom(machine, target, call))
    return result or UNKNOWN


def call_values(machine: Machine, function: Any, *args: Value, **keywords: Value) -> Value:
    """Call something with given values, from where the walk stands."""
    return call_atom(machine, function, Call("", list(args), keywords, machine.site()))


def instantiate(machine: Machine, cls: Class, call: Call) -> Value:
    instance = Instance(cls, call.site)
    machine.bear(instance.fields)
    machine.made.append(instance)
    for base in cls.lineage():
        if isinstance(base, Symbol):
            instance.base = machine.registry.base_object(machine, base, call, cls)
            if instance.base is not None:
                if isinstance(instance.base, Host):
                    instance.base.fields["of"] = (instance,)
                break
    if call.args or call.keywords or call.open:
        instance.given = (*carried_by(call.given), *([Open(call.site)] if call.open else []))
    made, ended = cls.find("__init__")[0], cls.find("__del__")[0]
    if made is None:  # a dataclass, or a plain holder: keyword arguments become fields
        records.fill(machine, instance, call)
    for member, given in ((made, call), (ended, Call("", [], {}, call.site))):
        for target in bare(attributes.bound(member, instance)) if member is not None else ():
            call_atom(machine, target, given)
    return (instance,)


def _bind(machine: Machine, function: Function, call: Call) -> dict[str, Value]:
    given = function.node.args
    filled = roles.FILLED in function.marks and not call.args and not call.keywords
    args = list(call.args)
    if function.bound is not None:
        args.insert(0, (function.bound,))
    names: dict[str, Value] = {}
    for index, (name, default, annotation) in enumerate(given.parameters):
        if index < given.positional and index < len(args):
            names[name] = _received(machine, name, args[index], annotation)
        elif name in call.keywords:
            names[name] = _received(machine, name, call.keywords[name], annotation)
        elif default is not None and not call.open and not filled:
            names[name] = machine.evaluate(default)
        else:
            names[name] = roles.suggested(name, alike=filled)
            if annotation is not None:
                names[name] = machine.registry.annotated(machine, annotation, name)
    if given.vararg:
        fields = {str(i): value for i, value in enumerate(args[given.positional :])}
        names[given.vararg] = (Tuple(call.site, fields),)
    if given.kwarg:
        known = {parameter.name for parameter in given.parameters}
        fields = {name: value for name, value in call.keywords.items() if name not in known}
        names[given.kwarg] = (Dict(call.site, fields),)
    return names


def call_function(machine: Machine, function: Function, call: Call) -> Value:
    """Walk a function of the program with these arguments; its joined return values."""
    if function.preset is not None:
        call = call.behind(function.preset)
    key = id(function.node)
    if SCHEDULE.matches(function.name):
        lengths.note_schedule(machine, function.name, None, call)
    who: ranks.Who = "all"
    if "rank-zero" in function.marks or "local-zero" in function.marks:
        who = "zero" if "rank-zero" in function.marks else "local-zero"
    active = sum(1 for frame in machine.frames if frame.function is not None and frame.function.node is function.node)
    if not worth.is_worth_walking(machine, function, call):
        carried = carried_by(call.given)
        if "no_grad" in function.marks:
            carried = gradients.cut_parts(carried)
        bound = () if function.bound is None else (function.bound,)
        configuration.passed_on(machine, function.node.words, (*call.given, *bound))
        if carried:
            _hand_over(machine, function, carried)
        unwalked.forget(machine, function, call)
        records.start_empty(machine, function, call)
        late.note(machine, result := Opaque(function.name + "()", carried), function, call)
        return worth.handed_back(function, call) or (result,)
    if "cached" in function.marks and key in machine.results:
        return machine.results[key]
    if len(machine.frames) > _DEEPEST:
        machine.stop(f"calls are nested more than {_DEEPEST} deep: what is called deeper is not looked at")
    # A function within itself, twice over, meets what it has met: its results so far stand for it; that is not said.
    alone = Flag.ALONE in machine.flags or (isinstance(function.bound, Instance) and function.bound.alone)
    here = (key, machine.who, not machine.loops, Flag.SPAWNED in machine.flags, alone)
    enough = here in machine.fruitless and machine.walked.get(key, 0) >= worth.most_walks(machine, function)
    if active > 1 or len(machine.frames) > _DEEPEST or enough:
        machine.unseen.add((function.module.path, function.name))
        given_back = standing.of_call(machine.results.get(key, UNKNOWN), call)
        metrics.reduced(call, ())  # whatever it does, it is not seen this time
        return given_back
    if function.bound is None and machine.fruitless.get(here, 0) >= worth.ENOUGH and not worth.is_short(function):
        if not worth.passes_on(machine, call):
            return standing.of_call(machine.results[key], call)
    known = len(machine.facts)
    machine.walked[key] = machine.walked.get(key, 0) + 1
    names = _bind_in(machine, function, call)
    with machine.guarded(who, sure=roles.BY_NAME not in function.marks), machine.flagged(*[Flag.ALONE] * alone):
        frame = Frame(function.module, Scope(names, function.scope), function, call.site, machine.who)
        machine.frames.append(frame)
        try:
            value = _run(machine, function, frame)
        finally:
            machine.frames.pop()
            machine.leave(names)
    if machine.gathers and "no_grad" in function.marks:
        value = gradients.cut(value)
    if REDUCING.matches(function.name):
        value = metrics.put_together(call, value)
    machine.results[key] = join(machine.results.get(key, ()), value)
    machine.fruitless[here] = machine.fruitless.get(here, 0) + 1 if len(machine.facts) == known else 0
    for atom in bare(value):
        if isinstance(atom, Sampler) and atom.site.function == function.name:
            atom.asked_for = (Asked(call.site),)
    return value


def _hand_over(machine: Machine, function: Function, carried: tuple[Any, ...]) -> None:
    """A function that is not walked may put one of its arguments into another."""
    if function.bound is not None:
        metrics.taken_in(machine, function.bound, carried)
    holders = [atom for atom in (function.bound, *carried) if isinstance(atom, Instance)]
    if len(holders) + len(carried) > 2:
        for holder in holders:
            holder.given = (*holder.given, *carried)[:_MOST_GIVEN]
    elif holders:
        holders[0].given = (*holders[0].given, *carried)[:_MOST_GIVEN]


def _received(machine: Machine, name: str, value: Value, annotation: syntax.Expression | None) -> Value:
    """An argument under its parameter's name: an unknown one is what the name or the annotation says."""
    if not all(isinstance(atom, Opaque) for atom in value):
        return value
    if isinstance(annotation, (syntax.Name, syntax.Attribute)) and not any(type(a) is Batch for a in carried_by(value)):
        annotated = machine.registry.annotated(machine, annotation, name)
        if not isinstance(annotated[0], Opaque):
            return annotated
        if annotated[0].alike:
            return (Opaque(name, carried_by(value), True),)
    return roles.named(name, value)


def _bind_in(machine: Machine, function: Function, call: Call) -> dict[str, Value]:
    """Arguments by parameter; defaults are evaluated where the function was defined."""
    machine.frames.append(Frame(function.module, function.scope, None, None))
    try:
        return _bind(machine, function, call)
    finally:
        machine.frames.pop()


def _run(machine: Machine, function: Function, frame: Frame) -> Value:
    node = function.node
    if isinstance(node, syntax.Lambda):
        return machine.evaluate(node.body)
    flags = [Flag.NO_GRAD] if "no_grad" in function.marks else []
    if node.is_generator:
        flags.append(Flag.GENERATOR)
    bases = function.owner.lineage() if function.owner is not None else ()
    if any(isinstance(base, Symbol) and DATASET.matches(base.last) for base in bases):
        flags += [] if _is_being_made(machine, function.bound) else [Flag.DATASET]
    counters.advance_fields(machine, function.bound, node.body)
    with machine.flagged(*flags):
        outcome = machine.walk(node.body)
    if node.is_generator:  # a generator: iterating over it gives what it yields
        return (Generator(machine.site(), {"*": frame.yielded or UNKNOWN}),)
    if outcome.ends:
        return frame.returned or NONE
    if not frame.returned:
        return NONE
    rest = on_ranks(NONE, outcome.rest, outcome.sure) if outcome.rest in ranks.PARTIAL else NONE
    held = [atom for atom in frame.returned if isinstance(atom, OnRanks)]
    if outcome.rest == "all" and len({atom.who for atom in held}) == 1:  # `if rank == 0: return writer`, no else
        rest = on_ranks(NONE, ranks.opposite(held[0].who), all(atom.sure for atom in held))
    return join(frame.returned, rest)


def _is_being_made(machine: Machine, made: Any) -> bool:
    """Whether the constructor of this object runs, and not to see what a parameter may be that is annotated so."""
    running = [] if machine.making else [frame.function for frame in machine.frames]
    return any(each is not None and each.name == "__init__" and each.bound is made for each in running)


def spawned(machine: Machine, target: Value, arguments: list[Value], site: Site) -> None:
    """Run ``target`` as the processes that a launcher starts."""
    with machine.flagged(Flag.SPAWNED):
        for atom in bare(target):
            if isinstance(atom, (Function, Instance, Class, Partial)):
                call_atom(machine, atom, Call("", arguments, {}, site))
