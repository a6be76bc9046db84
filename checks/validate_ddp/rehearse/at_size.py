"""What a run of a large world would be, in numbers, from the few of its ranks that were run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypedDict

from validate_ddp.record.assumptions import parted
from validate_ddp.record.iterations import training_turns
from validate_ddp.record.run import Run
from validate_ddp.record.writers import writers
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.links import least_seconds, links_of


class Traffic(TypedDict):
    """Calls of one kind on groups of one size, and their bytes, for a usual optimizer step of a rank. nodes: on which a
    group's ranks lie."""

    op: str
    ranks: int
    nodes: int
    calls: int
    bytes: int


class Held(TypedDict):
    """Bytes of what a rank holds, the most of any rank: see ``protocol.Memory``."""

    parameters: int
    gradients: int
    buckets: int
    state: int
    buffers: int
    activations: int | None


class AtSize(TypedDict):
    """Pairs are the least and the most of a rank. padding: samples that the sampler repeats so that all ranks have
    equally many, less than nothing for those that it leaves out. rates: of the first group of the first optimizer, at
    its first, its highest and its last step, the step of the highest being ``peak``, from 1. decisions: lines at which
    ranks decide differently by a value that was assumed. files: by path, the ranks that write it. traffic: of what
    lies between two steps. seconds: below which no step can be, for its calls alone; None without ``--link``."""

    world_size: int
    ranks: list[int]
    batches: tuple[int, int] | None
    samples: tuple[int, int] | None
    last_batch: tuple[int, int] | None
    padding: int | None
    rates: tuple[float, float, float] | None
    peak: int | None
    traffic: list[Traffic]
    seconds: float | None
    memory: Held | None
    decisions: list[str]
    files: dict[str, list[int]]


def at_size(run: Run) -> AtSize:
    """What is told of each rank, side by side."""
    firsts = [next((turn for turn in training_turns(run, rank) if turn.exhausted), None) for rank in run.ranks]
    sizes = [[batch.event.size or 0 for batch in turn.batches] for turn in firsts if turn is not None and turn.batches]
    known = [each for each in sizes if all(each)]
    rates = [event.rates[0] for event in _steps(run, run.ranks[0]) if event.rates] if run.ranks else []
    traffic = _traffic(run, run.ranks[0]) if run.ranks else []
    links = links_of(dict(run.plan.get("link") or ()))
    calls = [(each["op"], each["bytes"], each["ranks"], each["nodes"]) for each in traffic]
    lines = [event.site.own for event in parted(run).values()]
    return {
        "world_size": run.world_size,
        "ranks": run.ranks,
        "batches": _range([len(each) for each in sizes]),
        "samples": _range([sum(each) for each in known]),
        "last_batch": _range([each[-1] for each in known]),
        "padding": _padding(run),
        "rates": (rates[0], max(rates), rates[-1]) if rates else None,
        "peak": rates.index(max(rates)) + 1 if rates else None,
        "traffic": traffic,
        "seconds": least_seconds(calls, links) if calls and links is not None else None,
        "memory": _memory(run),
        "decisions": sorted({f"{frame.path.rpartition('/')[2]}:{frame.line}" for frame in lines}),
        "files": {path: sorted({rank for rank, _ in written}) for path, written in sorted(writers(run).items())},
    }


def _range(numbers: list[int]) -> tuple[int, int] | None:
    return (min(numbers), max(numbers)) if numbers else None


def _steps(run: Run, rank: int) -> list[protocol.Step]:
    every = run.of(rank, protocol.Step)
    return [event for event in every if event.optimizer == every[0].optimizer]


def _padding(run: Run) -> int | None:
    for _, event in run.each(protocol.Sampler):
        if isinstance(event.length, int) and isinstance(event.replicas, int) and event.replicas > 1:
            rest = event.length % event.replicas
            return -rest if event.drop_last else (event.replicas - rest) % event.replicas
    return None


