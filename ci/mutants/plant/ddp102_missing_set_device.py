"""DDP102: no rank chooses a device of its own, so that all share GPU 0."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Edit, Mutant
from ci.mutants.script import Script, keyword
from ci.mutants.sites import starts


def plant(script: Script) -> Iterator[Mutant]:
    """Takes out ``set_device``, the index of every CUDA device and ``device_ids``, all at once."""
    edits: list[Edit] = []
    for file, call in script.calls("cuda.set_device"):
        edits.append(file.remove(file.statement(call)))
    if not edits or not script.mentions('"nccl"'):
        return
    for file, call in script.calls("torch.device"):
        if file.code(call).startswith('torch.device("cuda",'):
            edits.append(file.replace(call, 'torch.device("cuda")'))
    for file, text in script.find(cst.FormattedString):
        if file.code(text).startswith('f"cuda:{'):
            edits.append(file.replace(text, '"cuda"'))
    for file, call in script.find(cst.Call):
        if keyword(call, "device_ids") is not None:
            edit = file.without_argument(call, "device_ids")
            assert edit is not None
            edits.append(edit)
    expected = [*starts(script), *(file.place(file.statement(c)) for file, c in script.calls("DistributedDataParallel"))]
    for edit in edits:
        file = next(file for file in script.files if file.path == edit.path)
        lines = [node for node in file.nodes if isinstance(node, cst.SimpleStatementLine)]
        expected += [file.place(n) for n in lines if file.span(n)[0] <= edit.start < file.span(n)[1]]
    yield Mutant("DDP102", "no device of its own for a rank", _distinct(edits), tuple(expected))


def _distinct(edits: list[Edit]) -> tuple[Edit, ...]:
    """Without edits that lie in another one."""
    return tuple(
        edit
        for edit in dict.fromkeys(edits)
        if not any(e != edit and e.path == edit.path and e.start <= edit.start and edit.end <= e.end for e in edits)
    )
