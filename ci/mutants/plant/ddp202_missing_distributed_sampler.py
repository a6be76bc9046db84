"""DDP202: the training loader gives every rank all data."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import File, Script, keyword
from ci.mutants.sites import flow_of


def plant(script: Script) -> Iterator[Mutant]:
    """Lets the training loader shuffle by itself, without the sampler."""
    if script.mentions(r"manual_seed\(.*rank"):
        return  # ranks that are seeded apart draw orders of their own: that is a way of sharing
    flow = flow_of(script)
    for file, call in script.calls("DataLoader"):
        given = keyword(call, "sampler")
        if given is None:
            continue
        made = [tag.node for tag in flow.tags(file, given.value) if tag.kind == "sampler"]
        if all("shuffle=False" in file.code(sampler) for sampler in made):
            continue  # evaluation
        arguments = [file.code(arg).rstrip().rstrip(",") for arg in call.args if not _is(file, arg)]
        edits = [file.replace(call, f"{file.code(call.func)}({', '.join([*arguments, 'shuffle=True'])})")]
        for holder, setter in script.calls(".set_epoch"):
            if ".sampler.set_epoch" in holder.code(setter) and "self.sampler" not in holder.code(setter):
                edits.append(holder.remove(holder.statement(setter)))  # of a loader that has none now
        yield Mutant("DDP202", "shuffle=True for sampler=", tuple(edits), (file.place(file.statement(call)),))


def _is(file: File, argument: object) -> bool:
    name = getattr(getattr(argument, "keyword", None), "value", "")
    return name in ("sampler", "shuffle")
