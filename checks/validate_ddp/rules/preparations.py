"""What Accelerate was given to prepare, and what it was not."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.objects import contents
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Accelerator, Optimizer, Prepared, Shell
from validate_ddp.interpreter.values import Instance, Value, bare


def accelerators(program: Program) -> list[Accelerator]:
    """The Accelerators that surely prepare all that they prepare in sight; none where another launcher is at work."""
    found: dict[int, Accelerator] = {}
    for fact in program.facts(facts.Preparing):
        for launcher in fact.launcher:
            if not isinstance(launcher, Accelerator) or launcher.single or launcher.unseen or fact.open:
                return []
            found[id(launcher)] = launcher
    return list(found.values())


def prepared(program: Program) -> list[Any]:
    """All that was given to ``prepare``, and what lies in it."""
    found: list[Any] = []
    for fact in program.facts(facts.Preparing):
        for atom in (*bare(fact.prepared), *contents(fact.prepared)):
            found.append(atom)
            if isinstance(atom, Shell):
                found += bare(atom.inner)
    return found


def is_optimizer_prepared(program: Program, optimizer: Value) -> bool:
    """Whether the optimizer surely was prepared."""
    atoms = bare(optimizer)
    given = prepared(program)
    return bool(atoms) and all(isinstance(atom, Prepared) or any(atom is other for other in given) for atom in atoms)


def optimizers_left_out(program: Program, optimizer: Value) -> list[Optimizer]:
    """The optimizers of the script that surely were not prepared; none where one may have been."""
    given = prepared(program)
    atoms = [atom.base if isinstance(atom, Instance) else atom for atom in bare(optimizer)]
    if not atoms or not all(isinstance(atom, Optimizer) for atom in atoms):
        return []
    held = [atom.base if isinstance(atom, Instance) else atom for atom in given]
    if any(atom is other for atom in atoms for other in held):
        return []
    return [atom for atom in atoms if isinstance(atom, Optimizer)]
