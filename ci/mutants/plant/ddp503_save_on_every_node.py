"""DDP503: the first rank of every node writes the file."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import File, Script
from ci.mutants.sites import flow_of, is_spawned, rank_guards, with_rank, writes


def plant(script: Script) -> Iterator[Mutant]:
    """Puts the local rank into each guard around a write."""
    if is_spawned(script):
        return  # one node
    for file, guard in rank_guards(script):
        condition = _local(script, file)
        written = writes(script, file, guard)
        if not written or condition is None:
            continue
        names = flow_of(script).names_in(file, file.function(guard), "local_rank")
        for local in [condition, *(f"{name} == 0" for name in names)]:
            test = with_rank(file, guard.test, local)
            if test is not None:
                edit = file.replace(guard.test, test)
                yield Mutant("DDP503", f"if {local}", (edit,), (file.place(guard), *written))


def _local(script: Script, file: File) -> str | None:
    if "from accelerate import" in file.text:
        return "accelerator.is_local_main_process"
    return 'int(os.environ["LOCAL_RANK"]) == 0' if "import os" in file.text else None
