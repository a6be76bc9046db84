"""`reference-trainer doctor`: what ranks do together, compared with what one process knows must come out."""

from __future__ import annotations

import secrets
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import checkpoint
from .checkpoint.directory import Directory, write
from .checkpoint.weights import read_part
from .core.club import club_gaussian
from .core.collectives import all_gather_with_grad, broadcast_object, gather_objects, reduce_sum_count, sum_reducer
from .core.data import PlannedBatches
from .core.plan import Plan
from .launch import World, set_timeout
from .progress import grid

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Verdict:
    """What a check found; equal on all ranks."""

    check: str
    passed: bool | None  # None: not observed, because there was nothing to look at.
    detail: str
    broken: bool = False  # The ranks are out of step; nothing collective can follow.


def diagnose(world: World, check: str, *, folder: str, max_latency: float, timeout: float) -> list[Verdict]:
    """Runs one check, or "all", until torch raises in one. max_latency: milliseconds; timeout: seconds. Collective."""
    set_timeout(world, timeout)
    checks: dict[str, Callable[[], Verdict]] = {
        "gathering": lambda: check_gathering(world),
        "club": lambda: check_club(world),
        "data": lambda: check_data(world),
        "checkpoint": lambda: check_checkpoint(world, Path(folder)),
        "barrier": lambda: check_barrier(world, max_latency),
    }
    verdicts: list[Verdict] = []
    for name in checks if check == "all" else [check]:
        try:
            verdicts.append(checks[name]())
        except RuntimeError as error:
            first = str(error).strip().splitlines()[:1] or [type(error).__name__]
            return [*verdicts, Verdict(name, False, f"rank {world.rank}: {first[0]}", broken=True)]
    return verdicts


def check_gathering(world: World, gather: Callable[[Tensor, Any], Tensor] = all_gather_with_grad) -> Verdict:
    """Rows of all ranks arrive in order; their gradient is what all ranks ask of them. Collective."""
    sizes = _sizes(world.size)
    whole = torch.arange(2.0 * sum(sizes), dtype=torch.float64, device=world.device).view(-1, 2) + 1
    mine = whole[_share(sizes, world.rank)].clone().requires_grad_()
    # Each rank asks something else of each row, so that a sum that lacks a rank, or has one twice, shows.
    asked = [whole.sin() * (rank + 1) for rank in range(world.size)]
    gathered = gather(mine, world.group)
    problem = _differs("what was gathered", gathered, whole)
    if not problem and not gathered.requires_grad:
        problem = "what was gathered has no gradient"
    if not problem:
        (gathered * asked[world.rank]).sum().backward()
        found = torch.zeros_like(mine) if mine.grad is None else mine.grad
        problem = _differs("the gradient", found, torch.stack(asked).sum(0)[_share(sizes, world.rank)])
    return _agreed(world, "gathering", problem, f"{sum(sizes)} rows of {_ranks(world)} and their gradient")


