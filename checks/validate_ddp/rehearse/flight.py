"""Dumps of PyTorch's flight recorder, which a job leaves that hung, as the events of a run.

A dump is a pickle, or JSON, that each rank writes where TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT are
set: its last collectives, with stacks. Nothing of it is executed: a pickle that names a class or a function is refused.
"""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import pairwise, takewhile
from typing import NamedTuple

from validate_ddp.console import UsageError
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import NOWHERE, Event, Frame, Site

_RANK = re.compile(r"(\d{1,6})(\.json|\.pkl|\.pickle)?$")
_LIBRARY = re.compile(r"(site|dist)-packages[/\\]|[/\\]lib[/\\]python3\.\d+[/\\]|^<")
_MOST = 512 << 20
"""Bytes of a dump: 2,000 entries with their stacks are some MiB."""
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
_OPS = {
    "_allgather_base": "all_gather_into_tensor", "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor", "all_reduce_barrier": "barrier", "all_to_all": "all_to_all_single",
    "allreduce": "all_reduce", "allgather": "all_gather",
}  # fmt: skip
"""Names of the recorder, where they are not those of torch.distributed."""
_AROUND = ("wrapper", "inner", "decorate_context")
"""Functions of torch that stand around others."""
_CLOCK = 1e-9


class Entry(NamedTuple):
    """A recorded call. group: the name of its process group. turn: its number there, the same on all ranks that meet.
    done: whether it came back, or its device reported its end."""

    group: str
    turn: int
    op: str
    site: Site
    dtype: str | None
    shape: list[int] | None
    alone: bool
    done: bool
    time: float


class Dump(NamedTuple):
    """What one rank recorded. members: of its groups, where the dump says so. whole: whether the first calls of the job
    are still in it."""

    rank: int
    path: str
    entries: list[Entry]
    members: dict[str, list[int]]
    whole: bool


def events(paths: Sequence[str], cwd: str) -> tuple[list[Event], list[str]]:
    """The events of the dumps, which lie in these files and folders, and what is to be said of them.

    A file's rank is the number at the end of its name. Sources that lie elsewhere here are looked for below ``cwd``.
    Raises UsageError for what is no dump.
    """
    here = _Here(cwd)
    dumps = sorted((_dump(path, here) for path in _files(paths)), key=lambda each: each.rank)
    for one, two in pairwise(dumps):
        if one.rank == two.rank:
            raise UsageError(f"{two.path}: is of rank {two.rank}, as {one.path} is: give one dump a rank")
    members = _members(dumps)
    size = max([each.rank + 1 for each in dumps] + [max(ranks) + 1 for ranks in members.values() if ranks])
    said: list[str] = []
    gone = sorted({*range(size)} - {each.rank for each in dumps})
    if gone:
        said.append(f"no dump of {_ranks(gone)}: what they did is not known; a rank that died leaves none")
    return _run(dumps, members, size, cwd, said), said


def _ranks(ranks: list[int]) -> str:
    told = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {told}" if len(ranks) == 1 else f"ranks {told}"


def _run(dumps: list[Dump], members: dict[str, list[int]], size: int, cwd: str, said: list[str]) -> list[Event]:
    found: list[Event] = [protocol.Start(version=protocol.VERSION, cwd=cwd, plan={}, read=None)]
    standings: dict[int, protocol.Standing] = {}
    began = _first_turns(dumps)
    last = 0.0
    for process, dump in enumerate(dumps):
        mine: list[Event] = [protocol.Group(world_size=size, rank=dump.rank, site=NOWHERE)]
        waiting = None
        for n, each in enumerate(each for each in dump.entries if each.turn >= began.get(each.group, 0) or each.alone):
            call = protocol.Collective(
                n=n, op=each.op, site=each.site, group=each.group, ranks=members[each.group], dtype=each.dtype,
                shape=each.shape, sequence=not each.alone, asynchronous=False,
            )  # fmt: skip
            mine.append(_at(call, each.time))
            if each.done:
                mine.append(_at(protocol.Done(n=n), each.time))
            elif waiting is None:
                waiting = n
            last = max(last, each.time)
        standings[dump.rank] = protocol.Standing(ended=False, code=None, waiting=waiting)
        for event in mine:
            event.process, event.rank_of = process, dump.rank
        found += mine
    stuck = any(state.waiting is not None for state in standings.values())
    if stuck:
        found.append(_at(protocol.Hang(ranks=standings), last))
    else:
        none = all(not dump.entries for dump in dumps)
        said.append("no call was recorded" if none else "every recorded call came back: the job did not hang in one")
    found.append(protocol.Finish(outcome="hang" if stuck else "stopped", seconds=0.0))
    return found


