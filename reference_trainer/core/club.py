"""CLUB, an upper bound of mutual information, over the global batch: pure functions, in time and memory O(N d).

CLUB (Cheng et al. 2020, arXiv 2006.12013) is the mean of log q(y_i|x_i) over the pairs minus its mean over all N x N
combinations. For an exponential family, log q(y|x) = <eta(x), T(y)> - A(eta(x)) + h(y): A and h cancel, and what is
left is a covariance, so no N x N table is needed. With w = exp(-logvar), c the mean of y, e = w (mu - c), t = y - c:

    CLUB = mean_i sum_k (e - mean e)(t - mean t) - 1/2 (w - mean w)(t^2 - mean t^2)

The means are over all ranks and detached. The gradient is exact all the same: each factor is multiplied by one whose
sum is zero, so the derivative through a mean vanishes. Hence nothing is sent in the backward pass, and the features
themselves are never sent. Each rank's loss is its own sum times W / N, because DDP averages over the W ranks.

Centred twice: c is rounded, at a mean of 1e4 in float32 to about 1e-3, and the second means take out what it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import ConfigError

ReduceSum = Callable[[Tensor], Tensor]
"""Sum of a detached tensor over all ranks, as a new tensor (`collectives.sum_reducer`)."""

Pairs = tuple[Tensor, Tensor | None, Tensor]
"""mu, logvar (None: unit variance) and y of some samples, (n, d) each."""


class ClubError(ConfigError):
    """CLUB cannot be computed on this; the message is one line: what, where, what to do."""


class ClubResult(NamedTuple):
    """CLUB of a global batch."""

    loss: Tensor
    """Scalar with graph, this rank's share: its mean over ranks, which DDP takes, is CLUB. Differs between ranks."""
    value: Tensor
    """Detached scalar, CLUB in nats, the same on every rank: log this one."""


@dataclass(frozen=True)
class Moments:
    """Means over all samples of all ranks (and micro-batches), detached."""

    count: Tensor
    """N, a scalar."""
    center: Tensor
    """c: the mean of y, as rounded, (d,)."""
    y: Tensor
    """Mean of t = y - c, (d,): what the rounding of c has left."""
    eta: Tensor
    """Mean of e = w (mu - c), (d,)."""
    square: Tensor | None
    """Mean of t^2, (d,); None for unit variance."""
    precision: Tensor | None
    """Mean of w, (d,); None for unit variance."""


def club_gaussian(
    mu: Tensor, logvar: Tensor | None, y: Tensor, *, reduce_sum: ReduceSum | None = None, world_size: int = 1
) -> ClubResult:
    """CLUB of q(y|x) = N(mu(x), exp(logvar(x))) over the global batch. Collective where ``reduce_sum`` is.

    mu, logvar, y: this rank's samples, (n, d) each; n may differ between ranks and be 0. logvar None: unit variance,
    for which CLUB is the trace of Cov(mu, y). reduce_sum, world_size: of the group that DDP averages over; without
    them, of this process alone. Computed in at least float32, whatever autocast says; float64 stays. Raises
    ``ClubError``: shapes that differ, fewer than 2 samples on all ranks together.
    """
    moments = moments_gaussian([(mu, logvar, y)], reduce_sum)
    return _result(covariance_sum_gaussian(mu, logvar, y, moments), moments.count, reduce_sum, world_size)


def moments_gaussian(batches: Sequence[Pairs], reduce_sum: ReduceSum | None = None) -> Moments:
    """Global means of the union of this rank's ``batches`` and all others'. Collective where ``reduce_sum`` is.

    Two reductions, of d + 1 and 4 d numbers (2 d with unit variance). Nothing here has a gradient. For accumulation:
    first this on the union, then ``covariance_sum_gaussian`` on each micro-batch is exact, where the mean of the
    micro-batches' CLUBs is not.
    """
    with torch.no_grad():
        batches = [_checked(*batch) for batch in batches]
        count, center = _count_and_mean([y for _, _, y in batches], reduce_sum)
        sums = torch.stack([_sums(mu, logvar, y, center) for mu, logvar, y in batches]).sum(0)
        means = (sums if reduce_sum is None else reduce_sum(sums)) / count
    if batches[0][1] is None:
        return Moments(count, center, means[0], means[1], None, None)
    return Moments(count, center, *means)


