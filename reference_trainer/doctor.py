"""`reference-trainer doctor`: what ranks do together, compared with what one process knows must come out."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import checkpoint
from .core.club import club_gaussian
from .core.collectives import all_gather_with_grad, broadcast_object, gather_objects, reduce_sum_count, sum_reducer
from .core.data import PlannedBatches
from .core.plan import Plan
from .launch import World, set_timeout
from .progress import columns

SIZES = (3, 5, 0, 2, 7)
"""Rows of each rank: uneven, and none on some where there are three or more."""


class Verdict(NamedTuple):
    """What a check found; equal on all ranks."""

    check: str
    passed: bool
    detail: str
    broken: bool = False  # The ranks are out of step; nothing collective can follow.


def diagnose(world: World, check: str, folder: Path, timeout: float) -> list[Verdict]:
    """Runs one check, or "all", until torch raises in one. timeout: seconds. Collective."""
    set_timeout(world, timeout)
    checks: dict[str, Callable[[World], tuple[str, str]]] = {"gathering": check_gathering, "club": check_club}
    checks |= {"data": check_data, "checkpoint": partial(check_checkpoint, folder=folder)}
    verdicts: list[Verdict] = []
    for name in checks if check == "all" else [check]:
        try:
            found = gather_objects(checks[name](world), world.group)
        except RuntimeError as error:
            first = str(error).strip().splitlines()[:1] or [type(error).__name__]
            return [*verdicts, Verdict(name, False, f"rank {world.rank}: {first[0]}", broken=True)]
        problems = [f"rank {rank}: {problem}" for rank, (problem, _) in enumerate(found) if problem]
        verdicts.append(Verdict(name, not problems, "; ".join(problems) or found[0][1]))
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts for people. Local."""
    return columns((each.check, "passed" if each.passed else "FAILED", each.detail) for each in verdicts)


# Each check returns what is wrong on this rank, or "", and what was looked at. Collective: every rank.


def check_gathering(world: World, gather: Callable[[Tensor, Any], Tensor] = all_gather_with_grad) -> tuple[str, str]:
    """Rows of all ranks arrive in order; their gradient is what all ranks ask of them."""
    total, share = _rows(world)
    whole = torch.arange(2.0 * total, dtype=torch.float64, device=world.device).view(-1, 2) + 1
    mine = whole[share].clone().requires_grad_()
    # Each rank asks something else of each row, so that a sum that lacks a rank, or has one twice, shows.
    asked = [whole.sin() * (rank + 1) for rank in range(world.size)]
    gathered = gather(mine, world.group)
    problem = _differs("what was gathered", gathered, whole)
    if not gathered.requires_grad:
        problem = problem or "what was gathered has no gradient"
    elif not problem:
        (found,) = torch.autograd.grad((gathered * asked[world.rank]).sum(), mine)
        problem = _differs("the gradient", found, torch.stack(asked).sum(0)[share])
    return problem, f"{total} rows of {world.size} ranks and their gradient"


def check_club(world: World, club: Callable[..., Any] = club_gaussian) -> tuple[str, str]:
    """CLUB over the ranks' shares equals CLUB of all samples on one process: value and gradients."""
    (total, share), width, generator = _rows(world), 3, torch.Generator().manual_seed(1)
    x, y, weights = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(world.device)
        for shape in [(total, width), (total, width), (2, width, width)]
    )
    true_y, true_weights = y.clone().requires_grad_(), weights.clone().requires_grad_()
    mu, logvar = x @ true_weights[0], (x @ true_weights[1]).tanh()
    # As it is defined (Cheng et al. 2020): all N x N pairs.
    log_q = -0.5 * ((true_y[None] - mu[:, None]) ** 2 * torch.exp(-logvar)[:, None] + logvar[:, None]).sum(-1)
    truth = log_q.diagonal().mean() - log_q.mean()
    truth_y, truth_weights = torch.autograd.grad(truth, [true_y, true_weights])

    my_y, my_weights = y[share].clone().requires_grad_(), weights.clone().requires_grad_()
    mu, logvar = x[share] @ my_weights[0], (x[share] @ my_weights[1]).tanh()
    result = club(mu, logvar, my_y, reduce_sum=sum_reducer(world.group), world_size=world.size)
    grad_y, grad_weights = torch.autograd.grad(result.loss, [my_y, my_weights])
    # As DDP does: gradients of parameters are averaged over ranks.
    averaged, _ = reduce_sum_count(grad_weights / world.size, 0.0, world.group)
    problem = (
        _differs("the value", result.value, truth.detach())
        or _differs("the gradient of parameters", averaged, truth_weights)
        or _differs("the gradient of features", grad_y / world.size, truth_y[share])
    )
    return problem, f"{total} samples on {world.size} ranks as on one process: value, both gradients"


