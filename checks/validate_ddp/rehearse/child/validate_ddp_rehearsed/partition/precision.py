"""Arithmetic in which only a defect is seen: float64, no dropout, no autocast, no mixed precision of shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..hook import when_complete
from ..patching import Handed, Original, everywhere, patch

if TYPE_CHECKING:
    from types import ModuleType

_MIXED_PRECISION = 6
"""Its position among the arguments of FullyShardedDataParallel, after ``self``."""
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def widen(torch: ModuleType, float64: bool) -> None:
    """Local. float64: else only what differs between runs is left out."""
    _without_dropout(torch)

    def off(original: Original) -> Original:
        def init(self: object, *args: object, **kwargs: object) -> None:
            kwargs["enabled"] = False
            original(self, *args[:2], **kwargs)

        return init

    patch(torch.amp.autocast, "__init__", off)
    when_complete("torch.distributed.fsdp", lambda fsdp: _full_precision(torch, fsdp, float64))
    if float64:
        torch.set_default_dtype(torch.float64)
        _double(torch)


def _without_dropout(torch: ModuleType) -> None:
    functional = torch.nn.functional

    def identity(original: Original) -> Original:
        return lambda input, *args, **kwargs: input

    def attention(original: Original) -> Original:
        def undropped(
            query: object, key: object, value: object, attn_mask: object = None, dropout_p: float = 0.0,
            *rest: object, **kwargs: object
        ) -> object:  # fmt: skip
            return original(query, key, value, attn_mask, 0.0, *rest, **kwargs)

        return undropped

    for name in _DROPOUTS:
        patch(functional, name, identity)
        patch(torch, name, identity)
    patch(functional, "scaled_dot_product_attention", attention)


def _double(torch: ModuleType) -> None:
    """Casts to a narrower type become casts to float64."""
    narrow = (torch.float32, torch.float16, torch.bfloat16)

    def to(original: Original) -> Original:
        def moved(self: object, *args: object, **kwargs: object) -> object:
            args = tuple(torch.float64 if type(each) is torch.dtype and each in narrow else each for each in args)
            if kwargs.get("dtype") in narrow:
                kwargs["dtype"] = torch.float64
            return original(self, *args, **kwargs)

        return moved

    def cast(original: Original) -> Original:
        def wide(self: Handed, *args: object, **kwargs: object) -> object:
            return original(self, *args, **kwargs) if getattr(self, "is_complex", bool)() else self.double()

        return wide

    for kind in (torch.Tensor, torch.nn.Module):
        patch(kind, "to", to)
        for name in ("float", "half", "bfloat16"):
            patch(kind, name, cast)


def _full_precision(torch: ModuleType, fsdp: ModuleType, float64: bool) -> None:
    """No policy of mixed precision; parameters by their own names, as their gradients cannot be had otherwise. What is
    made or loaded in a narrower type is widened before it is sharded, which is too late at its first call."""

    def sharded(original: Original) -> Original:
        def built(self: object, *args: object, **kwargs: object) -> None:
            kwargs.pop("mixed_precision", None)
            kwargs["use_orig_params"] = True
            if float64:
                _doubled(torch, args[0] if args else kwargs["module"])
            at = _MIXED_PRECISION
            original(self, *args[:at], *((None,) if len(args) > at else ()), *args[at + 1 :], **kwargs)

        return built

    def shard(original: Original) -> Original:
        def fully_shard(*args: object, **kwargs: object) -> object:
            kwargs.pop("mp_policy", None)
            if float64:
                _doubled(torch, args[0] if args else kwargs["module"])
            return original(*args, **kwargs)

        return fully_shard

    patch(fsdp.FullyShardedDataParallel, "__init__", sharded)
    if hasattr(fsdp, "fully_shard"):
        original = fsdp.fully_shard
        patch(fsdp, "fully_shard", shard)
        everywhere({id(original): fsdp.fully_shard})


def _doubled(torch: ModuleType, given: Handed) -> None:
    """The parameters and buffers of one or several modules that are in no shards yet."""
    for module in given if isinstance(given, (list, tuple)) else [given]:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and tensor.dtype != torch.float64 and not hasattr(tensor, "full_tensor"):
                tensor.data = tensor.data.double()


def widened(torch: ModuleType, value: Handed, float64: bool) -> Handed:
    """A value with its floating tensors in float64, in lists, tuples and dictionaries."""
    if not float64:
        return value
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        for key in list(value):
            if hasattr(value, "__setitem__"):
                value[key] = widened(torch, value[key], float64)
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(widened(torch, each, float64) for each in value))
    if type(value) in (list, tuple):
        return type(value)(widened(torch, each, float64) for each in value)
    return value
