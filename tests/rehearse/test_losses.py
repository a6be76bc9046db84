"""How much a target weighs in a backward is read from the gradient of its loss, however that was made and divided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from validate_ddp.rehearse.child.validate_ddp_rehearsed.observers import losses
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import NOWHERE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.runtime
F = torch.nn.functional
IGNORED = torch.tensor([1, -100, 0, 2, -100])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is emitted, as count and weight."""
    found: list[Any] = []

    def fault(where: str, error: BaseException) -> None:
        raise error

    for name in losses._FUNCTIONS:
        monkeypatch.setattr(F, name, getattr(F, name))  # what is patched now is put back
    emit = lambda event: found.append((event.count, event.weight))  # noqa: E731
    losses.install(SimpleNamespace(torch=torch, here=lambda: NOWHERE, emit=emit, fault=fault))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (lambda x: F.cross_entropy(x, IGNORED), 1 / 3),
        (lambda x: F.cross_entropy(x, IGNORED, reduction="sum") / 12, 1 / 12),
        (lambda x: F.cross_entropy(x, IGNORED, reduction="none").sum() * 2 / 8, 1 / 4),
        (lambda x: 5 * (F.cross_entropy(x, IGNORED.abs() % 3, reduction="none") * (IGNORED >= 0)).sum(), 5.0),
        (lambda x: (F.cross_entropy(x, IGNORED, reduction="none") * torch.arange(5)).sum(), None),
    ],
)
def test_what_a_target_weighs(told: list[Any], loss: Any, weight: float | None) -> None:
    scores = torch.randn(5, 3, requires_grad=True)
    loss(scores).backward()
    ((count, found),) = told
    assert found == (None if weight is None else pytest.approx(weight)) and count == (3 if weight else 2)


def test_a_loss_that_nothing_is_learned_from_is_not_told(told: list[Any]) -> None:
    with torch.no_grad():
        F.mse_loss(torch.zeros(3, requires_grad=True), torch.ones(3))
    assert told == []