def _traffic(run: Run, rank: int) -> list[Traffic]:
    """What comes as often in most steps, the last ones if need be: the first have more, as that of wrapping."""
    steps = _steps(run, rank)
    if not steps:
        return []
    counts: list[Counter[tuple[str, int, int, int]]] = [Counter()]
    for event in run.of(rank, protocol.Moved, protocol.Step):
        if isinstance(event, protocol.Moved):
            counts[-1][event.op, event.size, event.nodes, event.bytes] += 1
        elif event.optimizer == steps[0].optimizer:
            counts.append(Counter())
    whole = counts[1:-1]  # of one step alone it is not known what came before it once
    if not whole:
        return []
    usual = Counter(frozenset(each.items()) for each in reversed(whole)).most_common(1)[0][0]
    found: dict[tuple[str, int, int], Traffic] = {}
    for (op, size, nodes, moved), calls in sorted(usual):
        entry = found.setdefault((op, size, nodes), {"op": op, "ranks": size, "nodes": nodes, "calls": 0, "bytes": 0})
        entry["calls"] += calls
        entry["bytes"] += calls * moved
    return list(found.values())


def _memory(run: Run) -> Held | None:
    """The most that was told of each kind: a first step has no gradients in buckets yet, a second optimizer more."""
    told = [event for _, event in run.each(protocol.Memory)]
    if not told:
        return None
    kept = [event.activations for event in told]
    return {
        "parameters": max(event.parameters for event in told),
        "gradients": max(event.gradients for event in told),
        "buckets": max(event.buckets for event in told),
        "state": max(event.state for event in told),
        "buffers": max(event.buffers for event in told),
        "activations": None if None in kept else max(filter(None, kept), default=0),
    }


KINDS = {
    "parameters": "parameters", "gradients": "gradients", "buckets": "DDP's buckets", "state": "optimizer state",
    "buffers": "buffers", "activations": "activations",
}  # fmt: skip
"""How each kind of memory is called."""


def held(told: AtSize) -> list[tuple[str, int]]:
    """The kinds of memory of which there is some, in words, with their bytes."""
    memory: Mapping[str, object] = told["memory"] or {}
    return [(words, count) for name, words in KINDS.items() if isinstance(count := memory.get(name), int) and count]


def in_words(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def in_time(seconds: float) -> str:
    """A time as people say it."""
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"


def rows(told: AtSize) -> list[tuple[str, object]]:
    """As names and values, for people."""
    found: list[tuple[str, object]] = [
        ("ranks run alone", ", ".join(map(str, told["ranks"]))),
        ("batches an epoch of a rank", _words(told["batches"])),
        ("samples an epoch of a rank", _words(told["samples"])),
        ("last batch of a rank", _words(told["last_batch"])),
    ]
    if told["padding"] is not None:
        text = f"{told['padding']} samples repeated" if told["padding"] >= 0 else f"{-told['padding']} left out"
        found.append(("to fill all ranks' shares", text))
    if told["rates"] is not None and len(set(told["rates"])) > 1:
        first, most, last = told["rates"]
        found.append(("learning rate", f"{first:g}, {most:g} at step {told['peak']}, {last:g} at the end"))
    moved: dict[str, list[str]] = {}
    for each in told["traffic"]:
        text = f"{each['calls']} on {each['ranks']:,} ranks, {each['bytes']:,} bytes"
        moved.setdefault(f"{each['op']} a step, {where(each)}", []).append(text)
    found += [(name, "; ".join(texts)) for name, texts in moved.items()]
    if told["seconds"] is not None:
        found.append(("time of a step's calls, at least", in_time(told["seconds"])))
    if told["memory"] is not None:
        kinds = dict(held(told))
        text = ", ".join(f"{in_words(count)} {name}" for name, count in kinds.items())
        # A backward may free what it was kept for as it makes gradients.
        least = sum(kinds.values()) - min(kinds.get(KINDS["activations"], 0), kinds.get(KINDS["gradients"], 0))
        found.append(("memory of a rank, at least", f"{in_words(least)}: {text}"))
    if told["decisions"]:
        found.append(("decided by assumed values", ", ".join(told["decisions"])))
    return [
        *found,
        *(("written", f"{path} by rank {_some(ranks)}") for path, ranks in list(told["files"].items())[:20]),
    ]


def where(each: Traffic) -> str:
    """Over which links a group's calls go."""
    return "within a node" if each["nodes"] == 1 else "across nodes"


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _words(pair: tuple[int, int] | None) -> str | None:
    if pair is None:
        return None
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"
