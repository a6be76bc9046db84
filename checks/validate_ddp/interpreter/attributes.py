"""What attributes and items of values are."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import (
    candidates,
    configuration,
    facts,
    gradients,
    metrics,
    names,
    records,
    roles,
    started,
    vocabulary,
)
from validate_ddp.interpreter.callables import Choice
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Container, Dict, Fields, Mapping, Options, Settings, Unique
from validate_ddp.interpreter.training import DDP, Accelerator, BatchSampler, Engine, Host, Loader, Mesh, Wrapper
from validate_ddp.interpreter.values import (
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    ModuleRef,
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
)
from validate_ddp.interpreter.vocabulary import LIBRARIES


def bound(member: Value, instance: Any) -> Value:
    """A class's member as seen on an instance: functions become methods."""
    result: Value = ()
    for atom in bare(member):
        if isinstance(atom, Function) and "staticmethod" not in atom.marks and atom.owner is not None:
            atom = atom.bind(
                instance.cls if isinstance(instance, Instance) and "classmethod" in atom.marks else instance
            )
        result = join(result, (atom,))
    return result


def get(machine: Machine, atom: Any, name: str) -> Value:
    """``atom.name``."""
    if isinstance(atom, Symbol):
        return _symbol(machine, atom, name)
    if isinstance(atom, ModuleRef):
        if name == "__dict__":
            return (atom,)
        return machine.library.member(machine, atom.module, name)  # type: ignore[no-any-return]
    if isinstance(atom, Instance):
        return _instance(machine, atom, name)
    if isinstance(atom, Choice):
        return _one_of(machine, atom, name)
    if isinstance(atom, Resource):
        return _resource(machine, atom, name)
    if isinstance(atom, Class):
        if name == "__dict__":
            return (Dict(machine.site(), {"__module__": UNKNOWN, **atom.members}),)
        member, _ = atom.find(name)
        if member is None:
            return (Const(atom.name),) if name == "__name__" else roles.suggested(name)
        return bound(member, atom) if _is_classmethod(member) else member
    if isinstance(atom, Opaque):
        carries = gradients.cut_parts(atom.carries) if name in gradients.CUTTING_ATTRIBUTES else atom.carries
        found = roles.suggested(f"{atom.name}.{name}" if atom.name else name, carries, atom.alike)
        return join(machine.settings.get(setting(atom, name), ()), found)
    if isinstance(atom, Function) and name == "__name__":
        return (Const(atom.name),)
    if isinstance(atom, Function):
        return roles.suggested(f"{atom.name}.{name}")  # `rank_zero_only.rank`, which a launcher sets
    return (Opaque(name, carried_by((atom,))),)


def setting(atom: Opaque, name: str) -> str:
    """Under which name a field that was put into something unknown is kept.

    A configuration is read from many places, and its fields are known by their names alone; of what else is not known,
    by the very object, which functions hand on.
    """
    return name if atom.alike else f"{name} of {id(atom)}"


def _is_classmethod(member: Value) -> bool:
    return any(isinstance(atom, Function) and "classmethod" in atom.marks for atom in bare(member))


def _symbol(machine: Machine, atom: Symbol, name: str) -> Value:
    full = f"{atom.name}.{name}"
    if full in machine.environment:
        return machine.environment[full]
    if atom.name.partition(".")[0] not in LIBRARIES:
        role = roles.suggested(name)
        if not isinstance(role[0], Opaque):
            return role
    return (Symbol(full),)


def _instance(machine: Machine, atom: Instance, name: str) -> Value:
    if name in atom.fields:
        held = atom.fields[name]
        if "*given" in atom.fields and len(held) == 1 and isinstance(held[0], Const):
            return join(held, metrics.told(atom, name))
        return held
    member, _ = atom.cls.find(name)
    if member is not None:
        result: Value = ()
        for function in bare(bound(member, atom)):
            if isinstance(function, Function) and function.marks & {"property", "cached_property"}:
                result = join(result, machine.call(function))
            else:
                known = configuration.of_open(atom, name, (function,)) if configuration.is_open(atom) else (function,)
                result = join(result, known)
                if type(function) is not Function:  # `rank: int = 0` in a configuration
                    role = roles.suggested(name)
                    result = result if isinstance(role[0], Opaque) else join(result, role)
        return result
    delegated_to = delegated(machine, atom, name)
    if delegated_to:
        return delegated_to
    if isinstance(atom.base, Host):
        hosted = atom.base.fields.get(name) or machine.registry.attribute(atom.base, name)
        if hosted:
            return hosted
    elif atom.base is not None:
        return _resource(machine, atom.base, name)
    if name == "__dict__":
        return (Fields(atom),)
    if name == "__class__":
        return (atom.cls,)
    if "*given" in atom.fields:
        return metrics.told(atom, name)
    # What its constructor was given may be in any field of an object whose constructor was not walked.
    held = tuple(part.unlike() if isinstance(part, Rank) else part for part in atom.given)
    return roles.suggested(name, tuple(part for part in held if isinstance(part, (Rank, Unique))))


def _one_of(machine: Machine, choice: Choice, name: str) -> Value:
    if not all(isinstance(option, Instance) for option in choice.options):
        return candidates.members(machine, choice, name) or roles.suggested(name)
    found: Value = () if choice.all else roles.suggested(name)
    for option in choice.options:
        found = join(found, get(machine, option, name))
    return found


