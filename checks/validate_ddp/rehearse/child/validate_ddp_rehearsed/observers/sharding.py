"""Sharding by FSDP: parameters that are no longer the model's, and optimizers that go on with them."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from ..hook import when_complete
from ..patching import around, everywhere, guarded


def install(session: Any) -> None:
    """Local. Events ``sharded`` and ``stale``."""
    observer = _Sharding(session)
    sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(
        lambda optimizer, args, kwargs: guarded(session.fault, "sharding", observer.stepping, optimizer)
    )
    if session.torch.distributed.is_available():
        # A second of import that most scripts do not pay for.
        when_complete("torch.distributed.fsdp", lambda fsdp: guarded(session.fault, "sharding", observer.watch, fsdp))


class _Sharding:
    """The parameters that sharding has taken out of their modules."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.gone: dict[int, tuple[Any, str, int]] = {}
        """By id: a weak reference to the parameter, what took it, and the site of that."""
        self.looked: dict[int, int] = {}
        """By an optimizer's number: how many parameters were gone when it was last looked at."""

    def watch(self, fsdp: Any) -> None:
        fault = self.session.fault
        original = getattr(fsdp, "fully_shard", None)
        if original is not None:
            around(fsdp, "fully_shard", fault, self.sharding, self.sharded)
            everywhere({id(original): fsdp.fully_shard})
        around(fsdp.FullyShardedDataParallel, "__init__", fault, self.wrapping, self.sharded)

    def sharding(self, args: Any, kwargs: Any) -> Any:
        modules = args[0] if args else kwargs.get("module")
        several = list(modules) if isinstance(modules, (list, tuple)) else [modules]
        return "fully_shard", several, _parameters(several)

    def wrapping(self, args: Any, kwargs: Any) -> Any:
        module = args[1] if len(args) > 1 else kwargs.get("module")
        return "FullyShardedDataParallel", [args[0]], _parameters([module])

    def sharded(self, token: Any, result: Any) -> None:
        kind, modules, before = token
        left = _parameters(modules)
        site = self.session.here()
        for key, parameter in before.items():
            if key not in left:
                self.gone[key] = (weakref.ref(parameter), kind, site)
        self.session.emit("sharded", kind=kind, site=site)

    def stepping(self, optimizer: Any) -> None:
        """Whether the optimizer steps on what is gone: one that was given the new parameters does not."""
        if not self.gone:
            return
        number = self.session.optimizers.of(optimizer)
        if self.looked.get(number) == len(self.gone):
            return
        self.looked[number] = len(self.gone)
        held = [each for group in optimizer.param_groups for each in group["params"]]
        stale = [self.gone[id(each)] for each in held if id(each) in self.gone]
        stale = [entry for entry in stale if entry[0]() is not None]
        if stale:
            _, kind, site = stale[0]
            self.session.emit("stale", optimizer=number, count=len(stale), held=len(held), kind=kind, site=site)


def _parameters(modules: list[Any]) -> dict[int, Any]:
    return {id(each): each for module in modules for each in module.parameters()}