def _at(event: Event, time: float) -> Event:
    event.time = time
    return event


def _first_turns(dumps: list[Dump]) -> dict[str, int]:
    """By group: the first turn that all of its ranks still have. What the ring of one has lost says nothing."""
    found: dict[str, int] = {}
    for dump in dumps:
        first: dict[str, int] = {}
        for each in dump.entries:
            if not each.alone:
                first.setdefault(each.group, each.turn)
        for group, turn in first.items():
            found[group] = max(found.get(group, 0), 0 if dump.whole else turn)
    return found


def _members(dumps: list[Dump]) -> dict[str, list[int]]:
    """Of each group: as the dumps say, else the ranks that were seen to call in it."""
    said: dict[str, list[int]] = {}
    seen: dict[str, set[int]] = {}
    for dump in dumps:
        for group, ranks in dump.members.items():
            if dump.rank in ranks:
                said[group] = ranks
        for each in dump.entries:
            seen.setdefault(each.group, set()).add(dump.rank)
    return {group: said.get(group) or sorted(ranks) for group, ranks in seen.items()}


def _files(paths: Sequence[str]) -> Iterator[str]:
    if not paths:
        raise UsageError("trace needs the dumps: `validate-ddp trace DUMP...`, files or a folder of them")
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        inside = sorted(name for name in os.listdir(path) if _RANK.search(name))
        if not inside:
            raise UsageError(f"{path}: there is no dump in it whose name ends in the number of a rank")
        yield from (os.path.join(path, name) for name in inside)