def delegated(machine: Machine, atom: Instance, name: str) -> Value:
    """What ``__getattr__`` of the program finds in another object; nothing where that is not known."""
    member, _ = atom.cls.find("__getattr__")
    if member is None or name.startswith("__"):
        return ()
    found: Value = ()
    for function in bare(bound(member, atom)):
        if isinstance(function, Function) and not any(
            frame.function is not None and frame.function.node is function.node for frame in machine.frames
        ):
            found = join(found, machine.call(function, (Const(name),)))
    return tuple(part for part in bare(found) if not isinstance(part, (Opaque, Const)))


def _resource(machine: Machine, atom: Resource, name: str) -> Value:
    if name in atom.fields and not isinstance(atom, Container):
        return configuration.overridable(name, atom.fields[name]) if isinstance(atom, Settings) else atom.fields[name]
    if isinstance(atom, Wrapper) and name == "module":
        return _inside(atom)
    if isinstance(atom, Wrapper):  # other attributes are the wrapper's own: DDP forwards none
        return (Opaque(name, ()),)
    known = machine.registry.attribute(atom, name)
    if known is not None:
        return known
    if isinstance(atom, Accelerator) and name in ("state", "distributed_type"):
        return (atom,) if name == "state" else UNKNOWN
    if isinstance(atom, Loader):
        if name == "sampler":
            return atom.batch_sampler or UNKNOWN
        return UNKNOWN if name in ("dataset", "batch_sampler") else roles.suggested(name)
    if isinstance(atom, BatchSampler) and name == "sampler":
        return UNKNOWN
    if isinstance(atom, Dict) and name in atom.fields:
        return atom.fields[name]  # attribute dictionaries: AttrDict, Munch, OmegaConf
    if isinstance(atom, Mapping):
        return roles.suggested(name, alike=isinstance(atom, Options))
    return roles.suggested(name, carried_by((atom,)))


def _inside(wrapper: Wrapper) -> Value:
    """What is wrapped. DeepSpeed wraps by itself: what DDP has wrapped is of the script's other way of training."""
    if not isinstance(wrapper, Engine):
        return wrapper.inner
    inner: Value = ()
    for atom in wrapper.inner:
        inner = join(inner, atom.inner if isinstance(atom, DDP) else (atom,))
    return inner


def item(machine: Machine, atom: Any, key: str | None, index: Value) -> Value:
    """``atom[index]`` for what is neither a container nor unknown."""
    if isinstance(atom, Instance):
        held = records.parts(atom) if key is not None and key.lstrip("-").isdigit() else None
        if held is not None and -len(held) <= int(key or 0) < len(held):
            return held[int(key or 0)] or UNKNOWN
        member, _ = atom.cls.find("__getitem__")
        if member is not None:
            result: Value = ()
            for target in bare(bound(member, atom)):
                if isinstance(target, Function):
                    result = join(result, machine.call(target, index))
            return result or UNKNOWN
        return roles.suggested(key or "")
    if isinstance(atom, Mesh):
        return _dimension_of(atom, key)
    if isinstance(atom, Symbol) and names.MESH.matches(atom.last):
        return (Opaque(atom.name),)
    if isinstance(atom, Symbol) and atom.name == started.REST and key is None and machine.started.commands:
        return (atom,)  # `sys.argv[1:]`
    if isinstance(atom, Symbol) and atom.last == "__dict__" and key is None:
        return (Opaque(atom.name),)  # `torchvision.models.__dict__[name]`
    if isinstance(atom, (Symbol, WorldSize, Rank)):
        return roles.suggested(key or "")
    return roles.suggested(key or "", carried_by((atom,)))


def _dimension_of(mesh: Mesh, key: str | None) -> Value:
    """One or some of the dimensions of a mesh; the same ones are the same object."""
    if key is None:
        return (mesh,)
    return mesh.fields.setdefault(f"[{key}]", (Mesh(mesh.site, dimension=(Const(key),)),))


def environment(machine: Machine, key: Value, alike: bool = False) -> Value:
    """``os.environ[key]``: what the script has set, else what launchers mean by it; ``alike``, if a setting else."""
    result: Value = ()
    for atom in bare(key):
        name = str(atom.value) if isinstance(atom, Const) else ""
        result = join(result, _variable(machine, name, alike))
    return result or UNKNOWN


def _variable(machine: Machine, key: str, alike: bool) -> Value:
    if key in machine.environment:
        return machine.environment[key]
    if key in vocabulary.RANK_VARIABLES:
        rank = Rank(vocabulary.RANK_VARIABLES[key])
        rank.text = True
        return (rank,)
    if key in vocabulary.WORLD_VARIABLES:
        return (WorldSize(local=key == "LOCAL_WORLD_SIZE"),)
    return (Opaque(key, (), alike and not names.OF_A_PROCESS.matches(key)),)


def note_world(machine: Machine, key: Value, value: Value) -> None:
    """Record that the script makes itself a world of one: `os.environ.setdefault("WORLD_SIZE", "1")`."""
    if constant(key) == "WORLD_SIZE" and constant(value) in (1, "1"):
        machine.record(facts.WorldOfOne("WORLD_SIZE"), machine.site())
