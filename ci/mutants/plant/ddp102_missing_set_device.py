"""DDP102: no rank chooses a device of its own, or it does so after the first collective."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Edit, Mutant, Place
from ci.mutants.script import File, Script, keyword
from ci.mutants.sites import is_spawned, started_on_gpus, starts


def plant(script: Script) -> Iterator[Mutant]:
    """Takes every sign of a device of one's own out; or puts a barrier before ``set_device``."""
    choices = [(file, file.statement(call)) for file, call in script.calls("cuda.set_device")]
    edits = _indices(script)
    if script.mentions("init_device_mesh"):
        edits = None  # a mesh sets the device, unless CUDA was in use before
    if edits is not None and choices and script.mentions('"nccl"') and not is_spawned(script):
        edits += [file.remove(statement) for file, statement in choices]
        wraps = (file.place(file.statement(call)) for file, call in script.calls("DistributedDataParallel"))
        expected = (*starts(script), *wraps, *(Place(edit.path, edit.start, edit.end) for edit in edits))
        yield Mutant("DDP102", "no device of its own for a rank", _distinct(edits), expected)
    for file, statement in choices:
        for holder, start in started_on_gpus(script):
            line = holder.statement(start)
            inside = holder is file and file.parent(line) is file.parent(statement)
            if inside and file.span(statement) < file.span(line) and "as dist" in file.text:
                after = file.after(line, f"dist.barrier()\n{file.code(statement)}")
                expected = (Place(after.path, after.start, after.end),)
                yield Mutant("DDP102", "set_device after a barrier", (file.remove(statement), after), expected)


def _indices(script: Script) -> list[Edit] | None:
    """Edits that leave "cuda" of every device; None where the local rank is read for something else too."""
    edits: list[Edit] = []
    for file, call in script.calls("torch.device"):
        if file.code(call).startswith('torch.device("cuda",'):
            edits.append(file.replace(call, 'torch.device("cuda")'))
    for file, text in script.find(cst.FormattedString):
        if file.code(text).startswith('f"cuda:{'):
            edits.append(file.replace(text, '"cuda"'))
    for file, call in script.find(cst.Call):
        edit = file.without_argument(call, "device_ids") if keyword(call, "device_ids") is not None else None
        edits += [edit] if edit is not None else []
    for file, assign in script.find(cst.Assign):
        if 'environ["LOCAL_RANK"]' in file.code(assign.value) and "torch.device" not in file.code(assign.value):
            name = file.code(assign.targets[0].target)
            if not _only_in(file, name, edits, file.statement(assign)):
                return None
            edits.append(file.remove(file.statement(assign)))
    return edits


def _only_in(file: File, name: str, edits: list[Edit], made: cst.CSTNode) -> bool:
    """Whether a name is used in what the edits replace, and in ``set_device``, only."""
    spans = [(edit.start, edit.end) for edit in edits if edit.path == file.path]
    spans += [file.span(call) for call in file.nodes if isinstance(call, cst.Call) and "set_device" in file.code(call)]
    spans.append(file.span(made))
    uses = [found.start() for found in re.finditer(rf"(?<![\w.]){re.escape(name)}\b", file.text)]
    return all(any(start <= use < end for start, end in spans) for use in uses)


def _distinct(edits: list[Edit]) -> tuple[Edit, ...]:
    """Without edits that lie in another one."""
    return tuple(
        edit
        for edit in dict.fromkeys(edits)
        if not any(e != edit and e.path == edit.path and e.start <= edit.start and edit.end <= e.end for e in edits)
    )
