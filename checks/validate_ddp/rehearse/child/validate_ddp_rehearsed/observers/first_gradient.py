"""For ``--differential``: the gradient of the first step, on N ranks kept, in one process on their batches compared.

Installed only in the two short runs that this option adds. Both run without dropout, from the same weights, where the
model allows it in float64; the one process is given the batches of all ranks, joined.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Kwargs, Original, around, guarded, patch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from ..session import Session

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def install(session: Session) -> None:
    """Local. Event ``differential``; nothing without the option."""
    folder = session.options.get("differential")
    if folder:
        observer = _Differential(session, folder)
        observer.without_dropout()
        ddp = session.torch.nn.parallel.DistributedDataParallel
        around(ddp, "__init__", session.fault, observer.wrapping, observer.wrapped)
        observer.feed()
        observer.keep_gradients()
        module = __import__("sys").modules["torch.optim.optimizer"]
        module.register_optimizer_step_pre_hook(
            lambda optimizer, args, kwargs: guarded(session.fault, "differential", observer.stepping, optimizer)
        )


class _Differential:
    """folder: of the command; what the N ranks leave there, the one process finds."""

    def __init__(self, session: Session, folder: str) -> None:
        self.session = session
        self.torch = session.torch
        self.folder = folder
        self.count = 0
        self.told = False
        self.turns: dict[int, int] = {}
        self.table: dict[str, list[list[int]]] | None = None
        try:
            with open(os.path.join(folder, "batches.json"), encoding="utf-8") as file:
                self.table = json.load(file)
        except FileNotFoundError:
            pass  # these are the N ranks

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def without_dropout(self) -> None:
        functional = self.torch.nn.functional

        def identity(original: Original) -> Original:
            return lambda input, *args, **kwargs: input

        for name in _DROPOUTS:
            patch(functional, name, identity)

        def attention(original: Original) -> Original:
            def undropped(
                query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                *rest: object, **kwargs: object
            ) -> object:  # fmt: skip
                return original(query, key, value, attn_mask, 0.0, *rest, **kwargs)

            return undropped

        patch(functional, "scaled_dot_product_attention", attention)

    def wrapping(self, args: Args, kwargs: Kwargs) -> tuple[DistributedDataParallel, Module]:
        module: Module = args[1] if len(args) > 1 else kwargs.get("module")
        if self.session.options.get("float64"):
            module.double()
        return args[0], module

    def wrapped(self, token: tuple[DistributedDataParallel, Module] | None, result: object) -> None:
        if token is None:
            return
        wrapper, module = token
        path = self.path(f"weights{self.count}.pt")
        self.count += 1
        if self.table is not None:
            weights = self.torch.load(path, weights_only=True)
            with self.torch.no_grad():
                for name, value in module.state_dict().items():
                    if name in weights and weights[name].shape == value.shape:
                        value.copy_(weights[name])
        elif self.torch.distributed.get_rank() == 0:
            self.torch.save({name: value.clone() for name, value in module.state_dict().items()}, path)
        if self.session.options.get("float64"):
            wrapper.register_forward_pre_hook(self._wider, with_kwargs=True)
            wrapper.register_forward_hook(lambda module, args, output: self._cast(output, self.torch.float32))

    def _wider(self, module: Module, args: Args, kwargs: Kwargs) -> object:
        return self._cast(args, self.torch.float64), self._cast(kwargs, self.torch.float64)

    def _cast(self, value: object, dtype: object) -> object:
        if isinstance(value, self.torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(self._cast(each, dtype) for each in value)
        if isinstance(value, dict):
            for key in list(value):
                value[key] = self._cast(value[key], dtype)
        return value

    def feed(self) -> None:
        """Gives the loaders of the one process the indices of all ranks."""
        if self.table is None:
            return
        loaders = self.session.loaders
        data = self.session.torch.utils.data
        started: list[tuple[int, int]] = []

        def starting(args: Args, kwargs: Kwargs) -> None:
            number = loaders.loaders.of(args[0])
            turn = self.turns[number] = self.turns.get(number, -1) + 1
            started.append((number, turn))

        def joined(original: Original) -> Original:
            def next_index(iterator: _BaseDataLoaderIter) -> object:
                drawn = original(iterator)
                known = iterator.__dict__.get("rehearsed")
                state = iterator.__dict__.setdefault("joined", [*(known[:2] if known else started[-1]), 0])
                batches = (self.table or {}).get(f"{state[0]}.{state[1]}", [])
                state[2] += 1
                return batches[state[2] - 1] if state[2] <= len(batches) and isinstance(drawn, list) else drawn

            return next_index

        around(data.DataLoader, "__iter__", self.session.fault, starting)
        # What the observer of loaders sees is what is read: it has to lie outside.
        iterator = data.dataloader._BaseDataLoaderIter
        observed = iterator._next_index
        iterator._next_index = observed.__wrapped__
        patch(iterator, "_next_index", joined)
        around(iterator, "_next_index", self.session.fault, lambda args, kwargs: args[0], loaders.drawn)

    def keep_gradients(self) -> None:
        """In one process a gather gives what it was given, with its gradient: that is the loss of the whole batch."""
        if self.table is None:
            return
        dist, torch = self.torch.distributed, self.torch

        def all_gather(original: Original) -> Original:
            def gathered(tensor_list: list[Tensor], tensor: Tensor, *args: object, **kwargs: object) -> object:
                work = original(tensor_list, tensor.detach(), *args, **kwargs)
                if tensor.requires_grad and torch.is_grad_enabled():
                    tensor_list[0] = tensor
                return work

            return gathered

        def into_tensor(original: Original) -> Original:
            def gathered(output_tensor: Tensor, input_tensor: Tensor, *args: object, **kwargs: object) -> object:
                work = original(output_tensor, input_tensor.detach(), *args, **kwargs)
                if input_tensor.requires_grad and torch.is_grad_enabled() and not kwargs.get("async_op"):
                    output_tensor.copy_(input_tensor.reshape(output_tensor.shape))
                return work

            return gathered

        patch(dist, "all_gather", all_gather)
        patch(dist, "all_gather_into_tensor", into_tensor)

    def stepping(self, optimizer: Optimizer) -> None:
        if self.told:
            return
        self.told = True
        torch = self.torch
        held = [each for group in optimizer.param_groups for each in group["params"]]
        grads = [None if each.grad is None else each.grad.detach().double().clone() for each in held]
        if self.table is None:
            if torch.distributed.get_rank() == 0:
                torch.save(grads, self.path("gradients.pt"))
            return
        theirs: list[Tensor | None] = torch.load(self.path("gradients.pt"), weights_only=True)
        pairs = [
            (at, a, b) for at, (a, b) in enumerate(zip(theirs, grads, strict=False)) if a is not None and b is not None
        ]
        same = len(theirs) == len(grads) and all(a.shape == b.shape for _, a, b in pairs)
        if not pairs or not same:
            self.session.emit(protocol.Differential(compared=False))
            return
        many = torch.cat([a.reshape(-1) for _, a, _ in pairs])
        one = torch.cat([b.reshape(-1) for _, _, b in pairs])
        size = float(one.norm())
        apart = [(float((a - b).norm()), at) for at, a, b in pairs]
        told = protocol.Differential(
            compared=True, parameters=len(pairs), norm_of_ranks=float(many.norm()), norm_of_one=size,
            relative=float((many - one).norm()) / size if size else float(many.norm() > 0),
            factor=float(many @ one) / size**2 if size else None, worst=max(apart)[1],
            beside=float((many - (many @ one) / size**2 * one).norm()) / size if size else None,
        )  # fmt: skip
        self.session.emit(told)
