"""Which objective a configuration names; a name is a module of this package, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from ..config import Config
from ..launch import World
from . import Objective

__all__ = ["build_objective"]


def build_objective(config: Config, world: World) -> Objective:
    """The objective of the module ``config.objective``, made by its ``build``. Collective: every rank."""
    objective: Objective = import_module(f".{config.objective}", __package__).build(config, world)
    return objective
