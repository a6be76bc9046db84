"""Whether all ranks hold the same model, or some of them parts of one."""

from __future__ import annotations

from collections.abc import Sequence

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Mesh
from validate_ddp.interpreter.values import Atom, Const, bare

_ALL = "WORLD"


def may_share_data(program: Program, models: Sequence[Atom]) -> bool:
    """Whether some ranks may hold parts of one model, and have the same data: stages of a pipeline, or the ranks beside
    a group for which one of these models is wrapped or sharded."""
    if any(fact.name == "schedule" for fact in program.facts(facts.Backward)):
        return True
    groups = [fact.process_group for fact in program.facts(facts.Wrap) if any(each in models for each in fact.wrapper)]
    meshes = [fact.mesh for fact in program.facts(facts.Shard) if any(each in models for each in bare(fact.model))]
    return any(_is_part(atom) for group in groups for atom in bare(group)) or any(
        isinstance(atom, Mesh) and bool(atom.dimension) for mesh in meshes for atom in bare(mesh)
    )


def _is_part(atom: Atom) -> bool:
    return not (isinstance(atom, Const) and atom.value is None) and not getattr(atom, "name", "").endswith(_ALL)
