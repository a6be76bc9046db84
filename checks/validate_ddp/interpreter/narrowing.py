"""What follows in its branches from a condition: which alternatives of the names in it remain, what flags are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from validate_ddp.interpreter import conditions
from validate_ddp.interpreter.machine import Machine, Scope
from validate_ddp.interpreter.objects import Options, contents
from validate_ddp.interpreter.training import DDP, DP, FSDP, Engine, Wrapper
from validate_ddp.interpreter.values import Class, Const, Instance, Opaque, Resource, Symbol, Value, bare, unmarked

Node = list[Any]


def refine(machine: Machine, node: Node, positive: bool) -> None:
    """Drop from the names in a condition the alternatives with which it would not be ``positive``."""
    kind = node[0]
    if kind == "not":
        refine(machine, node[1], not positive)
    elif kind == "bool":
        if (node[1] == "and") is positive:
            for part in node[2]:
                refine(machine, part, positive)
    elif kind in ("name", "attr"):
        _keep(machine, node, lambda atom: conditions.atom_truth(atom) is not (not positive))
    elif kind == "cmp" and len(node[2]) == 1:
        operator, right = node[2][0], node[3][0]
        if right == ["const", None] and operator in ("Is", "IsNot", "Eq", "NotEq"):
            wanted = positive is (operator in ("Is", "Eq"))
            _keep(machine, node[1], lambda atom: conditions.is_none_truth(atom) is not (not wanted))
        elif node[1][0] == "call" and node[1][1] == ["name", "type"] and node[1][2]:
            wanted = positive is (operator in ("Is", "Eq", "In"))
            _keep(machine, node[1][2][0], lambda atom: isinstance(atom, Wrapper) is wanted or isinstance(atom, Opaque))
    elif kind == "call" and node[1] == ["name", "hasattr"] and len(node[2]) == 2:
        if node[2][1] == ["const", "module"]:
            _keep(machine, node[2][0], lambda atom: isinstance(atom, Wrapper) is positive or isinstance(atom, Opaque))
        elif node[2][1] == ["const", "state_dict"] and not positive:
            _keep(machine, node[2][0], lambda atom: not isinstance(atom, Wrapper))
    elif kind == "call" and node[1] == ["name", "isinstance"] and len(node[2]) == 2:
        kinds = _wrappers(machine, node[2][1])
        if kinds:
            _keep(machine, node[2][0], lambda atom: isinstance(atom, kinds) is positive or isinstance(atom, Opaque))


_CLASSES: dict[str, type[Wrapper]] = {
    "DistributedDataParallel": DDP,
    "DDP": DDP,
    "FullyShardedDataParallel": FSDP,
    "FSDP": FSDP,
    "DataParallel": DP,
    "DeepSpeedEngine": Engine,
}


def _wrappers(machine: Machine, node: Node) -> tuple[type[Wrapper], ...]:
    """The kinds of wrappers that the classes in an ``isinstance`` make, by what their names are bound to."""
    if node[0] not in ("name", "attr", "seq"):
        return ()
    tested = machine.evaluate(node)
    symbols = [part for atom in (*bare(tested), *contents(tested)) for part in _with_bases(atom)]
    return tuple(_CLASSES[part.last] for part in symbols if isinstance(part, Symbol) and part.last in _CLASSES)


def _with_bases(atom: Any) -> list[Any]:
    return atom.lineage() if isinstance(atom, Class) else [atom]


def assume(machine: Machine, node: Node) -> None:
    """What ``assert not args.evolve`` says of a field that is otherwise unknown."""
    positive = node[0] != "not"
    part = node if positive else node[1]
    if part[0] != "attr" or any(guard.who == "all" and not guard.exact for guard in machine.guards):
        return  # of no field, or said of some runs only
    for atom in bare(machine.evaluate(part[1])):
        if isinstance(atom, Options) and part[2] not in atom.fields:
            machine.write(atom.fields, part[2], (Const(positive),))


def agree(machine: Machine, node: Node) -> None:
    """Note that ranks do not differ about a condition under which the process group is started: they would not meet."""
    if node[0] == "not":
        agree(machine, node[1])
    elif node[0] == "bool":
        for part in node[2]:
            agree(machine, part)
    elif node[0] in ("name", "attr"):
        machine.agreed.add(conditions.flag_name(node))


def presume(machine: Machine, node: Node, positive: bool) -> None:
    """Take for granted what the start of the process group hangs on, as in `if config.enable_fsdp: setup()`."""
    if node[0] == "not":
        presume(machine, node[1], not positive)
    elif node[0] == "bool" and (node[1] == "and") is positive:
        for part in node[2]:
            presume(machine, part, positive)
    elif node[0] in ("name", "attr"):
        machine.presumed.setdefault(conditions.flag_name(node), positive)


def _keep(machine: Machine, node: Node, wanted: Callable[[Any], bool]) -> None:
    """Narrow the name or field ``node`` to the alternatives wanted, where some but not all are."""
    if node[0] == "name":
        scope: Scope | None = machine.frame.scope
        while scope is not None and node[1] not in scope.names:
            scope = scope.parent
        if scope is not None:
            _narrow(machine, scope.names, node[1], wanted)
    elif node[0] == "attr":
        for atom in bare(machine.evaluate(node[1])):
            if isinstance(atom, (Instance, Resource)) and node[2] in atom.fields:
                _narrow(machine, atom.fields, node[2], wanted)


def _narrow(machine: Machine, names: dict[str, Value], key: str, wanted: Callable[[Any], bool]) -> None:
    value = names[key]
    kept = tuple(atom for atom in value if wanted(unmarked(atom)))
    if kept and len(kept) < len(value):
        machine.write(names, key, kept)