def check_club(world: World, club: Callable[..., Any] = club_gaussian) -> Verdict:
    """CLUB over the ranks' shares equals CLUB of all samples on one process: value and gradients. Collective."""
    sizes, width, generator = _sizes(world.size), 3, torch.Generator().manual_seed(1)
    x, y, weights = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(world.device)
        for shape in [(sum(sizes), width), (sum(sizes), width), (2, width, width)]
    )

    def forward(weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows @ weights[0], (rows @ weights[1]).tanh()

    true_y, true_weights = y.clone().requires_grad_(), weights.clone().requires_grad_()
    mu, logvar = forward(true_weights, x)
    # As it is defined (Cheng et al. 2020): all N x N pairs.
    log_q = -0.5 * ((true_y[None] - mu[:, None]) ** 2 * torch.exp(-logvar)[:, None] + logvar[:, None]).sum(-1)
    truth = log_q.diagonal().mean() - log_q.mean()
    truth_y, truth_weights = torch.autograd.grad(truth, [true_y, true_weights])

    share = _share(sizes, world.rank)
    my_y, my_weights = y[share].clone().requires_grad_(), weights.clone().requires_grad_()
    result = club(*forward(my_weights, x[share]), my_y, reduce_sum=sum_reducer(world.group), world_size=world.size)
    grad_y, grad_weights = torch.autograd.grad(result.loss, [my_y, my_weights])
    # As DDP does: gradients of parameters are averaged over ranks.
    averaged, _ = reduce_sum_count(grad_weights / world.size, 0.0, world.group)
    problem = (
        _differs("the value", result.value, truth.detach())
        or _differs("the gradient of parameters", averaged, truth_weights)
        or _differs("the gradient of features", grad_y / world.size, truth_y[share])
    )
    detail = f"{sum(sizes)} samples on {_ranks(world)} as on one process: value, both gradients"
    return _agreed(world, "club", problem, detail)


def check_data(world: World, sampler: Callable[..., Any] = PlannedBatches) -> Verdict:
    """Shares of an epoch are disjoint, cover the data, change from epoch to epoch, and resume. Collective."""
    plan, none = Plan.make(samples=103, world_size=world.size, batch_size=4, accumulation=2, epochs=3), torch.empty(0)
    requests = list(sampler(plan, world.rank, seed=1))
    epochs = [torch.cat([none.long(), *(each.index for each in requests if each.epoch == epoch)]) for epoch in range(3)]
    seen = torch.stack([torch.bincount(epoch, minlength=plan.samples)[: plan.samples] for epoch in epochs])
    everywhere, _ = reduce_sum_count(seen.to(world.device), 0.0, world.group)
    missing = int((everywhere == 0).sum())
    again = int((everywhere - 1).clamp(min=0).sum()) - 3 * plan.padded
    middle = plan.optimizer_steps // 2
    resumed = [request.index for request in sampler(plan, world.rank, seed=1, start_step=middle)]
    rest = [request.index for request in requests[middle * plan.accumulation :]]
    problem = ""
    if missing:
        problem = f"{missing} samples of 3 epochs are on no rank"
    elif again:
        problem = f"{again} samples of 3 epochs are on more than one rank, or seen again"
    elif any(torch.equal(epochs[0], epoch) for epoch in epochs[1:]):
        problem = "two epochs have the same order"
    elif len(resumed) != len(rest) or not all(map(torch.equal, resumed, rest)):
        problem = f"a start at step {middle} sees other samples than the run that passes it"
    detail = f"{plan.samples} samples, {plan.padded} padded: disjoint, complete, another order in each epoch, resumable"
    return _agreed(world, "data", problem, detail)


def check_checkpoint(
    world: World, folder: Path, save: Callable[[dict[str, Any], Path], object] = checkpoint.save
) -> Verdict:
    """What ranks write is read by all, whole: a file of rank zero's, and the checkpoint of a run. Collective."""
    weights = torch.arange(100_000, dtype=torch.float32).sin()
    trial, problem, made, start = "", "", not folder.exists(), time.perf_counter()
    if world.is_main:
        trial = f".doctor-{secrets.token_hex(4)}"
        try:
            (folder / trial).mkdir(parents=True)
            for version in range(2):  # the second one replaces the first
                save({"step": version, "model": {"weights": weights * version}}, folder / trial / "weights.pt")
        except (checkpoint.CheckpointError, OSError) as error:
            problem = f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}"
    seconds = time.perf_counter() - start
    trial, failed = broadcast_object((trial, bool(problem)), world.group)
    path, in_run = folder / trial / "weights.pt", Directory(folder / trial / "checkpoints").path(1)
    if not failed:
        try:
            write(in_run, {"model.weights": weights}, {"step": 1}, world)
            state, of_run = checkpoint.load(path), read_part(in_run)["weights"]
            whole = torch.equal(state["model"]["weights"], weights) and state["step"] == 1
            if not whole or not torch.equal(of_run, weights):
                problem = f"{path} has other weights than were written"
        except (checkpoint.CheckpointError, KeyError) as error:
            problem = f"{error}; this machine may have another file system there"
    verdict = _agreed(world, "checkpoint", problem, f"{folder}: written in {seconds * 1e3:.0f} ms, read by all ranks")
    if world.is_main:  # all ranks have read: the verdict was agreed upon
        shutil.rmtree(folder / trial, ignore_errors=True)
        with suppress(OSError):  # somebody else may have written there meanwhile
            folder.rmdir() if made else None
    return verdict


def check_barrier(world: World, max_latency: float) -> Verdict:
    """How long the smallest message to all ranks takes. max_latency: milliseconds. Collective."""
    if world.group is None:
        return Verdict("barrier", None, "one process has nobody to wait for")
    message, times = torch.ones(1, device=world.device), []
    for _ in range(50):
        start = time.perf_counter()
        reduce_sum_count(message, 1.0, world.group)[0].item()
        times.append((time.perf_counter() - start) * 1e3)
    medians = gather_objects(statistics.median(times), world.group)
    fastest, slowest = min(medians), max(medians)
    problem = f"{slowest:.2f} ms, more than {max_latency:g}" if slowest > max_latency else ""
    detail = f"smallest message to all ranks: median of 50 from {fastest:.2f} to {slowest:.2f} ms, by rank"
    return _agreed(world, "barrier", problem, detail)


def table(verdicts: Sequence[Verdict]) -> Table:
    """The verdicts for people. Local."""
    words = {True: "passed", False: "[bold red]FAILED[/]", None: "not observed"}
    return grid((each.check, words[each.passed], each.detail.replace("[", "\\[")) for each in verdicts)


def _sizes(world_size: int) -> list[int]:
    """Rows of each rank: uneven, and none on some where there are three or more."""
    return [(3, 5, 0, 2, 7)[rank % 5] for rank in range(world_size)]


def _ranks(world: World) -> str:
    return f"{world.size} rank{'s' * (world.size > 1)}"


def _share(sizes: list[int], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def _differs(what: str, found: Tensor, expected: Tensor) -> str:
    """What is wrong with ``found``, or nothing: more than the order of summation in float64."""
    if found.shape != expected.shape:
        return f"{what} has shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if not found.numel():
        return ""
    error = float((found - expected).detach().abs().max() / expected.abs().max().clamp(min=1e-30))
    return "" if error <= 1e-9 else f"{what} differs by {error:.2g} (relative) from one process"


def _agreed(world: World, check: str, problem: str, detail: str) -> Verdict:
    """The same verdict on all ranks: failed where one has a problem, with the first rank's. Collective: every rank."""
    found = gather_objects((problem, detail), world.group)
    ranks = [rank for rank, (each, _) in enumerate(found) if each]
    if not ranks:
        return Verdict(check, True, found[0][1])
    others = f" (and {len(ranks) - 1} more)" if len(ranks) > 1 else ""
    return Verdict(check, False, f"rank {ranks[0]}{others}: {found[ranks[0]][0]}")
