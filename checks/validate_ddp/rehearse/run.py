"""A rehearsal's events as rules read them: by rank, in order, with call sites resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from validate_ddp.rehearse.log import Event


class Frame(NamedTuple):
    """A line of the script, or of a library that it calls."""

    path: str
    line: int
    function: str
    library: bool


@dataclass(frozen=True)
class Site:
    """Where the script called. frames: innermost first. via: the function of torch that it called, where that is not
    the one observed."""

    frames: tuple[Frame, ...]
    via: str = ""

    @property
    def own(self) -> Frame:
        """The innermost line that is no library's."""
        for frame in self.frames:
            if not frame.library:
                return frame
        return self.frames[0] if self.frames else _NOWHERE

    @property
    def place(self) -> tuple[str, int]:
        """Path and line of ``own``."""
        return self.own.path, self.own.line


PEER_GONE = re.compile(r"by peer|gloo/transport|Broken pipe|failed to recv|recvValue failed|Connection was likely")
"""What a rank says whose peer has gone: not the cause."""
_NOWHERE = Frame("", 0, "", True)
NOWHERE = Site(())


class Run:
    """The events of one rehearsal.

    plan: the plan as plain data. ranks: the ranks that reported, sorted. outcome: how the run ended, see
    ``parent.supervisor``. shim: what was changed for it.
    """

    def __init__(self, events: list[Event]) -> None:
        self.plan: dict[str, Any] = events[0].get("plan", {}) if events else {}
        self.cwd: str = events[0].get("cwd", "") if events else ""
        self.read: list[Any] | None = events[0].get("read") if events else None
        """What the static check has found before the run, as plain data; None where it was left out."""
        self.outcome = "cut off"
        self.seconds = 0.0
        self.by_rank: dict[int, list[Event]] = {}
        self.codes: dict[int | None, int] = {}
        self.shim: dict[str, None] = {}
        self.faults: list[Event] = []
        self.where: dict[int, Site] = {}
        self.spawner: list[Event] = []
        """Exceptions of the script itself, where it starts its ranks and is none."""
        self.group: list[int] = []
        """The ranks that the first one's wrapper reduces over; none where it has no wrapper."""
        self.replicas: list[int] = []
        """Ranks that reported and train one model with the first one; others may train another one."""
        self.differential: Event | None = None
        """How the first step compares with that of one process, where that was asked for."""
        self.stop: Event | None = None
        """The event of a hang or a time-out, with what each rank was doing."""
        self._build(events)

    def _build(self, events: list[Event]) -> None:
        rank_of: dict[int, int] = {}
        launched = {event["process"] for event in events if event["event"] == "hello" and event.get("launched")}
        for event in events:
            if "rank_of" in event and "process" in event:
                rank_of.setdefault(event["process"], event["rank_of"])
        sites: dict[tuple[int, int], Site] = {}
        for event in events:
            kind = event["event"]
            process = event.get("process")
            if kind == "site":
                frames = tuple(Frame(*entry) for entry in event["stack"])
                sites[process or 0, event["site"]] = Site(frames, event.get("via", ""))
            elif kind == "finish":
                self.outcome, self.seconds = event["outcome"], event.get("seconds", 0.0)
            elif kind == "ended":
                self.codes[event["rank_of"]] = event["code"]
            elif kind in ("hang", "timeout"):
                self.stop = event
            elif kind == "differential" and process is None:
                self.differential = event
            elif kind == "fault":
                self.faults.append(event)
            elif kind == "shim":
                self.shim[event["change"]] = None
            elif kind == "exception" and process in launched and process not in rank_of:
                self.spawner.append(event)
            if process is None or process not in rank_of:
                continue
            rank = rank_of[process]
            if kind == "where":
                self.where[rank] = Site(tuple(Frame(*entry) for entry in event["stack"]), event.get("via", ""))
            elif kind != "site":
                resolved = dict(event)
                for field in ("site", "backward"):
                    if isinstance(event.get(field), int):
                        resolved[field] = sites.get((process, event[field]), NOWHERE)
                self.by_rank.setdefault(rank, []).append(resolved)
        self.ranks = sorted(self.by_rank)
        groups = [event.get("ranks") or [] for event in (self.of(self.ranks[0], "forward") if self.ranks else ())]
        self.group = max(groups, key=len, default=[])
        self.replicas = [rank for rank in self.ranks if not self.group or rank in self.group]
        if self.stop is None:
            self.where.clear()  # told in a pause of a run that went on

    @property
    def world_size(self) -> int:
        """Ranks that the script's own group has; those that were started, where it has none."""
        sizes = [event["world_size"] for _, event in self.each("group")]
        return max(sizes) if sizes else max(1, len(self.ranks))

    @property
    def wraps(self) -> bool:
        """Whether some rank wraps a model in DistributedDataParallel."""
        return any(self.of(rank, "ddp") for rank in self.ranks)

    @property
    def truncated(self) -> bool:
        """Whether loaders or the run were cut short on purpose."""
        return bool(self.plan.get("max_steps") or self.plan.get("stop_after"))

    def each(self, *kinds: str) -> Iterator[tuple[int, Event]]:
        """The events of some kinds as (rank, event), by rank and in their order."""
        for rank in self.ranks:
            for event in self.by_rank[rank]:
                if event["event"] in kinds:
                    yield rank, event

    def of(self, rank: int, *kinds: str) -> list[Event]:
        """The events of some kinds of one rank."""
        return [event for event in self.by_rank.get(rank, ()) if event["event"] in kinds]

    def local_rank(self, rank: int) -> int:
        """The rank's number on its node."""
        return rank % max(1, int(self.plan.get("nproc_per_node", self.world_size)))
