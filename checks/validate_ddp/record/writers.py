"""Which ranks wrote which path."""

from __future__ import annotations

import os
from itertools import takewhile

from validate_ddp.record.run import Run
from validate_ddp.record.source_lines import conditional
from validate_ddp.record.verdict import Line, Seen, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

_PLUMBING = {"pathlib", "logging", "shutil", "json", "csv", "pickle", "_pyio", "gzip", "zipfile", "tarfile"}
"""Modules of the standard library through which scripts write."""


def writers(run: Run) -> dict[str, list[tuple[int, protocol.Save | protocol.Write]]]:
    """By path, the writes as (rank, event)."""
    found: dict[str, list[tuple[int, protocol.Save | protocol.Write]]] = {}
    for rank, event in run.each(protocol.Save, protocol.Write):
        path = event.path
        if path is None or (isinstance(event, protocol.Write) and not is_of_script(event)):
            continue
        found.setdefault(os.path.relpath(path, run.cwd) if run.cwd else path, []).append((rank, event))
    return found


def by_one(run: Run) -> Seen:
    """Writes, by whether their path is no other rank's, by the end of the run; at no more than their lines.

    That one rank came to a line is no proof, as a metric of its own may have led it there: either all ranks wrote
    there, each its own path, or the line lies under a condition on the rank.
    """
    if run.outcome != "finished":
        return
    written = writers(run).values()
    at: dict[Line, set[int]] = {}
    for rank, event in (write for writes in written for write in writes):
        at.setdefault(event.site.place, set()).add(rank)
    for writes in written:
        alone = len({rank for rank, _ in writes}) == 1
        for site in (event.site for _, event in writes):
            if len(at[site.place]) == len(run.ranks) or conditional(site) is not None:
                yield Well(site, held=False) if alone else Unclear(site)


def is_of_script(event: protocol.Save | protocol.Write) -> bool:
    """Whether the script opened the file itself, be it through the standard library; caches of libraries are theirs."""
    for frame in event.site.frames:
        if not frame.library:
            return True
        parts = os.path.normpath(frame.path).split(os.sep)
        if "site-packages" in parts or not _PLUMBING & {parts[-1].removesuffix(".py"), *parts[-2:-1]}:
            return False
    return False


def logs(event: protocol.Save | protocol.Write) -> bool:
    """Whether the script has ``logging`` open the file."""
    inner = takewhile(lambda frame: frame.library, event.site.frames)
    return any(os.path.basename(os.path.dirname(frame.path)) == "logging" for frame in inner)


def one_a_node(run: Run, ranks: list[int]) -> bool:
    """Whether these are the ranks with local rank 0 of several nodes that have more ranks than one."""
    several = run.plan.get("nnodes", 1) > 1 and run.plan.get("nproc_per_node", 1) > 1
    return several and all(run.local_rank(rank) == 0 for rank in ranks)