class _Plain(pickle.Unpickler):
    """Reads numbers, texts and containers."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which would be imported")

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("it refers to something outside")

    @classmethod
    def read(cls, held: bytes) -> object:
        """Looked through first: a length or a number of a memo is believed, and takes as much memory as it says."""
        for code, argument, _ in pickletools.genops(held):
            if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(held):
                raise pickle.UnpicklingError("it numbers more things than it holds")
        return cls(BytesIO(held)).load()


def _loaded(path: str) -> object:
    try:
        with open(path, "rb") as file:
            held = file.read(_MOST + 1)
    except OSError as error:
        raise UsageError(f"{path}: the dump cannot be read: {error.strerror or error}") from error
    if len(held) > _MOST:
        raise UsageError(f"{path}: is larger than {_MOST >> 20} MiB: no dump of the flight recorder")
    try:
        return json.loads(held) if held[:1] == b"{" else _Plain.read(held)
    except MemoryError as error:
        raise UsageError(f"{path}: is no dump of the flight recorder: it asks for more memory than there is") from error
    except Exception as error:
        told = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"{path}: is no dump of the flight recorder: {told}") from error


def _dump(path: str, here: _Here) -> Dump:
    rank = _RANK.search(path)
    if rank is None:
        raise UsageError(f"{path}: of which rank is it? The name has to end in its number, as PyTorch writes it")
    held = _loaded(path)
    rows = held.get("entries") if isinstance(held, dict) else None
    if not isinstance(held, dict) or not isinstance(rows, list):
        raise UsageError(f"{path}: is no dump of the flight recorder: there is no list of `entries`")
    entries = []
    for row in rows:
        try:
            entries.append(_entry(row, here))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())[:120]
            raise UsageError(
                f"{path}: the entry {len(entries)} is not as the flight recorder writes it ({told})"
            ) from error
    first = rows[0].get("record_id", 0) if rows else 0
    return Dump(int(rank[1]), path, entries, _groups(held.get("pg_config")), first == 0)


def _groups(held: object) -> dict[str, list[int]]:
    """The ranks of each group by its name; a backend that does not say leaves them out."""
    found: dict[str, list[int]] = {}
    for each in held.values() if isinstance(held, dict) else ():
        if isinstance(each, dict) and isinstance(each.get("ranks"), str):
            ranks = [int(word) for word in re.findall(r"\d{1,6}", each["ranks"])]
            if ranks:
                found[str(each.get("name", ""))] = ranks
    return found


def _entry(row: dict[str, object], here: _Here) -> Entry:
    group = row["process_group"]
    name = str(group[0]) if isinstance(group, (tuple, list)) else str(group)
    op = _text(row["profiling_name"]).rpartition(":")[2]
    alone = bool(row.get("is_p2p")) or op.startswith(("send", "recv"))
    sizes, dtypes = row.get("input_sizes") or [], row.get("input_dtypes") or []
    return Entry(
        name,
        _whole(row.get("p2p_seq_id" if alone else "collective_seq_id", 0)),
        op if alone else _OPS.get(op, op),
        here.site(row.get("frames") or []),
        _DTYPES.get(str(dtypes[0]), str(dtypes[0]).lower()) if isinstance(dtypes, list) and dtypes else None,
        _shape(sizes),
        alone,
        bool(row.get("retired")) or row.get("state") == "completed",
        _whole(row.get("time_created_ns", 0)) * _CLOCK,
    )


def _text(held: object) -> str:
    if not isinstance(held, str):
        raise TypeError("a text is missing")
    return held[:200]


def _whole(held: object) -> int:
    if not isinstance(held, int) or not -1 <= held < 1 << 63:
        raise ValueError("a number is missing")
    return held


def _shape(sizes: object) -> list[int] | None:
    """That of the tensor; of several the number of elements in all, as one call has them."""
    if not isinstance(sizes, list) or not all(isinstance(each, list) for each in sizes) or not sizes:
        return None
    if len(sizes) == 1:
        return [_whole(each) for each in sizes[0]]
    total = 0
    for shape in sizes:
        count = 1
        for each in shape:
            count = min(count * max(_whole(each), 0), 1 << 62)
        total += count
    return [min(total, 1 << 62)]


class _Here:
    """Call sites with the paths that files have on this machine. cwd: where sources of another machine are looked for,
    each by the longest end of its path that there is."""

    def __init__(self, cwd: str) -> None:
        self.cwd = cwd
        self._paths: dict[str, str] = {}
        self._sites: dict[tuple[str, tuple[Frame, ...]], Site] = {}

    def site(self, rows: object) -> Site:
        if not isinstance(rows, list):
            raise TypeError("the stack is no list")
        frames = tuple(self._frame(row) for row in rows[:200])
        # What the script called is the outermost function of a library before its own line.
        outer = [frame.function for frame in takewhile(lambda frame: frame.library, frames)]
        via = next((name for name in reversed(outer) if not name.startswith("_") and name not in _AROUND), "")
        own = tuple(frame for frame in frames if not frame.library) or frames
        return self._sites.setdefault((via, own), Site(own, via, len(self._sites)))

    def _frame(self, row: object) -> Frame:
        if not isinstance(row, dict):
            raise TypeError("a frame is no object")
        path = _text(row["filename"])
        return Frame(self._path(path), _whole(row["line"]), _text(row["name"]), bool(_LIBRARY.search(path)))

    def _path(self, path: str) -> str:
        if path not in self._paths:
            self._paths[path] = path if _LIBRARY.search(path) or os.path.exists(path) else self._found(path)
        return self._paths[path]

    def _found(self, path: str) -> str:
        parts = re.split(r"[/\\]", path)
        for at in range(1, len(parts)):
            candidate = os.path.join(self.cwd, *parts[at:])
            if ".." not in parts[at:] and os.path.isfile(candidate):
                return candidate
        return path
