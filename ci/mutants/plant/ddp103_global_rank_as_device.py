"""DDP103: the global rank chooses the device."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script
from ci.mutants.sites import device_uses, flow_of, is_spawned, local_rank_reads


def plant(script: Script) -> Iterator[Mutant]:
    """Reads RANK in place of LOCAL_RANK, or hands the name of the global rank to ``set_device``."""
    if is_spawned(script):
        return  # on one machine both are equal
    for file, node in local_rank_reads(script):
        edit = file.replace(node, 'os.environ["RANK"]')
        expected = (file.place(file.statement(node)), *device_uses(script))
        yield Mutant("DDP103", "RANK is read for LOCAL_RANK", (edit,), expected)
    flow = flow_of(script)
    for file, call in script.calls("cuda.set_device"):
        names = flow.names_in(file, file.function(call), "rank")
        if names and "local_rank" in flow.kinds(file, call.args[0].value):
            edit = file.replace(call.args[0].value, names[0])
            expected = (file.place(file.statement(call)), *device_uses(script))
            yield Mutant("DDP103", f"set_device({names[0]})", (edit,), expected)
