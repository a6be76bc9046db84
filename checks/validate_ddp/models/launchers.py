"""Classes of programs derived from Accelerate's Accelerator, Lightning's Fabric or LightningLite, Fabric's name before;
and what only Fabric has: callbacks, its way to seed."""

from __future__ import annotations

from validate_ddp.interpreter import attributes, calls, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.derived import DerivedAccelerator, DerivedFabric, LightningLite
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.rows import Base, method
from validate_ddp.interpreter.training import Fabric
from validate_ddp.interpreter.values import NONE, TRUE, Class, Const, Resource, Symbol, Value, bare, constant
from validate_ddp.models import frameworks, hosting, lightning, networks

_WITHIN = "lightning lightning_fabric lightning_lite pytorch_lightning".split()
_SHARDING = ("deepspeed", "fsdp")


def _derived(machine: Machine, base: Symbol, call: Call, cls: Class | None) -> Resource | None:
    """What the library makes of an instance of a class of the program."""
    root = base.name.partition(".")[0]
    if root == "accelerate" and base.last == "Accelerator":
        return frameworks.made(DerivedAccelerator, machine, call)
    if root not in _WITHIN:
        return None
    if base.last == "Fabric":
        return frameworks.made(DerivedFabric, machine, call)
    return _lite(machine, call) if base.last == "LightningLite" else None


def _lite(machine: Machine, call: Call) -> LightningLite:
    """One process where nothing asks for more, which for Fabric is every device that there is."""
    made = frameworks.made(LightningLite, machine, call)
    if lightning.is_of_one(call) or not (lightning.starts_several(call) or hosting.launched(machine)):
        made.single = TRUE
    told = constant(call.argument(-1, "strategy"))
    if isinstance(told, str) and told.startswith(_SHARDING):
        made.sharded = TRUE
    return made


def _call(machine: Machine, fabric: Fabric, call: Call) -> Value:
    """``fabric.call("on_train_end", trainer)``: the method of this name of every callback that has it."""
    name = constant(call.argument(0, "hook_name"))
    for holder in hosting.instances(fabric.fields.get("callbacks", ())) if isinstance(name, str) else ():
        member, _ = holder.cls.find(name)
        for atom in bare(attributes.bound(member, holder)) if member is not None else ():
            given = {key: value for key, value in call.keywords.items() if key != "hook_name"}
            calls.call_atom(machine, atom, Call(name, call.args[1:], given, call.site))
    return NONE


def _seed(machine: Machine, fabric: Fabric, call: Call) -> Value:
    """Alike on every rank; the workers of loaders are seeded by rank unless it is told not to."""
    workers = call.value("workers")
    if constant(workers) is not False:
        workers = (Const(True),)
    machine.record(
        facts.Seed(call.name, seed=call.value("seed"), library="lightning", workers_apart=workers), call.site
    )
    return NONE


DECLARED = (
    Base(_derived),
    method("call", _call, of=Fabric),
    method("seed_everything", _seed, of=Fabric, parameters="seed workers", fact=facts.Seed),
    method("to_device", of=Fabric, parameters="obj", result="obj"),
    method("rank_zero_first init_module init_tensor sharded_model", networks.entered, of=Fabric),
)
