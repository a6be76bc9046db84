"""DDP105: the device comes from ``--local_rank`` alone, which torchrun does not pass."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Edit, Mutant, Place
from ci.mutants.script import Script
from ci.mutants.sites import assigned_name, device_uses, local_rank_reads


def plant(script: Script) -> Iterator[Mutant]:
    """Adds the argument, and takes it where the environment was read; only where ``args`` is at hand everywhere."""
    parsers = [
        (file, call, name)
        for file, call in script.calls("argparse.ArgumentParser")
        if (name := assigned_name(file, call)) is not None
    ]
    reads = local_rank_reads(script)
    if not parsers or not reads:
        return
    file, call, parser = parsers[0]
    statement = file.statement(call)
    added = file.after(statement, f'{parser}.add_argument("--local_rank", type=int, default=0)')
    edits: list[Edit] = [added]
    expected = [Place(added.path, added.start, added.end), *device_uses(script)]
    for holder, node in reads:
        function = holder.function(node)
        scope = holder.code(function) if function is not None else holder.text
        if "args = parser.parse_args()" not in scope and "(args)" not in scope.partition("\n")[0]:
            return
        line = holder.statement(node)
        expected.append(holder.place(line))
        if assigned_name(holder, node) == "args.local_rank":
            edits.append(holder.remove(line))
            continue
        whole = holder.parent(holder.parent(node) or node)
        if not isinstance(whole, cst.Call) or holder.code(whole.func) != "int":
            return
        edits.append(holder.replace(whole, "args.local_rank"))
    yield Mutant("DDP105", "the device from --local_rank", tuple(edits), tuple(expected))
