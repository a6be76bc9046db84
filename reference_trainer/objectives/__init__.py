"""What this trainer trains, a module each; and a class of the user's own in their place."""

from __future__ import annotations

from importlib import import_module

from ..config import Config, ConfigError
from ..core.objective import Batch as Batch
from ..core.objective import Forward as Forward
from ..core.objective import Loss as Loss
from ..core.objective import Objective as Objective
from ..launch import World
from ..settings import call


def build_objective(config: Config, world: World) -> Objective:
    """The objective of the module ``config.objective``, made by its ``build``; or of the user's class. Collective."""
    if ":" not in config.objective:
        objective: Objective = import_module(f".{config.objective}", __package__).build(config, world)
        return objective
    given = {"config": config, "world": world, "seed": config.seed}
    own = call(config.objective, "objective", "own", config.own, given)
    if not (isinstance(own, Objective) and hasattr(own, "module")):
        told = f"made a {type(own).__name__}; expected an Objective with its `module`"
        raise ConfigError(f"objective {config.objective} {told}")
    return own
