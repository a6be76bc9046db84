"""What a loop draws from: a loader, whatever is wrapped round it, and not what was drawn from one."""

from __future__ import annotations

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
