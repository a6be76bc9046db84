"""Finding by name: attributes, the names of a module, modules, as ``getattr``, ``globals`` and ``import_module`` do."""

from __future__ import annotations

from validate_ddp.interpreter import attributes, candidates
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.callables import Choice
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.presence import completed
from validate_ddp.interpreter.rows import api
from validate_ddp.interpreter.training import Wrapper
from validate_ddp.interpreter.values import UNKNOWN, ModuleRef, Opaque, Symbol, Value, bare, carried_by, constant, join


def _getattr(machine: Machine, symbol: Symbol, call: Call) -> Value:
    name = constant(call.argument(1))
    if not isinstance(name, str):
        return _prefixed(machine, call.argument(0), call.argument(1)) or _chosen(machine, call.argument(0)) or UNKNOWN
    if name == "module" and len(call.args) == 3:
        result: Value = ()
        for atom in bare(call.args[0]):
            inner = atom.inner if isinstance(atom, Wrapper) else ()
            result = join(result, inner or (atom,))
        return result
    result = ()
    for atom in bare(call.argument(0)):
        result = join(result, attributes.get(machine, atom, name))
    if len(call.args) == 3:
        result = completed(result, call.args[2])
    return result or UNKNOWN


def _prefixed(machine: Machine, value: Value, name: Value) -> Value:
    """``getattr(module, "init_%s" % how)``: the names with that prefix."""
    result: Value = ()
    for atom in bare(value):
        for text in bare(name):
            prefix = text.name.partition("%")[0].partition("{")[0] if isinstance(text, Opaque) else ""
            if isinstance(atom, ModuleRef) and len(prefix) > 3 and prefix.isidentifier():
                machine.library.load(machine, atom.module)
                for known in [key for key in atom.module.scope.names if key.startswith(prefix)]:
                    result = join(result, attributes.get(machine, atom, known))
    return result


def _chosen(machine: Machine, value: Value) -> Value:
    """``getattr(module, config.name)``: one of what the module holds."""
    result: Value = ()
    for atom in bare(value):
        if isinstance(atom, ModuleRef):
            result = join(result, candidates.of_module(machine, atom.module))
        elif isinstance(atom, Choice):
            result = join(result, candidates.any_of(machine, atom))
    return result


def _globals(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (ModuleRef(machine.frame.module),)


def _eval(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``eval(name)``: what the module calls so; of anything longer, nothing is known."""
    name = constant(call.argument(0))
    if isinstance(name, str) and name.isidentifier():
        return attributes.get(machine, ModuleRef(machine.frame.module), name)
    found = () if name is not ... else candidates.of_module(machine, machine.frame.module)
    return found or (Opaque(f"{symbol.name}()", carried_by(call.given)),)


def _import_module(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``importlib.import_module``: of a known name, or one of the modules of a package."""
    result: Value = ()
    for atom in bare(call.value("name")):
        text = atom.name.partition("%")[0].partition("{")[0] if isinstance(atom, Opaque) else constant((atom,))
        if not isinstance(text, str):
            continue
        dotted = text.lstrip(".")
        if isinstance(atom, Opaque):
            package = dotted.rpartition(".")[0].rstrip(".")
            result = join(result, candidates.modules_in(machine, package) if package and dotted == text else ())
            continue
        found = machine.library.finder.find(dotted, len(text) - len(dotted), machine.frame.module.file)
        if found is None:
            result = join(result, (Symbol(dotted),))
        else:
            module = machine.library.module(machine.library.summaries.init_file(found))
            result = join(result, (ModuleRef(module),))
    return result or (Opaque("module"),)


DECLARED = (
    api("builtins.getattr", _getattr),
    api("builtins.globals", _globals),
    api("builtins.eval", _eval),
    api("importlib.import_module", _import_module, parameters="name"),
)
