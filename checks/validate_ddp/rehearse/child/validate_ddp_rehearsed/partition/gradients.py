"""The gradients that are compared: before the first clipping and at the first step of each optimizer, whole, by name.

Weights stay those of the start, so that what a second optimizer is given (a GAN's generator) does not hang on the first
one's step. When all optimizers have stepped, the process has done its part.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import TYPE_CHECKING

from .. import protocol
from ..hook import when_complete
from ..patching import Handed, Original, everywhere, one_number, patch
from .acts import Acts
from .constants import times
from .models import Models
from .steps import Steps, Taken
from .tape import Recorded, Tape, end, path, tensors_of

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from ..session import Session
    from .begin import Part

FOREIGN = -1
"""Stands for all backwards of one process on data that are not those of the rank."""
_COLUMNS = 16
"""Backwards that are told apart; what later ones add counts as the last one's."""
_ELEMENTS = 60_000_000
"""Numbers that may be kept for them."""
_EXCHANGES = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "gather",
    "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip
_REDUCTIONS = ("all_reduce", "reduce")


class Gradients:
    """One process's."""

    def __init__(self, session: Session, part: Part, tape: Tape, models: Models, rank: int) -> None:
        self.session, self.part, self.tape, self.models, self.rank = session, part, tape, models, rank
        self.torch = session.torch
        self.backwards = self.learned = 0
        """learned: how many calls of models they have learned from."""
        self.given: list[Tensor] = []
        """The parameters that have a gradient after them."""
        self.depth = 0
        self.columns: dict[str, dict[int, Tensor]] = {}
        """By name, what each backward has added since there was no gradient; under ``FOREIGN`` those on other data than
        the rank's."""
        self.clipped: dict[str, Tensor | None] = {}
        """Gradients before the clipping that came before a step."""
        self.clipped_after = 0
        """How many backwards."""
        self.clips: list[Handed] = []
        self.waiting: dict[int, Optimizer] = {}
        self.moments: list[dict[str, object]] = []
        self.loss = 0.0
        """What backwards were called on since the last step, added up."""
        self.times: list[float] = []
        """By which plain numbers the first of them is multiplied."""
        self.steps = Steps(part, models, self.clipped, self._forgotten, self._taken, self._end)
        self.averages = self.exchanges = self.deals = self.gathers = False
        self.acts = models.acts = Acts(self.torch) if part["role"] == "dup" else None

    def install(self) -> None:
        torch = self.torch
        self.models.in_backward = lambda: self.depth > 0
        original = torch.autograd.backward
        patch(torch.autograd, "backward", self._backward)
        everywhere({id(original): torch.autograd.backward})
        module = sys.modules["torch.optim.optimizer"]
        patch(module.Optimizer, "__init__", self._made)
        for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
            original = getattr(torch.nn.utils, name, None)
            if original is not None:
                patch(torch.nn.utils, name, self._clip)
                everywhere({id(original): getattr(torch.nn.utils, name)})
        watched = {"ranks": (_EXCHANGES, self._exchange), "dup": (_REDUCTIONS, self._reduction)}
        names, make = watched.get(self.part["role"], ((), self._exchange))
        for name in names if torch.distributed.is_available() else ():
            original = getattr(torch.distributed, name)
            patch(torch.distributed, name, make)
            everywhere({id(original): getattr(torch.distributed, name)})
        when_complete("torch.distributed.algorithms.model_averaging.averagers", self._averagers)
        when_complete("torch.distributed.fsdp", lambda fsdp: self._clips_itself(fsdp.FullyShardedDataParallel))

    def _made(self, original: Original) -> Original:
        def init(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            self.steps.follow(type(optimizer))
            original(optimizer, *args, **kwargs)
            if not self.session.sites.within("distributed/optim"):
                self.waiting[id(optimizer)] = optimizer
                self.tape.meet()

        return init

    def _exchange(self, original: Original) -> Original:
        def exchange(*args: object, **kwargs: object) -> object:
            handed = tensors_of((args, kwargs), self.torch)
            learned = any(each.requires_grad for each in handed)
            self.exchanges = self.exchanges or learned
            self.deals = self.deals or (learned and original.__name__.startswith("all_to_all"))
            self.gathers = self.gathers or "gather" in original.__name__ or "scatter" in original.__name__
            late = self.clipped and not self.depth and self.backwards == self.clipped_after
            if late and any(each.numel() > 1 for each in handed) and not self._of_shards():
                end(self.part, "the script clips gradients before it reduces them")
            return original(*args, **kwargs)

        return exchange

    def _reduction(self, original: Original) -> Original:
        def reduction(*args: object, **kwargs: object) -> object:
            begun = self.depth or self.backwards
            if self.acts is not None and begun and not self._of_shards():
                self.acts.reduces(args, kwargs)
            return original(*args, **kwargs)

        return reduction

    def _of_shards(self) -> bool:
        """Whether FullyShardedDataParallel exchanges something, which may be asked of it here."""
        return self.session.sites.within("distributed/fsdp")

    def _averagers(self, module: ModuleType) -> None:
        def make(original: Original) -> Original:
            def init(*args: object, **kwargs: object) -> None:
                self.averages = True
                original(*args, **kwargs)

            return init

        patch(module.ModelAverager, "__init__", make)

    def _backward(self, original: Original) -> Original:
        def backward(*args: object, **kwargs: object) -> object:
            one = self.part["role"] == "one" and not self.depth
            before = self.models.gradients(lambda name: True) if one else {}
            if self.acts is not None and not self.depth:
                self.acts.learns(args, kwargs)
            if not self.depth:
                self._forgotten()
                root = args[0] if args else kwargs.get("tensors")
                self.loss += sum(one_number(each) or 0.0 for each in tensors_of(root, self.torch))
                self.times = self.times or times(root)
            self.depth += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self.depth -= 1
            if one:
                self._added(before)
            if not self.depth:
                self.backwards, self.tape.foreign, self.learned = self.backwards + 1, False, len(self.tape.inputs)
                self.given = [each for each in self.models.parameters.values() if each.grad is not None]
            return result

        return backward

    def _forgotten(self) -> None:
        """Backwards before the first step whose gradients are gone by the next were to warm something up."""
        if self.given and not self.moments and all(each.grad is None for each in self.given):
            self.tape.forgets(self.learned)
            self.backwards, self.columns = 0, {}

    def _added(self, before: dict[str, Tensor | None]) -> None:
        """Keeps what a backward has added."""
        number = FOREIGN if self.tape.foreign else min(self.backwards, _COLUMNS - 1)
        for name, grad in self.models.gradients(lambda name: True).items():
            if grad is None:
                continue
            former = before.get(name)
            if former is None or not bool(former.any()):
                self.columns[name] = {number: grad}
                continue
            held = self.columns.setdefault(name, {})
            if number != FOREIGN and len(held) * grad.numel() > _ELEMENTS // max(1, len(self.models.parameters)):
                number = max((each for each in held if each != FOREIGN), default=number)
            held[number] = held.get(number, 0) + (grad - former)

    def _clip(self, original: Original) -> Original:
        def clip(parameters: Handed, *args: object, **kwargs: object) -> object:
            if isinstance(parameters, self.torch.Tensor):
                parameters = [parameters]
            held = list(parameters)
            self.models.renew()
            names = {self.models.names[id(each)] for each in held if id(each) in self.models.names}
            for name, grad in self.models.gradients(names.__contains__).items():
                self.clipped.setdefault(name, grad)
            norm = original(held, *args, **kwargs)
            self.clipped_after = self.backwards
            if isinstance(norm, self.torch.Tensor):
                full = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
                self.clips.append({"names": sorted(names), "norm": float(full)})
            return norm

        return clip

    def _clips_itself(self, kind: type) -> None:
        """A module that is sharded clips its own parameters."""

        def make(original: Original) -> Original:
            def clip(module: Module, *args: object, **kwargs: object) -> object:
                inner = self._clip(lambda held, *rest, **more: original(module, *rest, **more))
                return inner(module.parameters(), *args, **kwargs)

            return clip

        patch(kind, "clip_grad_norm_", make)

    def _taken(self, taken: Taken) -> None:
        wanted = self.columns
        self.moments.append(
            {
                "gradients": {name: grad for name, grad in taken.gradients.items() if grad is not None},
                "columns": {name: wanted[name] for name in taken.gradients if name in wanted},
                "held": taken.names, "clips": self.clips, "unnamed": taken.unnamed, "changes": taken.changes,
                "rate": float(taken.optimizer.param_groups[0].get("lr") or 0.0), "loss": self.loss,
                "updates": taken.updates, "settings": taken.settings, "kind": type(taken.optimizer).__name__,
            }
        )  # fmt: skip
        self.clips, self.loss = [], 0.0
        self.waiting.pop(id(taken.optimizer), None)
        if not self.waiting:
            self._end()

    def _end(self) -> None:
        """Leaves what was recorded, and waits for the command to end all of them."""
        tape = self.tape
        why = tape.other_inputs() if tape.playing else ""
        recorded: Recorded = {
            "batches": tape.batches, "seeds": tape.seeds, "inputs": tape.inputs, "weights": self.models.weights,
            "moments": self.moments, "averages": self.averages,
            "exchanges": self.exchanges or self.models.sharded,
            "deals": self.deals and not self.gathers and not self.models.sharded, "dealt": self.models.dealt,
            "acts": self.acts.done if self.acts is not None else {},
            "times": self.times, "lengths": tape.lengths.answers, "shares": tape.lengths.shares,
            "digest": tape.digest(), "backwards": self.backwards, "spread": tape.spread,
        }  # fmt: skip
        if why:
            end(self.part, why)
        rank = self.rank if self.part["role"] in ("ranks", "dup", "up") else self.part["rank"]
        self.torch.save(recorded, path(self.part["folder"], self.part["role"], rank))
        digest = hashlib.sha256(recorded["digest"].encode()).hexdigest()
        self.session.emit(protocol.Taped(digest=digest, joined=tape.joined))
        self.session.emit(protocol.Stopped())
        while True:
            time.sleep(1)
