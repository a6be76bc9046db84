"""Variables of NCCL that will not do what was meant by them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from reference_trainer.rendezvous import suspects


def lines(*names: str, backend: str = "nccl") -> list[str]:
    return list(suspects(dict.fromkeys([*names, "PATH", "GLOO_SOCKET_IFNAME"], "1"), backend))


def test_what_is_read_is_not_told() -> None:
    assert lines("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT") == []


@pytest.mark.parametrize("name", ["NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING"])
def test_a_name_that_was_changed_is_told_with_the_new_one(name: str) -> None:
    assert lines(name) == [f"{name} is called TORCH_{name} since torch 2.2; set that one"]


def test_a_timeout_that_nobody_reads_is_told_with_the_setting() -> None:
    (line,) = lines("NCCL_TIMEOUT")
    assert line.endswith("the time-out is dist.train_timeout")


def test_under_gloo_nccls_debugging_is_without_effect() -> None:
    assert lines("NCCL_DEBUG", backend="gloo") == ["NCCL_DEBUG: without effect, for the backend is gloo"]
