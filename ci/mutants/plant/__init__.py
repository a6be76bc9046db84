"""The planters, one module a rule: what its defect is, put at every place of a correct script where it fits."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script

Planter = Callable[[Script], Iterator[Mutant]]


def planters() -> dict[str, Planter]:
    """The function ``plant`` of each module, by the rule's code."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("ddp*.py")):
        module = importlib.import_module(f"{__name__}.{path.stem}")
        found[path.stem[:6].upper()] = module.plant
    return found
