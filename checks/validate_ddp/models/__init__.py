"""What the libraries that training scripts use do: PyTorch, Accelerate, Lightning Fabric, Horovod, MPI, the builtins.

A call of something outside the program arrives here by its dotted name. The models are functions by concern, in the
files of this folder; each gets the machine and the call and returns a value, recording facts on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from validate_ddp.interpreter import facts, roles, sameness, vocabulary
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Sequence
from validate_ddp.interpreter.training import Accelerator, Fabric, Loader, PlainSampler, Sampler
from validate_ddp.interpreter.values import (
    Class,
    Function,
    Opaque,
    Rank,
    Resource,
    Symbol,
    Value,
    bare,
    carried_by,
)
from validate_ddp.models import metrics, randomness
from validate_ddp.source.syntax import Expression, FunctionDef
from validate_ddp.source.traversal import last_name

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call


Model = Callable[[Machine, Symbol, "Call"], Value]
_models: dict[str, Model] = {}


def call_symbol(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """Call a function or class outside the program."""
    if symbol.name not in _models:
        _models[symbol.name] = _find(symbol.name)
    return _models[symbol.name](machine, symbol, call)


def _find(name: str) -> Model:
    """The model of a function or class of a library; ``unresolved`` where there is none."""
    from validate_ddp.models import (
        builtin,
        data,
        distributed,
        files,
        frameworks,
        lengths,
        networks,
        optimizers,
        randomness,
        sharded,
    )

    concerns = (sharded, distributed, data, randomness, networks, optimizers, files, frameworks, lengths, builtin)
    for models_of in concerns:
        model: Model | None = models_of.find(name)
        if model is not None:
            return model
    return unresolved


_LOOK_ONLY = frozenset("inspect functools typing types dataclasses abc warnings logging pickle copy signal".split())


def unresolved(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A call of which only the name is known: of an unknown library, or of a file that is not there."""
    last = symbol.last.lower().lstrip("_")
    root = symbol.name.partition(".")[0]
    guessed = roles.called(last)
    if guessed:
        if isinstance(guessed[0], Rank) and guessed[0].scope == "group":
            machine.record(facts.GroupRank(symbol.last), call.site)
        return guessed
    if last in vocabulary.DISTRIBUTED_FLAG:
        return (Opaque(symbol.name),)
    if "save" in last:  # it may guard itself: what is saved is known, who saves it is not
        machine.record(facts.Save(symbol.last, object=call.given, role="unresolved"), call.site)
    called_back(machine, call, root)
    carries = metrics.aggregated(call, carried_by(call.given))
    if call.keywords and not randomness.AUGMENTING.isdisjoint(call.keywords):
        carries = randomness.noted(call, carries)
    if carries:
        if root not in ("torch", "einops", "numpy", "math"):
            if metrics.may_reduce(symbol.last):
                carries = metrics.reduced(call, carries)
            metrics.report(machine, call)
    alike = sameness.made_of_arguments(symbol.name) and sameness.are_alike(*call.args, *call.keywords.values())
    return (Opaque(symbol.name + "()", carries, alike),)


def called_back(machine: Machine, call: Call, root: str) -> None:
    """Functions of the program handed to unknown code are called by it: launchers, apps, decorators.

    Not by what only looks at them, and not by what keeps them for later: nobody knows then on which ranks.
    """
    if root in _LOOK_ONLY or "register" in call.name or "hook" in call.name or "callback" in call.name:
        return
    from validate_ddp.interpreter.calls import Call, call_atom

    for value in (*call.args, *call.keywords.values()):
        for atom in bare(value):
            if not isinstance(atom, Function) or id(atom.node) in machine.walked:
                continue
            arguments = call.argument(-1, "args")
            given: list[Value] = []
            for holder in bare(arguments):
                if isinstance(holder, Sequence):
                    given = list(holder.fields.values())
            wanted = len(atom.node.args.parameters) if isinstance(atom.node, FunctionDef) else 0
            if given and wanted == len(given) + 1:
                given.insert(0, (Rank("spawn"),))
            if root in sameness.COMMAND_LINES and not given:
                atom.marks |= {roles.FILLED}
            called = Call("", given, {}, machine.site())
            called.open = not given  # `fire.Fire(main)`: from the command line
            call_atom(machine, atom, called)


def call_resource(machine: Machine, resource: Resource, call: Call) -> Value:
    """Call a method of an object of a library."""
    from validate_ddp.models import methods

    return methods.call(machine, resource, call)


def call_object(machine: Machine, atom: Any, call: Call) -> Value:
    """Call an object of a library, or a module of the program, as a function: a forward."""
    from validate_ddp.models import networks

    return networks.forward(machine, atom, call)


def call_unknown(machine: Machine, atom: Any, call: Call) -> Value:
    """Call a method of something unknown, or something unknown."""
    from validate_ddp.models import methods

    return methods.call_unknown(machine, atom, call)


def base_object(machine: Machine, base: Symbol, call: Call) -> Resource | None:
    """What a library's class makes of an instance of a class of the program derived from it."""
    from validate_ddp.models import data

    if base.last in ("DataLoader", "DistributedSampler"):
        model = data.find(base.name)
        if model is not None:
            for atom in bare(model(machine, base, call)):
                if isinstance(atom, (Loader, Sampler, PlainSampler)):
                    atom.derived = (Opaque("derived"),)
                    return atom
    if base.name.startswith("torch.optim."):
        from validate_ddp.models import optimizers

        return optimizers.made(machine, base, call) if optimizers.is_base(base) else None
    return None


def annotated(machine: Machine, annotation: Expression, name: str) -> Value:
    """A parameter of which nothing but its annotation and name is known."""
    last = last_name(annotation)
    if last in ("Accelerator", "Fabric"):
        return ((Accelerator if last == "Accelerator" else Fabric)(machine.site()),)
    if last[:1].isupper():
        for atom in bare(machine.evaluate(annotation)):
            if isinstance(atom, Class) and not machine.making:
                from validate_ddp.interpreter import calls

                unknown = calls.Call(atom.name, [], {}, machine.site())
                unknown.open = True
                machine.making = True
                try:
                    return calls.instantiate(machine, atom, unknown)
                finally:
                    machine.making = False
            if isinstance(atom, Symbol) and atom.last in sameness.CONFIGURATIONS:
                return roles.suggested(name, alike=True)
    return roles.suggested(name)
