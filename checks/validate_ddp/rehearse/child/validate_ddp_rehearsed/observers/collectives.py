"""Collectives that the script calls: an event before each, with what ranks must agree on, and one after it."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, NamedTuple

from .. import protocol
from ..patching import Args, Kwargs, around, everywhere

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from ..session import Session

_TENSOR = {
    "all_reduce": "tensor", "broadcast": "tensor", "reduce": "tensor", "all_gather": "tensor", "gather": "tensor",
    "scatter": "tensor", "all_gather_into_tensor": "input_tensor", "all_gather_single": "input_tensor",
    "reduce_scatter": "output", "reduce_scatter_tensor": "output", "reduce_scatter_single": "output",
    "all_to_all": "", "all_to_all_single": "input", "barrier": "", "monitored_barrier": "", "all_gather_object": "",
    "gather_object": "", "broadcast_object_list": "", "scatter_object_list": "", "all_reduce_coalesced": "",
    "all_gather_coalesced": "", "new_group": "", "new_subgroups": "", "new_subgroups_by_enumeration": "",
}  # fmt: skip
_POINT_TO_POINT = ("send", "recv", "batch_isend_irecv")
"""They pair off some ranks, so they have no place in the sequence that all ranks share; but a rank can wait in them."""

_FEW = 8
"""Numbers of a tensor that are told."""


def install(session: Session) -> None:
    """Local. Events ``collective`` and ``done``."""
    dist = session.torch.distributed
    if not dist.is_available():
        return
    calls = Calls(session)
    session.calls = calls
    session.before_backward.append(lambda root: calls.forget())
    replaced = {}
    for name in (*_TENSOR, *_POINT_TO_POINT):
        original = getattr(dist, name, None)
        if original is None:
            continue
        parameters = list(inspect.signature(inspect.unwrap(original)).parameters)
        around(dist, name, session.fault, functools.partial(calls.begin, name, parameters), calls.end, calls.failed)
        replaced[id(original)] = getattr(dist, name)
    everywhere(replaced)
    _joins(session, calls)
    around(
        dist.Work, "wait", session.fault,
        lambda args, kwargs: calls.open(calls.made("wait", sequence=False), None), calls.end, calls.failed,
    )  # fmt: skip


def _joins(session: Session, calls: Calls) -> None:
    """Event ``join``. At its end a rank that has run out stands in for what the others still call."""
    joins = sys.modules.get("torch.distributed.algorithms.join")
    if joins is None:
        return

    def entered(args: Args, kwargs: Kwargs) -> None:
        calls.joined += 1
        session.emit(protocol.Join(entered=True))

    def leaving(args: Args, kwargs: Kwargs) -> None:
        calls.depth += 1

    def left(token: None, result: object) -> None:
        calls.depth -= 1
        calls.joined -= 1
        session.emit(protocol.Join(entered=False))

    around(joins.Join, "__enter__", session.fault, entered)
    around(joins.Join, "__exit__", session.fault, leaving, left, left)


class Opened(NamedTuple):
    """A call that has begun. number: None where it is part of another one, and not told. values: what a function of
    c10d was given, by parameter."""

    number: int | None
    op: str
    values: Kwargs | None = None
    given: Sequence[float] | None = None


class Calls:
    """The calls of this process that are under way. Only the outermost of nested calls is told."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.c10d = session.torch.distributed.distributed_c10d
        self.depth = 0
        self.forwards = 0
        """Levels of ``depth`` that are forwards of wrappers: what the script's own model calls there is told too."""
        self.sent = 0
        """Calls so far that are not FSDP's, which gathers what is one rank's by design."""
        self.reduced: set[tuple[int, int]] = set()
        """Address and length of each tensor that was reduced over all ranks since the last backward began."""
        self.left: dict[tuple[int, int], int | None] = {}
        """The digests of gradients as the last backward has left them, by the same."""
        self.as_left: set[tuple[int, int]] = set()
        """Those of them that were reduced as they were."""
        self.joined = 0
        """Whether this is within ``Join``: ranks that have run out take part without a call of the script's."""
        self.given: Sequence[float] | None = None
        """What the collective that was last told of was given, where it was a few numbers."""
        self.listeners: list[Callable[[str, Kwargs], None]] = []
        """Called with (name, values by parameter) after a collective has succeeded."""

    def begin(self, name: str, parameters: list[str], args: Args, kwargs: Kwargs) -> Opened:
        """Before a function of c10d."""
        values = {**dict(zip(parameters, args, strict=False)), **kwargs}
        if self._is_nested():
            self.depth += 1
            return Opened(None, name)
        group = values.get("group")
        call = self.made(name)
        tensor: Tensor = values.get(_TENSOR.get(name, "")) if _TENSOR.get(name) else None
        if tensor is None and name.startswith(("all_gather_", "reduce_scatter_")):
            tensor = values.get("input_tensor", values.get("input"))
        if hasattr(tensor, "dtype"):
            call.dtype, call.shape = str(tensor.dtype)[6:], list(tensor.shape)
            numbers = _numbers(tensor)
            if numbers is not None:
                call.given = numbers
        if name.startswith("all_to_all"):
            named = self.group_name(group)
            call.splits = _splits(values, len(named[1]) if named else 1)
        if "op" in values or "op" in parameters:
            call.reduce = _op(values.get("op"))
        for root in ("src", "dst", "group_src", "group_dst"):
            if values.get(root) is not None:
                call.root = values[root]
        if values.get("async_op"):
            call.asynchronous = True
        if name == "new_group" and isinstance(values.get("ranks"), (list, tuple, range)):
            call.members = list(values["ranks"])
        call.sequence = name not in _POINT_TO_POINT and not values.get("use_local_synchronization")
        opened = self.open(call, group)._replace(values=values, given=call.given)
        if name == "all_reduce" and len(call.ranks) == self.c10d.get_world_size() and hasattr(tensor, "data_ptr"):
            place = tensor.data_ptr(), tensor.numel()
            self.reduced.add(place)
            if place in self.left and self.session.digests([tensor]) == [self.left[place]]:
                self.as_left.add(place)
        return opened

    def forget(self) -> None:
        """Gradients are about to be made anew."""
        self.reduced.clear()
        self.left.clear()
        self.as_left.clear()

    def made(self, op: str, sequence: bool = True) -> protocol.Collective:
        """A call, which gets its number and its site when it is told."""
        return protocol.Collective(n=0, site=protocol.NOWHERE, op=op, sequence=sequence)

    def _is_nested(self) -> bool:
        """Whether it is part of a call that has been told of."""
        return self.depth > self.forwards or bool(self.forwards and self.session.sites.called_by_torch())

    def open(self, call: protocol.Collective, group: ProcessGroup | None) -> Opened:
        """Tells of a call that may wait for other ranks."""
        named = None if self._is_nested() else self.group_name(group)
        self.depth += 1
        if named is None:
            return Opened(None, call.op)
        call.n, call.site = self.session.next_call(), self.session.here()
        call.group, call.ranks = named
        self.sent += not self.session.sites.within("distributed/fsdp")
        call.sequence = call.sequence and not self.joined
        self.session.emit(call)
        return Opened(call.n, call.op)

    def end(self, token: Opened | None, result: object) -> None:
        told = token if token is not None and token.number is not None else None
        values = told.values if told is not None else None
        got = None
        if told is not None and values is not None and told.op == "all_reduce" and result is None:
            got = _numbers(values.get("tensor"))
        self._close(token, protocol.Done(n=0, got=got))
        if told is not None and values is not None:
            self.given = told.given
            for listener in self.listeners:
                listener(told.op, values)

    def failed(self, token: Opened | None, error: BaseException) -> None:
        self._close(token, protocol.Done(n=0, error=f"{type(error).__name__}: {error}"[:300]))

    def _close(self, token: Opened | None, done: protocol.Done) -> None:
        self.depth = max(0, self.depth - 1)
        self.session.waited = False
        if token is not None and token.number is not None:
            done.n = token.number
            self.session.emit(done)

    def group_name(self, group: ProcessGroup | None) -> tuple[str, list[int]] | None:
        """The group's name, equal on all of its ranks, and their numbers; None for one that this rank is not in."""
        if self.session.named is not None:
            return self.session.named(group)
        try:
            if group is None or group is self.c10d.GroupMember.WORLD:
                group = self.c10d._get_default_group()
            return str(self.c10d._get_process_group_name(group)), list(self.c10d.get_process_group_ranks(group))
        except (ValueError, KeyError, TypeError, RuntimeError, AttributeError):
            return None


def _splits(values: Kwargs, size: int) -> list[list[int]]:
    """Of an all-to-all among so many ranks: how much the rank takes from each, and sends to each."""
    if "output_tensor_list" in values:
        return [[each.numel() for each in values[name]] for name in ("output_tensor_list", "input_tensor_list")]
    found = []
    for side in ("output", "input"):
        rows = values[side].shape[0] if values[side].dim() else 1
        found.append(list(values.get(f"{side}_split_sizes") or [rows // size] * size))
    return found


def _numbers(tensor: Tensor) -> list[float] | None:
    """What a tensor of a few numbers holds: counts and metrics. None for others, and on a device, which would wait."""
    if type(tensor).__name__ not in ("Tensor", "Parameter") or tensor.numel() > _FEW or tensor.device.type != "cpu":
        return None
    if tensor.is_complex() or not tensor.numel() or str(tensor.layout) != "torch.strided":
        return None
    return list(tensor.detach().reshape(-1).tolist())


def _op(op: object) -> str:
    if op is None:
        return "SUM"
    return str(getattr(op, "op", op)).rpartition(".")[2]
