"""Lightning's command line: it makes the module and the trainer of options out of sight, and runs what it is told."""

from __future__ import annotations

from validate_ddp.interpreter import calls, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.rows import Base, api
from validate_ddp.interpreter.training import LightningTrainer
from validate_ddp.interpreter.values import TRUE, UNKNOWN, Class, Resource, Symbol, Value, bare, constant, join
from validate_ddp.models import lightning

_WITHIN = "lightning pytorch_lightning"
_PARAMETERS = "model_class datamodule_class"


def _started(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``LightningCLI(Net, Data)``: fits, which is what scripts have it for, unless it is only to make the objects."""
    if constant(call.argument(-1, "run")) is not False:
        trainer = LightningTrainer(call.site, several=TRUE, dealing=TRUE)
        made = [_made(machine, call.argument(place, name), call) for place, name in enumerate(_PARAMETERS.split())]
        lightning.run(machine, trainer, Call("fit", [each for each in made if each], {}, call.site))
    return UNKNOWN


def _made(machine: Machine, classes: Value, call: Call) -> Value:
    """An instance with options that nobody knows."""
    result: Value = ()
    for atom in bare(classes):
        if isinstance(atom, Class):
            filled = Call(atom.name, [], {}, call.site)
            filled.open = True
            result = join(result, calls.instantiate(machine, atom, filled))
    return result


def _derived(machine: Machine, base: Symbol, call: Call, cls: Class | None) -> Resource | None:
    """A class of the program derived from it starts as it does."""
    if cls is not None and base.last == "LightningCLI" and base.name.partition(".")[0] in _WITHIN.split():
        _started(machine, base, call)
    return None


DECLARED = (
    api("LightningCLI", _started, within=_WITHIN, fact=facts.Launch),
    Base(_derived),
)
