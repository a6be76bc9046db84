"""What the loop of a library calls: methods of the program's objects, by their names, as code of every rank."""

from __future__ import annotations

from collections.abc import Iterable

from validate_ddp.interpreter import attributes, calls, facts, ranks
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import contents
from validate_ddp.interpreter.training import Host
from validate_ddp.interpreter.values import Const, Function, Instance, Site, Value, bare, constant, join


def instances(value: Value) -> list[Instance]:
    """The program's objects that a value is, or holds in containers."""
    found = [atom for atom in (*bare(value), *contents(value)) if isinstance(atom, Instance)]
    return list(dict.fromkeys(found))


def owners(host: Host) -> list[Instance]:
    """The object of the program of which a library's class made this; none where it is the library's own."""
    return instances(host.fields.get("of", ()))


def hook(machine: Machine, holder: Instance, name: str, site: Site, **given: Value) -> Value:
    """Call a method of the program, if it has it, with what the library is known to give it, by names."""
    member, _ = holder.cls.find(name)
    result: Value = ()
    for atom in bare(attributes.bound(member, holder)) if member is not None else ():
        if isinstance(atom, Function):
            result = join(result, _called(machine, atom, site, given))
    return result


def function(machine: Machine, value: Value, site: Site) -> None:
    """Call a function of the program that the library was handed."""
    for atom in bare(value):
        if isinstance(atom, Function):
            _called(machine, atom, site, {})


def _called(machine: Machine, atom: Function, site: Site, given: dict[str, Value]) -> Value:
    call = Call(atom.name, [], given, site)
    call.open = True
    return calls.call_atom(machine, atom, call)


def methods(holder: Instance, beginning: str) -> Iterable[str]:
    """The names of the methods that the program gives an object and that begin like this, its own class first."""
    found: dict[str, None] = {}
    for base in holder.cls.lineage():
        for name in getattr(base, "members", ()):
            if name.startswith(beginning):
                found[name] = None
    return found


def meet(machine: Machine, call: Call) -> None:
    """A method within which the ranks meet: told only where it is kept from some of them, as all else is in order."""
    if machine.who in ranks.PARTIAL:
        machine.record(facts.Collective(call.name, arguments=call.given), call.site)


LAUNCHED: Value = (Const("launched"),)
"""Of a trainer that is one of several ranks only since launch files start it so."""


def launched(machine: Machine) -> Value:
    """What ``several`` of a trainer is that does not say it itself."""
    return LAUNCHED if machine.started.several else ()


def is_on_one_device(machine: Machine) -> bool:
    """Whether the script itself shows one GPU to its process, which then is the only one."""
    shown = constant(machine.environment.get("CUDA_VISIBLE_DEVICES", ()))
    return shown is not ... and str(shown).strip().isdigit()
