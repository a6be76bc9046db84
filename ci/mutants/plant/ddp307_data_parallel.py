"""DDP307: one process drives all GPUs by nn.DataParallel."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Edit, Mutant, Place
from ci.mutants.script import File, Script
from ci.mutants.sites import is_spawned, wraps


def plant(script: Script) -> Iterator[Mutant]:
    """Makes a single process of a script: nn.DataParallel for the wrapper, and nothing distributed beside it."""
    if len(script.files) > 1 or is_spawned(script) or script.mentions("no_sync|async_op|all_gather|SLURM"):
        return
    for file, wrap in wraps(script):
        chosen = file.replace(wrap, f"torch.nn.DataParallel({file.code(wrap.args[0].value)})")
        edits = [chosen, *(edit for node in file.nodes for edit in _single(file, node))]
        held = [edit for edit in edits if not any(_within(edit, other) for other in edits)]
        place = Place(file.path, chosen.start, chosen.end)
        yield Mutant("DDP307", "nn.DataParallel in one process", tuple(dict.fromkeys(held)), (place,))


def _single(file: File, node: cst.CSTNode) -> Iterator[Edit]:
    """What a node of a distributed script is in a script of one process."""
    if isinstance(node, cst.SimpleStatementLine):
        code = file.code(node)
        if isinstance(node.body[0], (cst.Import, cst.ImportFrom)) and "torch" in code:
            if ("Distributed" in code and "," not in code) or "distributed" in code:
                yield file.replace(node, "pass")
        elif (
            isinstance(node.body[0], cst.Expr) and code.startswith(("dist.", "init_process", "destroy_process"))
        ) or ".set_epoch(" in code:
            yield file.replace(node, "pass")
    elif isinstance(node, cst.Call):
        if file.is_call_of(node, "distributed.get_rank"):
            yield file.replace(node, "0")
        elif file.is_call_of(node, "distributed.get_world_size"):
            yield file.replace(node, "1")
        elif file.is_call_of(node, "DistributedSampler"):
            yield file.replace(node, "None")
    elif isinstance(node, cst.Subscript) and file.code(node).startswith("os.environ["):
        yield file.replace(node, '"0"')


def _within(edit: Edit, other: Edit) -> bool:
    return edit != other and other.start <= edit.start and edit.end <= other.end
