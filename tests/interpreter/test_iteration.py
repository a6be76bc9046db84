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
