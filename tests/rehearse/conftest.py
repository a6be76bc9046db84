"""Events as ranks would send them, so that rules are tested without torch and without processes."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.catalogue import name_of
from validate_ddp.findings import Finding, Place, Span, to_plain
from validate_ddp.record.events import Keeper
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import VERSION, Event
from validate_ddp.rehearse.outcome import Judged, judge


class Recorded:
    """Makes the log of a run of ``world_size`` ranks; each call adds one event of one rank, or of all."""

    def __init__(self, world_size: int = 2, nnodes: int = 1, **plan: Any) -> None:
        self.world_size = world_size
        plan = {"nproc_per_node": world_size // nnodes, "nnodes": nnodes, "launcher": "env", **plan}
        self.events: list[dict[str, Any]] = [{"event": "start", "version": VERSION, "cwd": "/project", "plan": plan}]
        self.sites: dict[Any, int] = {}
        self.calls = 0
        self.outcome = "finished"
        self.stop: dict[str, Any] | None = None
        for rank in range(world_size):
            self.add(rank, "hello", pid=rank + 100, launched=True)
            self.add(rank, "group", rank=rank, world_size=world_size, site=self.site(5))

    def site(
        self, line: int, path: str = "/project/train.py", function: str = "train", via: str = "", *outer: Any
    ) -> int:
        """The number of a call site, told to every rank."""
        key = (path, line, function, via, outer)
        if key not in self.sites:
            self.sites[key] = len(self.sites)
            stack = [[path, line, function, False], *([path, each, "main", False] for each in outer)]
            for rank in range(self.world_size):
                self.add(rank, "site", site=self.sites[key], via=via, stack=stack)
        return self.sites[key]

    def add(self, rank: int, event: str, /, **fields: Any) -> None:
        """One event."""
        time = float(len(self.events)) if hasattr(self, "events") else 0.0
        self.events.append({"event": event, "process": rank, "rank_of": rank, "time": time, **fields})

    def every(self, event: str, /, **fields: Any) -> None:
        """The same event of every rank."""
        for rank in range(self.world_size):
            self.add(rank, event, **fields)

    def call(self, rank: int, op: str, line: int, done: bool = True, **fields: Any) -> int:
        """A collective of one rank."""
        self.calls += 1
        own = {"group": "0", "ranks": list(range(self.world_size)), "sequence": True, "site": self.site(line)}
        values = {**own, **fields}
        self.add(rank, "collective", n=self.calls, op=op, **values)
        if done:
            self.add(rank, "done", n=self.calls)
        return self.calls

    def wrapper(self, line: int = 10, **fields: Any) -> None:
        """A DistributedDataParallel on every rank."""
        values = {"parameters": 2, "buffers": 0, "nested": False, "batch_norms": 0, "find_unused": False, **fields}
        self.every("ddp", ddp=0, site=self.site(line), **values)

    def loader(self, line: int = 12, shuffle: bool | None = True, length: int = 16, **fields: Any) -> None:
        """A loader on every rank; with a DistributedSampler at the line before, unless ``shuffle`` is None."""
        if shuffle is not None:
            for rank in range(self.world_size):
                self.add(
                    rank, "sampler", sampler=0, site=self.site(line - 1), shuffle=shuffle, rank=rank, length=length,
                    replicas=self.world_size, drop_last=False,
                )  # fmt: skip
        values = {
            "length": length, "batches": 2, "batch_size": 4, "sampler": "DistributedSampler",
            "numbered": 0 if shuffle is not None else None, "iterable": False, "drop_last": False, "workers": 0,
            "dataset": "Points",
        }  # fmt: skip
        self.every("loader", loader=0, site=self.site(line), **{**values, **fields})

    def optimizer(self, line: int = 14, names: Any = ((0, "weight"), (0, "bias")), number: int = 0) -> None:
        """An optimizer on every rank, holding these parameters."""
        named = [list(name) if name is not None else None for name in names]
        self.every("optimizer", optimizer=number, kind="SGD", inner=False, site=self.site(line))
        shapes = [[2]] * len(named)
        self.every("parameters", optimizer=number, names=named, shapes=shapes, before=[1] * len(named))

    def batch(self, rank: int, turn: int, count: int, indices: list[int], **fields: Any) -> None:
        """A batch that a rank consumes."""
        self.add(
            rank, "batch", loader=0, turn=turn, count=count, indices=indices, size=len(indices), site=self.site(20),
            **fields,
        )  # fmt: skip

    def train_on(self, rank: int, **options: Any) -> None:
        """Forward, backward and step. options: sync, armed, forward (0, 1), bypass, grads, params, optimizer, count."""
        sync = options.get("sync", True)
        common = {"group": "0", "ranks": list(range(self.world_size))}
        if options.get("forward", True):
            self.calls += 1
            self.add(
                rank, "forward", n=self.calls, ddp=0, grad=True, sync=sync, training=True, waits=False, rows=4,
                site=self.site(options.get("forward_line", 22)), **common,
            )  # fmt: skip
            self.add(rank, "done", n=self.calls)
        if options.get("bypass"):
            self.add(rank, "inner_forward", ddp=0, site=self.site(23))
        self.backward(rank, options.get("armed", sync and options.get("forward", True)))
        if options.get("step", True):
            self.step(rank, **options)

    def trains(self, **loader: Any) -> None:
        """What training takes, on every rank: a wrapper, a loader, an optimizer."""
        self.wrapper()
        self.loader(**loader)
        self.optimizer()

    def train(self, **options: Any) -> None:
        """``train_on`` on every rank."""
        for rank in range(self.world_size):
            self.train_on(rank, **options)

    def begin(self, turn: int = 0, loader: int = 0) -> None:
        """Every rank begins an iteration of a loader."""
        self.every("iteration", loader=loader, turn=turn, site=self.site(19))

    def end(self, batches: int = 1, turn: int = 0, loader: int = 0) -> None:
        """Every rank has drawn all batches of it."""
        self.every("iterated", loader=loader, turn=turn, batches=batches, exhausted=True)

    def epochs(self, *orders: list[list[int]], **options: Any) -> None:
        """Epochs of one batch on every rank; each order holds each rank's indices."""
        for turn, indices in enumerate(orders):
            self.begin(turn)
            for rank in range(self.world_size):
                self.batch(rank, turn, 0, indices[rank], **options)
                self.train_on(rank, grads=[turn, 1])
            self.end(1, turn)

    def backward(self, rank: int, armed: bool = True, line: int = 25, done: bool = True) -> None:
        """A backward, which reduces gradients where ``armed``."""
        self.calls += 1
        ranks = list(range(self.world_size))
        self.add(
            rank, "backward", n=self.calls, armed=[0] if armed else [], group="0" if armed else None, ranks=ranks,
            waits=armed, sync=True, site=self.site(line),
        )  # fmt: skip
        if done:
            self.add(rank, "done", n=self.calls)

    def step(self, rank: int, **options: Any) -> None:
        """An optimizer step; its number is one more than that of the rank's step before."""
        number = options.get("optimizer", 0)
        before = [
            each for each in self.events
            if each["event"] == "step" and each["process"] == rank and each["optimizer"] == number
        ]  # fmt: skip
        self.add(
            rank, "step", optimizer=number, count=len(before) + 1, grads=options.get("grads", [1, 1]),
            params=options.get("params", [2, 2]), site=self.site(27), rates=options.get("rates", [0.1]),
        )  # fmt: skip

    def read(
        self,
        code: str,
        line: int,
        path: str = "train.py",
        end_line: int | None = None,
        evidence: list[int] | None = None,
    ) -> None:
        """A finding of the static check, before the run. evidence: lines that it names besides its own."""
        places = tuple(Place(path, Span(each, 0, each, 8)) for each in evidence or ())
        finding = Finding(code, name_of(code), "error", path, line, 1, end_line or line, 9, f"read {code}")
        finding = finding._replace(evidence=places)
        self.events[0].setdefault("read", []).append(to_plain(finding))

    def said(self) -> dict[tuple[str, int], str]:
        """What the run says of each finding, by code and line."""
        return {(each.finding.code, each.finding.line): each.said for each in self.judged().reported}

    def hang(self, **waiting: int | None) -> None:
        """The run hung; by rank as ``r0=5``: the number of the call that it waits in, None for one that has exited."""
        self.outcome = "hang"
        self.stop = {
            "event": "hang",
            "ranks": {
                name[1:]: {"ended": number is None, "code": 0 if number is None else None, "waiting": number}
                for name, number in waiting.items()
            },
        }

    def judged(self) -> Judged:
        """What the rules say."""
        if self.outcome == "finished":
            self.every("exit", initialized=False, site=self.site(5))
        return judge(self.told(finished=True))

    def told(self, finished: bool = False) -> list[Event]:
        """The events as a replay reads them. finished: with the end of the run."""
        rest = [self.stop] if self.stop else []
        if finished:
            rest.append({"event": "finish", "outcome": self.outcome, "seconds": 1.0})
        keeper = Keeper()
        return [keeper.kept(event) for event in (*self.events, *rest)]

    def found(self) -> set[tuple[str, int]]:
        """Codes and lines of all findings."""
        return {(finding.code, finding.line) for finding in self.judged().findings}

    def rated(self) -> list[tuple[str, int, str]]:
        """Codes, lines and severities of all findings."""
        return [(finding.code, finding.line, finding.severity) for finding in self.judged().findings]

    def word(self, code: str) -> str:
        """What is said of a rule in a run in which nothing is found."""
        judged = self.judged()
        assert not judged.findings
        return judged.verdicts[code].word


@pytest.fixture
def recorded() -> Recorded:
    """A run of two ranks."""
    return Recorded()


@pytest.fixture
def record() -> type[Recorded]:
    """``record(world_size, nnodes)`` makes another one."""
    return Recorded


@pytest.fixture
def training(recorded: Any) -> Any:
    """A recorded run in which ranks train: a wrapper, a loader, an optimizer."""
    recorded.trains()
    return recorded
