"""What is asked of a wrapped model that its wrapper does not have: DDP hands no attribute through."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.training import DDP
from validate_ddp.interpreter.values import Value, bare, constant
from validate_ddp.source.syntax import Extent

HAS = frozenset(
    """T_destination add_module apply bfloat16 broadcast_bucket_size broadcast_buffers bucket_bytes_cap
    bucket_bytes_cap_default bucket_bytes_cap_list buffers call_super_init children compile cpu cuda device device_ids
    device_type dim double dump_patches eval extra_repr find_unused_parameters float forward forward_sync_buffers gather
    get_buffer get_extra_state get_parameter get_submodule gradient_as_bucket_view half ipu is_multi_device_module join
    join_device join_hook join_process_group load_state_dict logger mixed_precision module modules modules_buffers mtia
    named_buffers named_children named_module_buffers named_modules named_parameters no_sync output_device parameters
    parameters_to_ignore process_group reducer register_backward_hook register_buffer register_comm_hook
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook require_backward_grad_sync require_forward_param_sync
    requires_grad_ scatter set_extra_state set_submodule share_memory skip_all_reduce_unused_params state_dict
    static_graph to to_empty to_kwargs train training type use_side_stream_for_tensor_copies will_sync_module_buffers
    xpu zero_grad batched_grad_copy""".split()
)
"""The attributes of torch's wrapper, as of any module."""


def lacks(atom: Any, name: str) -> bool:
    """Whether ``atom`` is torch's wrapper, which surely has no such attribute: Fabric's hands them through."""
    if not isinstance(atom, DDP) or constant(atom.flavour) not in ("torch", "accelerator"):
        return False
    return not name.startswith("_") and name not in HAS and name not in atom.fields


def note(machine: Machine, value: Value, name: str, span: Extent) -> None:
    """Record that ``name`` is taken from ``value`` where that is nothing but wrappers without it. A script that catches
    that, or asks first, is ready for both."""
    if Flag.TRIED not in machine.flags and Flag.SHORTED not in machine.flags:
        wrappers = [atom for atom in bare(value) if isinstance(atom, DDP)]
        if all(lacks(atom, name) for atom in bare(value)):
            machine.record(facts.Beyond(name, wrapper=tuple(wrappers)), machine.site(span))
