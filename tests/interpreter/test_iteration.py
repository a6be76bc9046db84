"""What a loop draws from: a loader, whatever is wrapped round it, and not what was drawn from one."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.findings import Span
from validate_ddp.interpreter.iteration import element, loaders
from validate_ddp.interpreter.training import Loader
from validate_ddp.interpreter.values import Opaque, Site

SPAN = Span(1, 0, 1, 1)
LOADER = Loader(Site("train.py", SPAN, SPAN, ""))


def test_a_loop_over_an_unknown_wrapper_draws_from_the_loader_in_it() -> None:
    assert loaders((LOADER,)) == [LOADER]
    assert loaders((Opaque("prefetch()", (LOADER,)),)) == [LOADER]


def test_a_loop_over_what_was_drawn_is_no_loop_over_the_loader() -> None:
    assert loaders(element((LOADER,))) == []
    assert loaders(element((Opaque("prefetch()", (LOADER,)),))) == []


HOOKS = """
import torch
import torch.distributed as dist

class Hook:
    def after(self):
        {on_all}

class Saver:
    def after(self):
        {on_zero}

dist.init_process_group("gloo")
hooks = [Hook()]
if dist.get_rank() == 0:
    hooks.append(Saver())
writers = [Saver()] if dist.get_rank() == 0 else []
for hook in {drawn}:
    hook.after()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("drawn", ["hooks", "writers", "[each for each in writers]"])
def test_what_rank_zero_alone_has_in_a_list_is_drawn_on_rank_zero_alone(drawn: str, lint: Any) -> None:
    saves = HOOKS.format(on_all="pass", on_zero='torch.save({}, "a.pt")', drawn=drawn)
    assert lint(saves).of("DDP502") == []
    waits = HOOKS.format(on_all="dist.barrier()", on_zero="dist.all_reduce(torch.ones(1))", drawn=drawn)
    (finding,) = lint(waits).of("DDP401")
    assert "all_reduce" in finding.message


OWN = """
import os
import torch
import torch.distributed as dist
from typing import Protocol, TypeVar
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

T = TypeVar("T")


class Source(Protocol[T]):
    def __iter__(self):
        raise NotImplementedError


class Prefetcher(Source[T]):
    def __init__(self, data):
        self.loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=True))

{iterates}


class Batches(Source[T]):
    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        for batch in self.inner:
            yield batch["x"], batch["y"]
{more}

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(torch.nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = Batches(Prefetcher(range(64)))
for epoch in range(10):
    if hasattr(batches, "set_epoch"):
        batches.set_epoch(epoch)
    for step, (x, y) in {drawn}:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""
YIELDS = """
    def __iter__(self):
        for batch in self.loader:
            yield batch
"""
GIVES_ITSELF = """
    def __iter__(self):
        self.drawn = iter(self.loader)
        return self

    def __next__(self):
        return next(self.drawn)
"""
HANDS_ON = """
    def __iter__(self):
        return iter(self.loader)
"""
SETS = """
    def set_epoch(self, epoch):
        self.inner.loader.sampler.set_epoch(epoch)
"""
MAKES_UP = """
    def __getattr__(self, name):
        return getattr(self.inner.loader.sampler, name)
"""


@pytest.mark.parametrize("iterates", [YIELDS, GIVES_ITSELF, HANDS_ON])
@pytest.mark.parametrize("drawn", ["enumerate(batches)", "zip(range(9), batches)"])
def test_a_loop_over_an_own_class_draws_from_the_loader_in_it(iterates: str, drawn: str, lint: Any) -> None:
    assert len(lint(OWN.format(iterates=iterates, more="", drawn=drawn)).of("DDP201")) == 1


@pytest.mark.parametrize("more", [SETS, MAKES_UP])
def test_hasattr_is_denied_only_of_a_class_that_has_no_such_method(more: str, lint: Any) -> None:
    assert lint(OWN.format(iterates=YIELDS, more=more, drawn="enumerate(batches)")).of("DDP201") == []


@pytest.mark.parametrize("base", ["Sized", "make_base()"])
def test_hasattr_may_hold_of_a_class_with_a_base_out_of_sight(base: str, lint: Any) -> None:
    script = OWN.format(iterates=YIELDS, more="", drawn="enumerate(batches)")
    script = script.replace("import os", "import os\nfrom elsewhere import Sized, make_base", 1)
    assert lint(script.replace("class Batches(Source[T])", f"class Batches({base})")).of("DDP201") == []


def test_an_own_iterator_that_gives_itself_for_ever_ends_the_walk(lint: Any) -> None:
    endless = "class Endless:\n    def __iter__(self):\n        for each in self:\n            yield each\n"
    assert lint(f"import torch.distributed as dist\n{endless}\nfor each in Endless():\n    print(each)\n") == []
