"""What is done where no model is known: calls of which only the name says something, parameters without a value."""

from __future__ import annotations

from validate_ddp.interpreter import calls, facts, late, metrics, quiet, roles, sameness, shares
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names import DISTRIBUTED_FLAG
from validate_ddp.interpreter.names_of_training import KEEPS_FUNCTION, RANDOM_OPTION, REDUCING, SAVES
from validate_ddp.interpreter.objects import Sequence
from validate_ddp.interpreter.training import Accelerator, Fabric
from validate_ddp.interpreter.values import (
    Class,
    Function,
    Opaque,
    Rank,
    Symbol,
    Value,
    bare,
    carried_by,
)
from validate_ddp.models import handed, meshes, randomness
from validate_ddp.source.syntax import Expression, FunctionDef
from validate_ddp.source.traversal import last_name

_LOOK_ONLY = frozenset("inspect functools typing types dataclasses abc warnings logging pickle copy signal".split())


def unresolved(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A call of which only the name is known: of an unknown library, or of a file that is not there."""
    last = symbol.last.lower().lstrip("_")
    root = symbol.name.partition(".")[0]
    guessed = roles.called(last)
    if guessed:
        if isinstance(guessed[0], Rank) and meshes.is_of_group(symbol, call):
            guessed = (Rank("group", named=last),)
        if isinstance(guessed[0], Rank) and guessed[0].scope == "group":
            machine.record(facts.GroupRank(symbol.last), call.site)
        return guessed
    if last in DISTRIBUTED_FLAG.words:
        return (Opaque(symbol.name),)
    if root == "program" and late.is_handed(machine, call.given):
        made = handed.function_of(machine, symbol, call)
        if made:
            return made
    if SAVES.matches(last):  # it may guard itself: what is saved is known, who saves it is not
        machine.record(facts.Save(symbol.last, object=call.given, role="unresolved"), call.site)
    called_back(machine, call, root)
    made_of = [*call.args, *(value for name, value in call.keywords.items() if name != "device")]
    carries = metrics.aggregated(call, carried_by(atom for value in made_of for atom in value))
    if call.keywords and not RANDOM_OPTION.words.isdisjoint(call.keywords):
        carries = randomness.noted(call, carries)
    if carries:
        if root not in ("torch", "einops", "numpy", "math"):
            if REDUCING.matches(symbol.last):
                carries = metrics.reduced(call, carries)
            with quiet.kept_to_printing(machine, symbol.name, call.keywords):
                metrics.report(machine, call)
    alike = sameness.made_of_arguments(symbol.name) and sameness.are_alike(*call.args, *call.keywords.values())
    result = Opaque(symbol.name + "()", carries, alike)
    if root == "program":
        late.note(machine, result, symbol, call)
    return (shares.called_with(machine, symbol.name, call, result) if carries else result,)


def called_back(machine: Machine, call: Call, root: str) -> None:
    """Functions of the program handed to unknown code are called by it: launchers, apps, decorators.

    Not by what only looks at them, and not by what keeps them for later: nobody knows then on which ranks.
    """
    if root in _LOOK_ONLY or KEEPS_FUNCTION.matches(call.name):
        return

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
            calls.call_atom(machine, atom, called)


def annotated(machine: Machine, annotation: Expression, name: str) -> Value:
    """A parameter of which nothing but its annotation and name is known."""
    last = last_name(annotation)
    if last in ("Accelerator", "Fabric"):
        return ((Accelerator if last == "Accelerator" else Fabric)(machine.site()),)
    if last[:1].isupper():
        for atom in bare(machine.evaluate(annotation)):
            if isinstance(atom, Class) and not machine.making:
                unknown = Call(atom.name, [], {}, machine.site())
                unknown.open = True
                machine.making = True
                try:
                    return calls.instantiate(machine, atom, unknown)
                finally:
                    machine.making = False
            if isinstance(atom, Symbol) and atom.last in sameness.CONFIGURATIONS:
                return roles.suggested(name, alike=True)
    return roles.suggested(name)
