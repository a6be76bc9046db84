"""Optimizers, and the layers whose parameters they hold: steps, zeroed gradients, parameters outside a wrapper."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import binding, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names_of_training import OPTIMIZER
from validate_ddp.interpreter.objects import Container, Open
from validate_ddp.interpreter.rows import Base, api, method
from validate_ddp.interpreter.training import Layer, Optimizer, Prepared, Shell
from validate_ddp.interpreter.values import (
    NONE,
    Class,
    Function,
    Instance,
    Opaque,
    Resource,
    Symbol,
    Value,
    bare,
    carried_by,
)
from validate_ddp.models import unknown
from validate_ddp.source.syntax import Attribute
from validate_ddp.source.traversal import last_name

_OPTIMIZERS = frozenset(
    """SGD Adam AdamW Adamax NAdam RAdam Adagrad Adadelta RMSprop Rprop LBFGS ASGD SparseAdam Adafactor Muon LARS LAMB
    Lamb Lion AdaBelief Adan FusedAdam FusedSGD FusedLAMB FusedNovoGrad Adam8bit AdamW8bit PagedAdamW8bit Lion8bit
    DeepSpeedCPUAdam ZeroRedundancyOptimizer RMSpropTF Lookahead Ranger RectifiedAdam""".split()
)
_LAYERS = frozenset(
    """Linear LazyLinear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Embedding
    EmbeddingBag LSTM GRU RNN LSTMCell GRUCell BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LayerNorm GroupNorm
    InstanceNorm2d PReLU MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer TransformerEncoder
    TransformerDecoder Transformer Sequential ModuleList ModuleDict Parameter ParameterList ParameterDict""".split()
)
"""Modules of torch.nn that have parameters, or may hold such modules."""
_HOLDERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
_PARAMETRISED = _LAYERS - _HOLDERS


def _layer(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """Still something unknown, but told from other layers: with its kind, parts and place in the walk's order."""
    parts = tuple(part for part in carried_by(call.given) if isinstance(part, (Resource, Instance)))
    layer = Layer(call.site, symbol.last, len(machine.facts))
    layer.parts = (*parts, Open(call.site)) if call.open else parts
    return (Opaque(symbol.name + "()", (layer,)),)


def holding(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``layers.append(layer)``: a container of modules, or a module, gets parts."""
    if isinstance(atom, Opaque):
        binding.put_into(atom, called.given)
    elif isinstance(atom, Instance):
        atom.given = (*atom.given, *carried_by(called.given))
    return None


def step(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``optimizer.step()``, or the step of a gradient scaler which is given the optimizer."""
    for closure in bare(called.value("closure")):  # LBFGS runs forward and backward itself
        if isinstance(closure, Function):
            machine.call(closure)
    target = _target(atom, called) or next((part for part in bare(called.argument(0)) if _is_optimizer(part)), None)
    if target is None:
        return None
    machine.record(facts.Step(called.name, optimizer=(target,)), called.site)
    return NONE


def _clip(machine: Machine, symbol: Symbol, call: Call) -> Value:
    machine.record(facts.Clip(symbol.last, parameters=call.value("parameters")), call.site)
    return unknown.unresolved(machine, symbol, call)


def zero_grad(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``zero_grad()`` of an optimizer, or of a model."""
    target = _target(atom, called) or atom
    machine.record(facts.ZeroGrad(called.name, target=(target,), receiver=spelled(called)), called.site)
    return NONE


def spelled(called: Call) -> str:
    """The last name of what the method is called on, as the code writes it."""
    function = called.node.func if called.node else None
    return last_name(function.value) if isinstance(function, Attribute) else ""


def _target(atom: Any, called: Call) -> Any:
    if _is_optimizer(atom):
        return atom
    return atom if isinstance(atom, Opaque) and OPTIMIZER.matches(spelled(called)) else None


def _is_optimizer(atom: Any) -> bool:
    if isinstance(atom, Instance):
        atom = atom.base
    if isinstance(atom, Opaque):
        return OPTIMIZER.matches(atom.name)
    return isinstance(atom, Optimizer) or (isinstance(atom, Prepared) and any(map(_is_optimizer, bare(atom.inner))))


def parts_of(value: Value) -> list[Any]:
    """Every layer and instance that a module is or holds, itself included, and the modules inside wrappers.

    An ``Open`` among them says that there are others, which the walk has not seen.
    """
    found: list[Any] = []
    pending = list(value)
    seen: set[int] = set()
    while pending and len(seen) < 2000:
        atom = bare((pending.pop(),))[0]
        if id(atom) in seen:
            continue
        seen.add(id(atom))
        if isinstance(atom, Instance):
            found.append(atom)
            pending.extend(part for field in atom.fields.values() for part in field)
            pending.extend(atom.given)
        elif isinstance(atom, Opaque):
            pending.extend(atom.carries)
        elif isinstance(atom, Layer):
            found.append(atom)
            pending.extend(atom.parts)
        elif isinstance(atom, Open):
            found.append(atom)
        elif isinstance(atom, Shell):
            pending.extend(atom.inner)
        elif isinstance(atom, Container):
            pending.extend(part for field in atom.fields.values() for part in field)
    return found


def has_parameters(module: Any) -> bool:
    """Whether a module surely has parameters of its own or of a part."""
    return any(
        part.called not in _HOLDERS
        if isinstance(part, Layer)
        else isinstance(part, Instance) and _makes_layers(part.cls)
        for part in parts_of((module,))
    )


def _makes_layers(cls: Class) -> bool:
    """Whether a module of the program uses a layer by name."""
    bases = cls.lineage()
    return any(isinstance(base, Symbol) and base.name == "torch.nn.Module" for base in bases) and any(
        isinstance(base, Class) and not _PARAMETRISED.isdisjoint(base.node.words) for base in bases
    )


def _derived(machine: Machine, base: Symbol, call: Call, cls: Class | None) -> Resource | None:
    """The optimizer that an instance of a class of the program is."""
    place, _, last = base.name.rpartition(".")
    is_one = last in _OPTIMIZERS and f"{place}.".startswith("torch.optim.")
    if not is_one and base.name not in ("torch.optim.Optimizer", "torch.optim.optimizer.Optimizer"):
        return None
    made = _OPTIMIZER.call(machine, base, call)[0]
    return made if isinstance(made, Optimizer) else None


_OPTIMIZER = api(_OPTIMIZERS, within="*", parameters="parameters=params", makes=Optimizer, fact=facts.Optimizer)

DECLARED = (
    _OPTIMIZER,
    api(_LAYERS, _layer, within="torch.nn"),
    Base(_derived),
    api("clip_grad_norm_ clip_grad_norm", _clip, within="torch.nn.utils", parameters="parameters", fact=facts.Clip),
    method("step", step, parameters="closure", fact=facts.Step),
    method("zero_grad", zero_grad, fact=facts.ZeroGrad),
    method("append extend insert update add_module register_module", holding),
)
