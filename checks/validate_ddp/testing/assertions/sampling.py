"""That the ranks share a data set as one process would walk it: each sample once, in another order each epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .exchange import gathered

__tracebackhide__ = True  # pytest shows the line of the test that called, not ours


def assert_disjoint_cover(indices: Iterable[int], n: int, *, padded: bool = False, dropped: bool = False) -> None:
    """Collective. The ranks' indices together are 0 to n-1, each once, as a single process would see them.

    indices: this rank's, of one epoch; a sampler will do. padded: a few indices may come again (fewer than there are
    ranks, as ``DistributedSampler`` pads). dropped: a few may lack (``drop_last``). Raises on every rank: the first
    index which is wrong, and the ranks that have it.
    """
    everyone: list[list[int]] = gathered([int(index) for index in indices])
    size = len(everyone)
    seen: dict[int, list[int]] = {}
    for rank, theirs in enumerate(everyone):
        for position, index in enumerate(theirs):
            if not 0 <= index < n:
                raise AssertionError(f"rank {rank} has index {index} at position {position}, outside of 0 to {n - 1}")
            seen.setdefault(index, []).append(rank)
    double = sum(len(ranks) - 1 for ranks in seen.values())
    if double > (size - 1 if padded else 0):
        index = min(index for index, ranks in seen.items() if len(ranks) > 1)
        raise AssertionError(
            f"index {index} is seen {len(seen[index])} times, by {_ranks(seen[index])}; a single process sees it once "
            f"({double} of {sum(map(len, everyone))} are repetitions"
            + (f", padding explains {size - 1})" if padded else ")")
        )
    missing = n - len(seen)
    if missing > (size - 1 if dropped else 0):
        index = next(index for index in range(n) if index not in seen)
        raise AssertionError(
            f"index {index} is seen by no rank; a single process sees it once ({missing} of {n} are missing)"
        )
    lengths = {len(theirs) for theirs in everyone}
    if (padded or dropped) and len(lengths) > 1:
        # What padding and dropping are for: a rank with a step less leaves the others waiting.
        raise AssertionError(f"ranks have different numbers of indices: {[len(theirs) for theirs in everyone]}")


def assert_reshuffles(sampler: Any, *, epochs: int = 2) -> None:
    """Collective. With ``set_epoch`` the sampler gives another order in each epoch, the same on every call, and ranks
    stay disjoint in each.

    sampler: this rank's, or a loader that has it. Raises on every rank: the first epoch and rank at which it is not so.
    """
    if epochs < 2:
        raise ValueError(f"epochs must be at least 2, not {epochs}")
    sampler = _sampler_of(sampler)
    if not hasattr(sampler, "set_epoch"):
        orders = None
    else:
        orders = [_order(sampler, epoch) for epoch in [*range(epochs), 0]]
    everyone = gathered(orders)
    for rank, theirs in enumerate(everyone):
        if theirs is None:
            raise AssertionError(
                f"rank {rank}: `{type(sampler).__name__}` has no `set_epoch`, every epoch is like the first"
            )
    for epoch in range(epochs):
        _assert_epoch_disjoint([theirs[epoch] for theirs in everyone], epoch)
        whole = [theirs[epoch] for theirs in everyone]
        for earlier in range(epoch):
            if whole == [theirs[earlier] for theirs in everyone]:
                raise AssertionError(
                    f"epoch {epoch} has the order of epoch {earlier} on every rank (rank 0: {whole[0][:5]}...); "
                    "a single process would shuffle again"
                )
    for rank, theirs in enumerate(everyone):
        if theirs[0] != theirs[-1]:
            raise AssertionError(
                f"rank {rank}: epoch 0 asked for again has another order ({theirs[-1][:5]}, was {theirs[0][:5]}); "
                "a resumed run would see other samples"
            )


def _assert_epoch_disjoint(orders: list[list[int]], epoch: int) -> None:
    """Ranks shuffle alike, or their shares overlap; a few repetitions are padding."""
    owner: dict[int, int] = {}
    shared = []
    for rank, order in enumerate(orders):
        for index in set(order):
            if owner.setdefault(index, rank) != rank:
                shared.append((index, owner[index], rank))
    if len(shared) >= len(orders):
        index, first, second = min(shared)
        raise AssertionError(
            f"epoch {epoch}: index {index} is seen by ranks {first} and {second} ({len(shared)} indices are shared); "
            "do all ranks shuffle with one seed?"
        )


def _order(sampler: Any, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    flat: list[int] = []
    for each in sampler:
        flat.extend(map(int, each)) if isinstance(each, (list, tuple)) else flat.append(int(each))
    return flat


def _sampler_of(given: Any) -> Any:
    """The sampler of a loader: of its batches if that is where ``set_epoch`` is."""
    for name in ("sampler", "batch_sampler"):
        inner = getattr(given, name, None)
        if inner is not None and (hasattr(inner, "set_epoch") or not hasattr(given, "set_epoch")):
            if hasattr(inner, "set_epoch"):
                return inner
    return given


def _ranks(ranks: list[int]) -> str:
    different = sorted(set(ranks))
    if len(different) == 1:
        return f"rank {different[0]} alone"
    return "ranks " + ", ".join(map(str, different))
