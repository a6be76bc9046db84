"""What a check does grows with the script and not faster: the work is counted, as time would tell of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(torch.nn.Linear(1, 1))
"""
MATCHED = """\
def wait{n}(rank):
    if rank == 0:
        dist.barrier()
    else:
        dist.barrier()
wait{n}(rank)
"""
SAVED = 'torch.save(model.module.state_dict(), "weights{n}")\n'
SAVED_IN_FUNCTIONS = """\
def save{n}(path):
    torch.save(model.module.state_dict(), path)
    print(path)
save{n}("weights{n}")
"""
DECIDED = "validate_ddp.rules.ddp401_collective_on_some_ranks.complementary"
LOOKED_AT = ("validate_ddp.rules.guarding.children", "validate_ddp.source.traversal.children")


class Counter:
    """Counts the calls of functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
        self.calls = 0
        for name in names:
            monkeypatch.setattr(name, self._counted(name))

    def _counted(self, name: str) -> Callable[..., Any]:
        from importlib import import_module

        module, _, last = name.rpartition(".")
        real = getattr(import_module(module), last)

        def counted(*args: Any) -> Any:
            self.calls += 1
            return real(*args)

        return counted


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, lint: Any) -> Iterator[Callable[..., int]]:
    def of(names: tuple[str, ...], part: str, times: int, found: int) -> int:
        with monkeypatch.context() as patched:
            counter = Counter(patched, names)
            script = HEAD + "".join(part.format(n=number) for number in range(times))
            assert len(lint(script).but("DDP101")) == found
            return counter.calls

    yield of


def test_collectives_are_matched_without_a_look_at_all_others(work: Any) -> None:
    few, many = (work((DECIDED,), MATCHED, times, found=0) for times in (20, 80))
    assert 0 < many <= 4 * few


@pytest.mark.parametrize("part", [SAVED, SAVED_IN_FUNCTIONS])
def test_what_is_asked_of_the_whole_file_is_not_asked_for_each_write(work: Any, part: str) -> None:
    few, many = (work(LOOKED_AT, part, times, found=times) for times in (20, 80))
    assert 0 < many <= 5 * few
