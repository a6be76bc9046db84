"""Sharding by FSDP and tensor parallelism: parameters that are no longer the model's, and optimizers that keep them."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from .. import protocol
from ..hook import when_complete
from ..patching import Args, Handed, Kwargs, around, everywhere, guarded

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from ..session import Session

    _Taking = tuple[str, list[Module], dict[int, Tensor]]
    _Parting = tuple[_Taking, list[int], list[str]]


def install(session: Session) -> None:
    """Local. Events ``sharded``, ``parted`` and ``stale``."""
    observer = _Sharding(session)
    module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
    around(
        module.Optimizer, "__init__", session.fault, lambda args, kwargs: args[0],
        lambda optimizer, result: observer.made(optimizer),
    )  # fmt: skip
    module.register_optimizer_step_pre_hook(
        lambda optimizer, args, kwargs: guarded(session.fault, "sharding", observer.stepping, optimizer)
    )
    if session.torch.distributed.is_available():
        # A second of import that most scripts do not pay for.
        when_complete("torch.distributed.fsdp", lambda fsdp: guarded(session.fault, "sharding", observer.watch, fsdp))
        when_complete(
            "torch.distributed.tensor.parallel",
            lambda parallel: guarded(session.fault, "sharding", observer.watch_parts, parallel),
        )


class _Sharding:
    """The parameters that sharding has taken out of their modules."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.gone: dict[int, tuple[weakref.ref[Tensor], str, protocol.Site]] = {}
        """By id: a weak reference to the parameter, what took it, and the site of that."""
        self.passing: dict[int, tuple[weakref.ref[Tensor], str, protocol.Site]] = {}
        """The same of unsharded parameters of sharded modules; what takes them is the next backward."""
        self.modules: list[tuple[weakref.ref[Module], protocol.Site]] = []
        """What ``fully_shard`` was called with: weak references, and the sites of the calls."""
        self.looked: dict[int, int] = {}
        """By an optimizer's number: how many parameters were gone when it was last looked at."""

    def watch(self, fsdp: ModuleType) -> None:
        fault = self.session.fault
        original = getattr(fsdp, "fully_shard", None)
        if original is not None:
            around(fsdp, "fully_shard", fault, self.sharding, self.sharded)
            everywhere({id(original): fsdp.fully_shard})
        around(fsdp.FullyShardedDataParallel, "__init__", fault, self.wrapping, self.sharded)

    def watch_parts(self, parallel: ModuleType) -> None:
        original = getattr(parallel, "parallelize_module", None)
        if original is not None:
            around(parallel, "parallelize_module", self.session.fault, self.parting, self.parted)
            everywhere({id(original): parallel.parallelize_module})

    def parting(self, args: Args, kwargs: Kwargs) -> _Parting:
        given = dict(zip(("module", "device_mesh", "parallelize_plan"), args, strict=False)) | kwargs
        modules, plan, mesh = [given["module"]], given.get("parallelize_plan"), given.get("device_mesh")
        styles = {type(each).__name__ for each in (plan.values() if isinstance(plan, dict) else [plan])}
        ranks = [int(each) for each in mesh.mesh.reshape(-1).tolist()] if mesh is not None else []
        return ("parallelize_module", modules, _parameters(modules)), ranks, sorted(styles)

    def parted(self, token: _Parting | None, result: object) -> None:
        if token is not None:
            taking, ranks, by = token
            site = self.session.here()
            self.replaced(*taking, site)
            self.session.emit(protocol.Parted(ranks=ranks, by=by, site=site))

    def replaced(self, kind: str, modules: list[Module], before: dict[int, Tensor], site: protocol.Site) -> None:
        """Note which of the parameters that modules had are no longer theirs."""
        left = _parameters(modules)
        for key, parameter in before.items():
            if key not in left:
                self.gone[key] = (weakref.ref(parameter), kind, site)

    def sharding(self, args: Args, kwargs: Kwargs) -> _Taking:
        modules = args[0] if args else kwargs.get("module")
        several = list(modules) if isinstance(modules, (list, tuple)) else [modules]
        return "fully_shard", several, _parameters(several)

    def wrapping(self, args: Args, kwargs: Kwargs) -> _Taking:
        module = args[1] if len(args) > 1 else kwargs.get("module")
        return "FullyShardedDataParallel", [args[0]], _parameters([module])

    def sharded(self, token: _Taking | None, result: object) -> None:
        if token is None:
            return
        kind, modules, before = token
        site = self.session.here()
        self.replaced(kind, modules, before, site)
        if kind == "fully_shard":
            self.modules += [(weakref.ref(module), site) for module in modules]
        ranks = guarded(self.session.fault, "sharding", _reducing, self.session, modules[0], kind) or []
        self.session.emit(protocol.Sharded(kind=kind, site=site, ranks=ranks))

    def made(self, optimizer: Optimizer) -> None:
        """After a forward FSDP2 may leave a module unsharded: what an optimizer is then given will go with the
        backward."""
        if not self.modules:
            return
        kinds = (self.session.torch.Tensor, self.session.torch.nn.Parameter)
        held = {id(each): each for each in _held(optimizer) if type(each) in kinds}
        for reference, site in self.modules:
            module = reference()
            for key in _parameters([module]) if module is not None and held else ():
                if key in held:
                    self.passing[key] = (weakref.ref(held[key]), "", site)

    def stepping(self, optimizer: Optimizer) -> None:
        """Whether the optimizer steps on what is gone: one that was given the new parameters does not."""
        known = len(self.gone) + len(self.passing)
        if not known:
            return
        number = self.session.optimizers.of(optimizer)
        if self.looked.get(number) == known:
            return
        self.looked[number] = known
        held = _held(optimizer)
        gone = self.gone
        if any(id(each) in self.passing for each in held):
            left = _parameters([module for reference, _ in self.modules if (module := reference()) is not None])
            gone = {**{key: entry for key, entry in self.passing.items() if key not in left}, **gone}
        stale = [gone[id(each)] for each in held if id(each) in gone and gone[id(each)][0]() is each]
        if stale:
            _, kind, site = stale[0]
            self.session.emit(protocol.Stale(optimizer=number, count=len(stale), held=len(held), kind=kind, site=site))


def _reducing(session: Session, module: Handed, kind: str) -> list[int]:
    """The ranks over which the gradients of a sharded module are reduced, in shards and in copies of them."""
    dist = session.torch.distributed
    if kind == "fully_shard":
        group = module._get_fsdp_state()._fsdp_param_group
        return [int(each) for each in group.mesh_info.mesh.mesh.flatten().tolist()] if group is not None else []
    copies = getattr(module, "_inter_node_pg", None)
    if copies is not None:
        return list(range(dist.get_world_size()))
    return list(dist.get_process_group_ranks(module.process_group))


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _parameters(modules: list[Module]) -> dict[int, Tensor]:
    return {id(each): each for module in modules for each in module.parameters()}
