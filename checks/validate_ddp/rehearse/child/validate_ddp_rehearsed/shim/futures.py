"""The future of an asynchronous reduce-scatter, which NCCL has and gloo has not."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ..patching import Original, everywhere, patch

if TYPE_CHECKING:
    from torch.distributed import Work

    from ..session import Session

_WITHOUT = ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single")


def install(session: Session) -> None:
    """Local. Patches ``Work.get_future``, and what makes the work that it fails for."""
    dist = session.torch.distributed
    if not dist.is_available():
        return
    outputs: weakref.WeakKeyDictionary[Work, object] = weakref.WeakKeyDictionary()
    stubs: dict[int, object] = {}
    for name in _WITHOUT:
        original = getattr(dist, name, None)
        if original is not None:
            stubs[id(original)] = patch(dist, name, lambda function: _remembering(function, outputs))
    everywhere(stubs)
    patch(dist.Work, "get_future", lambda function: _get_future(function, outputs, session))


def _remembering(original: Original, outputs: weakref.WeakKeyDictionary[Work, object]) -> Original:
    def reduce_scatter(*args: object, **kwargs: object) -> object:
        work = original(*args, **kwargs)
        if work is not None:
            outputs[work] = args[0] if args else kwargs.get("output")
        return work

    return reduce_scatter


def _get_future(original: Original, outputs: weakref.WeakKeyDictionary[Work, object], session: Session) -> Original:
    def get_future(self: Work) -> object:
        try:
            return original(self)
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
        # Every rank that asks has launched the same calls before it: to wait here needs nothing that is still to come.
        session.note("the future of a reduce-scatter is ready as soon as it is asked for")
        self.wait()
        future = session.torch.futures.Future()
        future.set_result([outputs.get(self)])
        return future

    return get_future
