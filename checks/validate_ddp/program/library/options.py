"""argparse: the options for a rank's device, its backend and its seed, and where their values turn up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from validate_ddp.program import vocabulary
from validate_ddp.program.machine import Machine
from validate_ddp.program.values import UNKNOWN, Const, Opaque, Rank, Resource, Value, constant

if TYPE_CHECKING:
    from validate_ddp.program.calls import Call

_DESTINATIONS = {
    "--local_rank": "local_rank",
    "--local-rank": "local_rank",
    "--backend": "backend",
    "--dist_backend": "dist_backend",
    "--dist-backend": "dist_backend",
    "--seed": "seed",
}


def declared(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``parser.add_argument("--local_rank", ...)``: an option fact; all other options are of no interest."""
    for value in call.args:
        option = constant(value)
        destination = _DESTINATIONS.get(option) if isinstance(option, str) else None
        if destination is not None:
            function = call.node[1] if call.node else []
            parser = function[1][1] if function and function[1][0] == "name" else ""
            machine.record(
                "option",
                destination,
                call.site,
                option=value,
                default=call.argument(-1, "default"),
                parser=(Const(parser),),
            )
            break
    else:
        if constant(call.argument(-1, "action")) == "store_true":
            _switch(machine, call)
    return None


def _switch(machine: Machine, call: Call) -> None:
    """``--gpu`` with ``store_true`` is no number of a GPU; one that is on by default is always on."""
    name = str(constant(call.argument(0))).lstrip("-").replace("-", "_")
    on = constant(call.argument(-1, "default")) is True
    if on or name in vocabulary.LOCAL_RANK or name in vocabulary.GLOBAL_RANK:
        switch = (Const(True),) if on else (Opaque("switched on"),)
        machine.record("option", name, call.site, switch=switch)


def parsed(machine: Machine, atom: Any, call: Call) -> Value:
    """The namespace of ``parse_args``: what launchers fill in is there, the rest is unknown."""
    fields: dict[str, Value] = {}
    for fact in machine.facts:
        if fact.kind == "option":
            asked = Rank("local", False, fact.name) if fact.name == "local_rank" else Opaque(fact.name)
            fields[fact.name] = fact.value("switch") or (asked,)
    namespace: Value = (Resource("namespace", call.site, fields),)
    if call.name == "parse_known_args":
        return (Resource("tuple", call.site, {"0": namespace, "1": UNKNOWN}),)
    return namespace
