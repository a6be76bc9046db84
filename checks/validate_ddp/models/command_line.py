"""argparse: the options for a rank's device, its backend and its seed, and where their values turn up."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts, roles
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Namespace, Tuple
from validate_ddp.interpreter.rows import method
from validate_ddp.interpreter.values import UNKNOWN, Const, Opaque, Rank, Value, bare, constant
from validate_ddp.source.syntax import Attribute, Name

_DESTINATIONS = {
    "--local_rank": "local_rank",
    "--local-rank": "local_rank",
    "--backend": "backend",
    "--dist_backend": "dist_backend",
    "--dist-backend": "dist_backend",
    "--seed": "seed",
}


def _declared(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``parser.add_argument("--local_rank", ...)``: an option fact; all other options are of no interest."""
    _note_switch(machine, call)
    _note_rank(machine, call)
    for value in call.args:
        option = constant(value)
        destination = _DESTINATIONS.get(option) if isinstance(option, str) else None
        if destination is not None:
            function = call.node.func if call.node else None
            receiver = function.value if isinstance(function, Attribute) else None
            parser = receiver.id if isinstance(receiver, Name) else ""
            machine.record(
                facts.Option(
                    destination,
                    option=value,
                    default=call.value("default"),
                    required=call.value("required"),
                    parser=parser,
                ),
                call.site,
            )
            break
    return None


def _note_rank(machine: Machine, call: Call) -> None:
    """Remember an option that is the launcher's rank by default: that is more than its name."""
    ranks = tuple(atom for atom in bare(call.value("default")) if isinstance(atom, Rank) and not atom.named)
    names = [constant(call.value("dest")), *(constant(value) for value in call.args)]
    long = [name for name in names if isinstance(name, str) and not (name.startswith("-") and name[1:2] != "-")]
    if ranks and long:
        machine.switches[long[0].lstrip("-").replace("-", "_")] = ranks


def _note_switch(machine: Machine, call: Call) -> None:
    """Remember what a switch can be: ``--gpu`` is no rank where it is one, and one that is on by default stays on."""
    action = constant(call.keywords["action"]) if "action" in call.keywords else ""
    option = constant(call.args[0]) if call.args else ""
    if action not in ("store_true", "store_false") or not isinstance(option, str):
        return
    name = option.lstrip("-").replace("-", "_")
    fixed = action == "store_true"
    if "default" in call.keywords and constant(call.keywords["default"]) is fixed:
        machine.switches[name] = (Const(fixed),)
    elif not isinstance(roles.suggested(name)[0], Opaque):
        machine.switches[name] = (Const(True), Const(False))


def parsed(machine: Machine, atom: Any, call: Call) -> Value:
    """The namespace of ``parse_args``: what launchers fill in is there, the rest is unknown."""
    fields: dict[str, Value] = dict(machine.switches)
    for fact in machine.facts:
        if isinstance(fact, facts.Option):
            asked = Rank("local", False, fact.name) if fact.name == "local_rank" else Opaque(fact.name)
            fields[fact.name] = (asked,)
    namespace: Value = (Namespace(call.site, fields),)
    if call.name == "parse_known_args":
        return (Tuple(call.site, {"0": namespace, "1": UNKNOWN}),)
    return namespace


DECLARED = (method("add_argument", _declared, parameters="* default required dest", fact=facts.Option),)
