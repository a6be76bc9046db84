"""DDP302: the loss is computed from a gather without gradient."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Edit, Mutant, Place
from ci.mutants.script import File, Script

_HELPER = """def gather_from_all(tensor):
    gathered = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    return torch.stack(gathered).flatten(0, 1)


"""


def plant(script: Script) -> Iterator[Mutant]:
    """Puts ``dist.all_gather`` in place of a differentiable one: each alone, then all of them."""
    sites = list(script.calls("distributed.nn.all_gather", "distributed.nn.functional.all_gather", "GatherLayer.apply"))
    for chosen in [[site] for site in sites] + ([sites] if len(sites) > 1 else []):
        edits: list[Edit] = []
        expected: list[Place] = [file.place(file.statement(call)) for file, call in script.calls(".backward")]
        for file, call in chosen:
            whole = file.enclosing(call, cst.Call)  # torch.cat(...)
            assert whole is not None
            edits.append(file.replace(whole, f"gather_from_all({file.code(call.args[0].value)})"))
            expected.append(file.place(file.statement(call)))
        file = chosen[0][0]
        helper = _helper(file, chosen[0][1])
        function = file.function(chosen[0][1])
        assert function is not None
        expected += [Place(helper.path, helper.start, helper.start), file.place(function)]
        yield Mutant("DDP302", f"{len(chosen)} gather(s) without gradient", (*edits, helper), tuple(expected))


def _helper(file: File, node: cst.CSTNode) -> Edit:
    top = [parent for parent in file.parents(node) if isinstance(parent, (cst.FunctionDef, cst.ClassDef))][-1]
    start, _ = file.lines_of(top)
    return Edit(file.path, start, start, _HELPER)
