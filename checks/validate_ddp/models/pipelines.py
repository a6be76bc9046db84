"""Megatron's pipeline schedules: one call draws the micro-batches, runs the model on them, and computes gradients."""

from __future__ import annotations

from validate_ddp.interpreter import calls, conditions, drawing, facts, iteration
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.rows import api
from validate_ddp.interpreter.values import Function, Symbol, Value, bare, join

_SCHEDULES = """forward_backward_no_pipelining forward_backward_pipelining_with_interleaving
    forward_backward_pipelining_without_interleaving"""
_CHOSEN: Value = (Symbol("megatron.core.pipeline_parallel.schedules.forward_backward_no_pipelining"),)


def _run(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """The step's function gets the iterator and the model, as often as there are micro-batches."""
    batches, model = call.value("data_iterator"), call.value("model")
    only_forward = conditions.truth_of(call.value("forward_only")) is True
    iteration.note(machine, batches, call.site, "iter")
    drawing.note(machine, batches, call.site, "iter")
    result: Value = ()
    with machine.flagged(*((Flag.NO_GRAD,) if only_forward else ())):
        for atom in bare(call.value("forward_step_func")):
            if isinstance(atom, Function):
                result = join(result, calls.call_values(machine, atom, batches, model))
    if not only_forward:
        machine.record(facts.Backward("schedule", loss=result), call.site)
    return result


DECLARED = (
    api("get_forward_backward_func", within="megatron", result=_CHOSEN),
    api(
        _SCHEDULES,
        _run,
        within="megatron",
        parameters="forward_step_func data_iterator model forward_only",
        fact=(facts.Backward, facts.Iterate),
    ),
)
