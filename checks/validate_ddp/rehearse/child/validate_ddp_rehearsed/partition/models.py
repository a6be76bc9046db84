"""The parameters of the models that are trained, by name and whole, however they are sharded.

A name is the number of the outermost module, in the order of the first training calls, and the name in it without what
wrappers put in front. Whole values of shards are collective: every rank of a group comes to the same call.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from ..patching import Handed, Original, patch
from .begin import RECORDING
from .own import Own
from .precision import widened
from .slope import STEP, direction
from .tape import Tape, end

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from ..session import Session
    from .acts import Acts
    from .begin import Part

_WRAPPERS = re.compile(r"(^|\.)(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.)")


def plain(name: str) -> str:
    """A parameter's name without what wrappers put in front: ``module.0.weight`` is ``0.weight``."""
    found = name
    while (shorter := _WRAPPERS.sub(r"\1", found).replace("..", ".").lstrip(".")) != found:
        found = shorter
    return found


class Models:
    """tape: told of the inputs. rank: whose weights are written."""

    def __init__(self, session: Session, part: Part, tape: Tape, rank: int) -> None:
        self.torch, self.part, self.tape, self.rank = session.torch, part, tape, rank
        self.modules: list[Module] = []
        self.parameters: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        self.weights: dict[str, Tensor] = {}
        self.sharded = self.dealt = False
        self.own = Own(self.torch, part, rank)
        self.calls = 0
        """Nested calls of modules."""
        self.in_backward: Callable[[], bool] = lambda: False
        self.acts: Acts | None = None
        self.direction = direction(self.torch, part) if part["role"] == "up" else None
        patch(self.torch.nn.Module, "__call__", self._called)

    def _called(self, original: Original) -> Original:
        models = self

        def call(self: Module, *args: object, **kwargs: object) -> object:  # by this name torch's profiler finds it
            if models.calls or not models.torch.is_grad_enabled() or models.in_backward():
                return original(self, *args, **kwargs)
            if not any(each.requires_grad for each in self.parameters()):
                return original(self, *args, **kwargs)
            models.calls += 1
            try:
                models._training(self)
                torch, float64 = models.torch, models.part["float64"]
                args, kwargs = widened(torch, args, float64), widened(torch, kwargs, float64)
                models.tape.saw((args, kwargs))
                result = original(self, *args, **kwargs)
                if models.acts is not None:
                    models.acts.gave(result)
                return result
            finally:
                models.calls -= 1

        return call

    def _training(self, module: Module) -> None:
        """A training call that no other encloses: its parameters get names, and in one process those of the ranks."""
        if any(each is module for each in self.modules):
            return
        if self._is_sharded(module):
            self.sharded = True
        elif self.part["float64"]:
            module.double()
        number = len(self.modules)
        self.modules.append(module)
        with self.torch.no_grad(), self._whole(module, writeback=True):
            self.dealt = self.dealt or self.own.has_more(f"{number}:{plain(name)}" for name, _ in self._tensors(module))
            for name, tensor in self._tensors(module):
                if id(tensor) in self.names:
                    continue
                name = f"{number}:{plain(name)}"
                self.names[id(tensor)] = name
                if isinstance(tensor, self.torch.nn.Parameter):
                    self.parameters[name] = tensor
                    if self.acts is not None and name not in self.own.names:
                        self.acts.trains(tensor)
                if self.part["role"] in RECORDING:
                    self.weights[name] = whole(tensor).clone()
                else:
                    self._copy(name, tensor)

    def _tensors(self, module: Module) -> Iterator[tuple[str, Tensor]]:
        yield from module.named_parameters()
        yield from module.named_buffers()

    def _is_sharded(self, module: Module) -> bool:
        fsdp = sys.modules.get("torch.distributed.fsdp")
        kinds = (fsdp.FullyShardedDataParallel,) if fsdp is not None else ()
        return any(isinstance(each, kinds) for each in module.modules()) or any(
            hasattr(each, "full_tensor") for each in module.parameters()
        )

    def _copy(self, name: str, tensor: Tensor) -> None:
        held = self.own.held(name, self.tape.playing[0]["weights"].get(name))
        if self.dealt and self.own.lies_elsewhere(name, tensor):
            return
        if held is None or held.shape != tensor.shape:
            end(self.part, f"one process holds other parameters: `{name.partition(':')[2]}`")
        value = held.to(tensor.dtype)
        names = self.part["names"]
        if self.direction is not None and (names is None or name in names):
            way = self.direction.of(name, self.rank)
            value = value if way is None else value + STEP * way
        if hasattr(tensor, "full_tensor"):
            from torch.distributed.tensor import distribute_tensor

            value = distribute_tensor(value, tensor.device_mesh, tensor.placements)
        if not (type(value) is type(tensor.data) and self.torch.equal(value, tensor)):  # a graph may hold it already
            tensor.copy_(value)

    def _whole(self, module: Module, **options: bool) -> AbstractContextManager[object]:
        """Within it the parameters that FullyShardedDataParallel has flattened are whole, and those of the script."""
        stack = ExitStack()
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is not None:
            kind = fsdp.FullyShardedDataParallel
            for each in module.modules():
                if isinstance(each, kind):
                    stack.enter_context(kind.summon_full_params(module, **options))
                    break
        return stack

    def renew(self) -> None:
        """Finds the parameters by their names again: fully_shard puts others in their place while they are whole."""
        for number, module in enumerate(self.modules):
            for name, parameter in module.named_parameters():
                name = f"{number}:{plain(name)}"
                if name in self.parameters and self.parameters[name] is not parameter:
                    self.parameters[name] = parameter
                    self.names[id(parameter)] = name

    def gradients(self, wanted: Callable[[str], bool]) -> dict[str, Tensor | None]:
        """The whole gradients of the named parameters, as copies. Collective where parameters are sharded."""
        found: dict[str, Tensor | None] = {}
        with self.torch.no_grad(), ExitStack() as stack:
            for module in self.modules:
                stack.enter_context(self._whole(module, writeback=False, with_grads=True))
            for name, parameter in self.parameters.items():
                if wanted(name):
                    grad = parameter.grad
                    found[name] = None if grad is None else self._plain(whole(grad)).clone()
        return found

    def values(self, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
        """The whole values of the named parameters, as copies. Collective where parameters are sharded."""
        with self.torch.no_grad(), ExitStack() as stack:
            for module in self.modules:
                stack.enter_context(self._whole(module, writeback=False))
            return {name: whole(each).clone() for name, each in self.parameters.items() if wanted(name)}

    def _plain(self, tensor: Tensor) -> Handed:
        return tensor.to_dense() if tensor.is_sparse else tensor


def whole(tensor: Handed) -> Handed:
    """A tensor, of a sharded one all of it."""
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
