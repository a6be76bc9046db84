"""Variables of NCCL's that do not do what was meant by them are told; those that do are not."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from reference_trainer.rendezvous import nccl_names, suspects

GOOD = ["NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_P2P_DISABLE", "TORCH_NCCL_BLOCKING_WAIT"]


def lines(*names: str, backend: str = "nccl") -> list[str]:
    return list(suspects(dict.fromkeys([*names, "PATH", "GLOO_SOCKET_IFNAME"], "1"), backend))


def test_what_is_read_is_not_told() -> None:
    assert lines(*GOOD) == []


def test_what_nobody_means_to_be_read_is_not_told() -> None:
    assert lines("NCCL_VERSION", "NCCL_HOME", "NCCL_FASTRAK_NUM_FLOWS", backend="gloo") == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_SOKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_DEBUGG", "NCCL_DEBUG"),
        ("NCCL_SOCKET_IFACE_NAME", "NCCL_SOCKET_IFNAME"),
        ("TORCH_NCCL_BLOCKINGWAIT", "TORCH_NCCL_BLOCKING_WAIT"),
    ],
)
def test_a_name_that_is_not_read_is_told_with_the_one_that_is_near(name: str, meant: str) -> None:
    assert lines(name) == [f"{name} is no variable that NCCL or torch reads; did you mean {meant}?"]


def test_a_name_that_is_near_to_none_is_told_without() -> None:
    assert lines("NCCL_XYZZY") == ["NCCL_XYZZY is no variable that NCCL or torch reads"]


@pytest.mark.parametrize("name", ["NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING"])
def test_a_name_that_was_changed_is_told_with_the_new_one(name: str) -> None:
    assert lines(name) == [f"{name} is called TORCH_{name} since torch 2.2; set that one"]


def test_under_gloo_all_are_without_effect_in_one_line() -> None:
    (line,) = lines("NCCL_DEBUG", "NCCL_IB_HCA", "TORCH_NCCL_ASYNC_ERROR_HANDLING", backend="gloo")
    assert line == "NCCL_DEBUG, NCCL_IB_HCA: without effect, for the backend is gloo"


def test_the_names_of_the_installed_torch_are_known() -> None:
    found = find_spec("torch")
    header = Path(str(found and found.origin)).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    if not header.exists():
        pytest.skip("this torch has no headers")
    names = set(re.findall(r'"(TORCH_NCCL_[A-Z0-9_]+)"', header.read_text()))
    assert names and names <= {*nccl_names("TORCH_NCCL")}