def check_data(world: World, sampler: Callable[..., Any] = PlannedBatches) -> tuple[str, str]:
    """Shares of an epoch are disjoint, cover the data, and change from epoch to epoch."""
    plan, problem = Plan.make(samples=103, world_size=world.size, batch_size=4, accumulation=2, epochs=3), ""
    found = list(sampler(plan, world.rank, seed=1))
    epochs = [torch.cat([each.index for each in found if each.epoch == epoch]) for epoch in range(3)]
    seen = torch.stack([torch.bincount(epoch, minlength=plan.samples) for epoch in epochs])
    everywhere, _ = reduce_sum_count(seen.to(world.device), 0.0, world.group)
    again = int((everywhere - 1).clamp(min=0).sum()) - 3 * plan.padded
    if missing := int((everywhere == 0).sum()):
        problem = f"{missing} samples of 3 epochs are on no rank"
    elif again:
        problem = f"{again} samples of 3 epochs are on more than one rank, or seen again"
    elif any(torch.equal(epochs[0], epoch) for epoch in epochs[1:]):
        problem = "two epochs have the same order"
    return problem, f"{plan.samples} samples: disjoint, complete, another order in each epoch"


def check_checkpoint(
    world: World, folder: Path, save: Callable[[dict[str, Any], Path], object] = checkpoint.save
) -> tuple[str, str]:
    """What rank zero writes is read by all, whole."""
    weights, problem, start = torch.arange(100_000, dtype=torch.float32).sin(), "", time.perf_counter()
    path = folder / broadcast_object(f".doctor-{secrets.token_hex(4)}", world.group) / "weights.pt"
    made = not folder.exists()
    if world.is_main:
        try:
            for version in range(2):  # the second one replaces the first
                save({"weights": weights * version}, path)
        except OSError as error:
            problem = f"{folder} cannot be written: {error.strerror or error}"
    seconds = time.perf_counter() - start
    if not broadcast_object(problem, world.group):
        try:
            if not torch.equal(checkpoint.load(path)["weights"], weights):
                problem = f"{path} has other weights than were written"
        except checkpoint.CheckpointError as error:
            problem = f"{error}; this machine may have another file system there"
    gather_objects(None, world.group)  # all have read
    if world.is_main:
        shutil.rmtree(path.parent, ignore_errors=True)
        with suppress(OSError):  # somebody else may have written there meanwhile
            folder.rmdir() if made else None
    return problem, f"{folder}: written in {seconds * 1e3:.0f} ms, read by all ranks"


def _rows(world: World) -> tuple[int, slice]:
    """How many rows all ranks have, and which are this one's."""
    sizes = [SIZES[rank % len(SIZES)] for rank in range(world.size)]
    return sum(sizes), slice(sum(sizes[: world.rank]), sum(sizes[: world.rank + 1]))


def _differs(what: str, found: Tensor, expected: Tensor) -> str:
    """What is wrong with ``found``, or nothing: more than the order of summation in float64."""
    if found.shape != expected.shape:
        return f"{what} has shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if not found.numel():
        return ""
    error = float((found - expected).detach().abs().max() / expected.abs().max().clamp(min=1e-30))
    return "" if error <= 1e-9 else f"{what} differs by {error:.2g} (relative) from one process"
