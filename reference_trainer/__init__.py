"""A DDP trainer to copy from: every claim of it is held by equality with a single process. core/ is the part to copy.

trainer.py is a run: what is built, and what happens when. Names are imported when asked for: `plan` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoint import latest as latest
    from .config import Config as Config
    from .core.club import club_categorical as club_categorical
    from .core.club import club_gaussian as club_gaussian
    from .core.collectives import all_gather_with_grad as all_gather_with_grad
    from .core.collectives import reduce_sum_count as reduce_sum_count
    from .core.objective import Objective as Objective
    from .core.plan import Plan as Plan
    from .core.save import load as load
    from .core.save import save as save
    from .core.step import train_step as train_step
    from .estimator import CLUBLoss as CLUBLoss
    from .launch import World as World
    from .lora import inject_lora as inject_lora
    from .lora import merge_lora as merge_lora
    from .state import Ema as Ema
    from .trainer import Trainer as Trainer

_HOMES = {
    "checkpoint": "latest",
    "config": "Config",
    "core.club": "club_categorical club_gaussian",
    "core.collectives": "all_gather_with_grad reduce_sum_count",
    "core.objective": "Objective",
    "core.plan": "Plan",
    "core.save": "load save",
    "core.step": "train_step",
    "estimator": "CLUBLoss",
    "launch": "World",
    "lora": "inject_lora merge_lora",
    "state": "Ema",
    "trainer": "Trainer",
}
__all__ = sorted(name for names in _HOMES.values() for name in names.split())


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
