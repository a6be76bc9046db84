"""DDP104: the local rank is given as the rank, or the devices of one machine as the world."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script, keyword
from ci.mutants.sites import is_spawned, started_on_gpus


def plant(script: Script) -> Iterator[Mutant]:
    """Changes or adds ``rank=`` and ``world_size=`` of ``init_process_group``."""
    if is_spawned(script):
        return  # one machine: the ranks are equal
    for file, call in started_on_gpus(script):
        place = (file.place(file.statement(call)),)
        given, local = keyword(call, "rank"), 'int(os.environ["LOCAL_RANK"])'
        if given is not None:
            yield Mutant("DDP104", "rank=LOCAL_RANK", (file.replace(given.value, local),), place)
            world = keyword(call, "world_size")
            if world is not None and script.mentions("NODE"):  # with several nodes it is wrong
                edit = file.replace(world.value, "torch.cuda.device_count()")
                yield Mutant("DDP104", "world_size=device_count()", (edit,), place)
        elif "import os" in file.text:
            added = f'rank={local}, world_size=int(os.environ["WORLD_SIZE"])'
            yield Mutant("DDP104", "rank=LOCAL_RANK", (file.with_argument(call, added),), place)
