"""A rehearsal's events as rules read them: by rank, in order, with call sites resolved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from validate_ddp.rehearse.events import NOWHERE, PLACES, Event, Frame, Site, site_of
from validate_ddp.rehearse.pace import Pace

__all__ = ["NOWHERE", "PEER_GONE", "Frame", "Run", "Site", "once"]

PEER_GONE = re.compile(r"by peer|gloo/transport|Broken pipe|failed to recv|recvValue failed|Connection was likely")
"""What a rank says whose peer has gone: not the cause."""


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
        self.pace: Pace | None = None
        """Bounds the time that is spent within ``bounded``, where there is one."""
        self._bounded = False
        self.remembered: dict[Any, Any] = {}
        """What ``once`` keeps."""
        self._of: dict[tuple[int, tuple[str, ...]], list[Event]] = {}
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
                sites[process or 0, event["site"]] = site_of(event)
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
                self.where[rank] = site_of(event)
            elif kind != "site":
                places = {
                    field: sites.get((process, event[field]), NOWHERE)
                    for field in PLACES
                    if isinstance(event.get(field), int)
                }
                self.by_rank.setdefault(rank, []).append({**event, **places} if places else event)
        self.ranks = sorted(self.by_rank)
        groups = [event.get("ranks") or [] for event in (self.of(self.ranks[0], "forward") if self.ranks else ())]
        self.group = max(groups, key=len, default=[])
        self.replicas = [rank for rank in self.ranks if not self.group or rank in self.group]
        if self.stop is None:
            self.where.clear()  # told in a pause of a run that went on

    @cached_property
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

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """What may take long: it ends with ``OutOfTime`` where ``pace`` says so. What is outside always comes to its
        end."""
        self._bounded = True
        try:
            yield
        finally:
            self._bounded = False

    def look(self) -> None:
        """Called all the time by what may take long."""
        if self._bounded and self.pace is not None:
            self.pace.look()

    def each(self, *kinds: str) -> Iterator[tuple[int, Event]]:
        """The events of some kinds as (rank, event), by rank and in their order."""
        for rank in self.ranks:
            for event in self.of(rank, *kinds):
                yield rank, event

    def of(self, rank: int, *kinds: str) -> list[Event]:
        """The events of some kinds of one rank, in their order. Looked for once: not to be changed."""
        self.look()
        found = self._of.get((rank, kinds))
        if found is None:
            events = self.by_rank.get(rank, ())
            if len(kinds) == 1:
                self._sort(rank, events)
                found = self._of.setdefault((rank, kinds), [])
            else:
                found = self._of[rank, kinds] = [event for event in events if event["event"] in kinds]
        return found

    def _sort(self, rank: int, events: Iterable[Event]) -> None:
        """All kinds of a rank at once: rules ask for most of them."""
        if (rank, ()) not in self._of:
            self._of[rank, ()] = []
            by_kind: dict[str, list[Event]] = {}
            for event in events:
                by_kind.setdefault(event["event"], []).append(event)
            for kind, same in by_kind.items():
                self._of[rank, (kind,)] = same

    def local_rank(self, rank: int) -> int:
        """The rank's number on its node."""
        return rank % max(1, int(self.plan.get("nproc_per_node", self.world_size)))


Given = ParamSpec("Given")
Result = TypeVar("Result")


def once(function: Callable[Concatenate[Run, Given], Result]) -> Callable[Concatenate[Run, Given], Result]:
    """Remembers with the run what a function of it returns: rules ask for the same again. Not to be changed, then."""

    @wraps(function)
    def remembered(run: Run, /, *given: Given.args, **named: Given.kwargs) -> Result:
        run.look()
        key = (function, given, *named.items())
        if key not in run.remembered:
            run.remembered[key] = function(run, *given, **named)
        result: Result = run.remembered[key]
        return result

    return remembered