def covariance_sum_gaussian(mu: Tensor, logvar: Tensor | None, y: Tensor, moments: Moments) -> Tensor:
    """This rank's sum over samples, a scalar with graph; CLUB is the total over all ranks, divided by N. Local.

    The loss for DDP is this times W / N (and a micro-batch's too, if ``moments`` are of the union).
    """
    mu, logvar, y = _checked(mu, logvar, y)
    with _no_autocast(y):
        t = y - moments.center
        e = mu - moments.center
        if logvar is None:
            return ((e - moments.eta) * (t - moments.y)).sum()
        w = torch.exp(-logvar)
        spread = (w - moments.precision) * (t.square() - moments.square)
        return ((w * e - moments.eta) * (t - moments.y)).sub(spread, alpha=0.5).sum()


def club_categorical(
    logits: Tensor, labels: Tensor, *, reduce_sum: ReduceSum | None = None, world_size: int = 1
) -> ClubResult:
    """CLUB of q(label|x) = softmax(logits(x)) over the global batch. Collective where ``reduce_sum`` is.

    It is mean_i logits_i[label_i] - <mean logits, class frequencies>. logits: (n, classes); labels: (n,) int64. Two
    reductions, of 2 x classes + 1 and of classes numbers. The rest as for ``club_gaussian``.
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise ClubError(
            f"logits are {tuple(logits.shape)} and labels {tuple(labels.shape)}; expected (n, classes) and (n,)"
        )
    logits = logits.to(_compute_type(logits))
    with _no_autocast(logits):
        with torch.no_grad():
            ones = torch.zeros_like(logits).scatter_(1, labels[:, None], 1.0)
            count, means = _count_and_mean([torch.cat([logits, ones], 1)], reduce_sum)
            center, frequency = means.chunk(2)
            rest = (logits - center).sum(0)
            rest = (rest if reduce_sum is None else reduce_sum(rest)) / count
        part = ((logits - center - rest) * (ones - frequency)).sum()
        return _result(part, count, reduce_sum, world_size)


def _result(part: Tensor, count: Tensor, reduce_sum: ReduceSum | None, world_size: int) -> ClubResult:
    """From a rank's sum to its loss and the global value."""
    total = part.detach()
    return ClubResult(part * (world_size / count), (total if reduce_sum is None else reduce_sum(total)) / count)


def _checked(mu: Tensor, logvar: Tensor | None, y: Tensor) -> Pairs:
    """All of one shape (n, d) and one type, at least float32."""
    if y.dim() != 2 or mu.shape != y.shape or (logvar is not None and logvar.shape != y.shape):
        between = "" if logvar is None else f", logvar {tuple(logvar.shape)}"
        raise ClubError(f"mu is {tuple(mu.shape)}{between} and y {tuple(y.shape)}; expected the same (n, d) for all")
    kind = _compute_type(mu, y) if logvar is None else _compute_type(mu, logvar, y)
    return mu.to(kind), None if logvar is None else logvar.to(kind), y.to(kind)


def _compute_type(*tensors: Tensor) -> torch.dtype:
    kind = torch.float32
    for tensor in tensors:
        kind = torch.promote_types(kind, tensor.dtype)
    return kind


def _no_autocast(tensor: Tensor) -> torch.autocast:
    """In bfloat16 the value would be off by 2e-3."""
    return torch.autocast(tensor.device.type, enabled=False)


def _count_and_mean(parts: Sequence[Tensor], reduce_sum: ReduceSum | None) -> tuple[Tensor, Tensor]:
    """N, a scalar, and the mean over all rows of all ranks, (d,). Raises ``ClubError`` for an N under 2."""
    rows = sum(len(part) for part in parts)
    sums = torch.stack([part.sum(0) for part in parts]).sum(0)
    packed = torch.cat([sums.new_full((1,), rows), sums])
    if reduce_sum is not None:
        packed = reduce_sum(packed)
    # Every rank looks if all together have fewer than 2, and no rank with 2 has to wait for the device.
    if rows < 2 and packed[0] < 2:
        raise ClubError(
            f"CLUB compares samples with each other and needs a global batch of 2 or more, "
            f"but all ranks together have {int(packed[0])}; raise the batch size, or drop the last batch"
        )
    return packed[0], packed[1:] / packed[0]


def _sums(mu: Tensor, logvar: Tensor | None, y: Tensor, center: Tensor) -> Tensor:
    """Sums of t and e, and with a variance of t^2 and w: (2, d) or (4, d), in the order of ``Moments``."""
    t, e = y - center, mu - center
    if logvar is None:
        return torch.stack([t.sum(0), e.sum(0)])
    w = torch.exp(-logvar)
    return torch.stack([t.sum(0), (w * e).sum(0), t.square().sum(0), w.sum(0)])
