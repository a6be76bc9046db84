"""What a collective of a large world answers to the one rank that calls it: as if all had given what it gives."""

from __future__ import annotations

import inspect
import pickle
import weakref
import zlib
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Handed, Kwargs, Original, around, everywhere, patch
from .counted import flat, in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.distributed import GradBucket, Work
    from torch.futures import Future

    from ..session import Session
    from .assumed import Assuming
    from .memory import Memory
    from .world import World

_TENSORS = {
    "all_reduce": ("tensor", "tensor"), "all_reduce_coalesced": ("tensors", "tensors"), "reduce": ("tensor", "tensor"),
    "all_gather": ("tensor", "tensor_list"), "all_gather_into_tensor": ("input_tensor", "output_tensor"),
    "all_gather_single": ("input_tensor", "output_tensor"), "_all_gather_base": ("input_tensor", "output_tensor"),
    "gather": ("tensor", "gather_list"),
    "reduce_scatter": ("input_list", "output"), "reduce_scatter_tensor": ("input", "output"),
    "reduce_scatter_single": ("input", "output"), "_reduce_scatter_base": ("input", "output"),
    "broadcast": ("tensor", "tensor"), "scatter": ("scatter_list", "tensor"),
    "all_to_all": ("input_tensor_list", "output_tensor_list"), "all_to_all_single": ("input", "output"),
    "recv": ("tensor", "tensor"), "irecv": ("tensor", "tensor"),
}  # fmt: skip
"""By name, the parameters of what a rank gives and of what it gets."""
_OBJECTS = {
    "all_gather_object": "object_list", "gather_object": "object_gather_list", "broadcast_object_list": "object_list",
    "scatter_object_list": "scatter_object_output_list",
}  # fmt: skip


class Answers:
    """The functions of torch.distributed that answer a rank of which there is no other."""

    def __init__(self, session: Session, world: World, assuming: Assuming, memory: Memory) -> None:
        self.session, self.world, self.assuming, self.memory = session, world, assuming, memory
        self.torch, self.dist = session.torch, session.torch.distributed
        self.outputs: weakref.WeakKeyDictionary[Work, list[Tensor]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Local. Patches them, the wrapper's reduction of gradients, and what only a real group can do."""
        stubs: dict[int, object] = {}
        makers: dict[str, Callable[[str, Original], Original]] = {
            **dict.fromkeys(_TENSORS, self._tensors), **dict.fromkeys(_OBJECTS, self._objects),
            "monitored_barrier": lambda name, original: lambda *args, **kwargs: None,
        }  # fmt: skip
        for name, make in makers.items():
            original = getattr(self.dist, name, None)
            if original is not None:
                patch(self.dist, name, lambda original, name=name, make=make: make(name, original))  # type: ignore[misc]
                stubs[id(original)] = getattr(self.dist, name)
        everywhere(stubs)
        patch(self.dist.Work, "get_future", self._future)
        wrapper = self.torch.nn.parallel.DistributedDataParallel
        around(wrapper, "forward", self.session.fault, lambda args, kwargs: self._hooked(args[0]))

    def _tensors(self, name: str, original: Original) -> Original:
        names = list(inspect.signature(inspect.unwrap(original)).parameters)
        gives, gets = _TENSORS[name]

        def collective(*args: object, **kwargs: object) -> object:
            given = dict(zip(names, args, strict=False)) | kwargs
            size = self.world.size(given.get("group"))
            told = list(flat((given.get(gives), given.get(gets))))
            work = original(*args, **kwargs)
            if size > 1 and all(type(each).__name__ in ("Tensor", "Parameter") for each in told):
                outputs = list(flat(given.get(gets)))
                with self.torch.no_grad():
                    known = self._answered(name, given, outputs, size)
                self.assuming.mark(outputs, name if known else name + protocol.UNRUN)
            if isinstance(work, self.dist.Work):
                self.outputs[work] = list(flat(given.get(gets)))
            return work

        return collective

    def _answered(self, name: str, given: Kwargs, outputs: list[Tensor], size: int) -> bool:
        """Writes what ``fake`` leaves out; False where all ranks get what only another one knows."""
        if name == "broadcast":
            tensor = outputs[0]
            known, held = self.world.broadcast(given.get("group"), self._source(given), tensor.detach().clone())
            if known and held.shape == tensor.shape:
                tensor.copy_(held)
            return known
        if "reduce" in name:
            given_op = given.get("op", "SUM")
            reduce = str(getattr(given_op, "op", given_op)).rpartition(".")[2]
            for each in outputs:
                if reduce == "SUM" and each.dtype is not self.torch.bool:
                    each.mul_(size)
                elif reduce == "PRODUCT":
                    each.pow_(size)
        elif name.startswith("all_to_all"):
            inputs = list(flat(given.get(_TENSORS[name][0])))
            for mine, each in zip(inputs, outputs, strict=False):
                each.copy_(mine) if mine.shape == each.shape else each.zero_()
        elif name in ("scatter", "recv", "irecv"):
            for each in outputs:
                each.zero_()
            return False
        return True

    def _source(self, given: Kwargs) -> int:
        """The rank that a call comes from, by its number in the world."""
        if given.get("group_src") is not None and given.get("group") is not None:
            return int(self.dist.get_global_rank(given["group"], given["group_src"]))
        return int(given.get("src") or given.get("group_src") or 0)

    def _objects(self, name: str, original: Original) -> Original:
        names = list(inspect.signature(inspect.unwrap(original)).parameters)

        def collective(*args: object, **kwargs: object) -> object:
            given: Kwargs = dict(zip(names, args, strict=False)) | kwargs
            found = self.world.group(given.get("group"))
            if found is None or found[2] == 1:
                return original(*args, **kwargs)
            into: Handed = given.get(_OBJECTS[name])
            known = True
            rank = self.dist.get_rank()
            source = self._source(given)
            if name == "broadcast_object_list":
                known, held = self.world.broadcast(given.get("group"), source, list(into))
                into[:] = held if known else into
            elif name == "scatter_object_list":
                mine = given.get("scatter_object_input_list") if rank == source else None
                into[0] = mine[self.dist.get_rank(given.get("group"))] if mine else None
                known = bool(mine)
            elif into is not None:
                data = pickle.dumps(given.get("obj", given.get("object")))
                into[:] = [pickle.loads(data) for _ in into]  # noqa: S301 - what was dumped a line above
            self._objects_moved(name, given, found[2])
            if into is not None:
                self.assuming.decided(name if known else name + protocol.UNRUN, _digest(into))
            return None

        return collective

    def _objects_moved(self, name: str, given: Kwargs, size: int) -> None:
        """PyTorch sends how long an object is, then the object."""
        several = given.get("object_list") if name == "broadcast_object_list" else None
        if name == "scatter_object_list":
            several = given.get("scatter_object_input_list") or given.get("scatter_object_output_list")
        objects = several if several is not None else [given.get("obj", given.get("object"))]
        lengths = [_length(each) for each in objects] or [0]
        group = given.get("group")
        if name == "broadcast_object_list":
            calls = [("broadcast", 8 * len(lengths)), ("broadcast", sum(lengths))]
        elif name == "scatter_object_list":
            parts = size if self.dist.get_rank() == self._source(given) else 1
            calls = [("broadcast", 8), ("scatter", parts * max(lengths)), ("scatter", parts * 8)]
        elif name == "gather_object":
            parts = size if given.get("object_gather_list") is not None else 1
            calls = [("all_gather", 8 * size), ("gather", parts * lengths[0])]
        else:
            calls = [("all_gather", 8 * size), ("all_gather", size * lengths[0])]
        for kind, count in calls:
            self.world.moved(kind, count, group)

    def _future(self, original: Original) -> Original:
        def get_future(work: Work) -> object:
            if work not in self.outputs:
                return original(work)
            future = self.torch.futures.Future()
            future.set_result(self.outputs[work])
            return future

        return get_future

    def _hooked(self, wrapper: Handed) -> None:
        """Before a forward: the reducer of a wrapper without a hook of the script's own asks its group for what the
        fake one has not."""
        if getattr(wrapper, "_comm_hooks", None):
            return

        group, weakly = wrapper.process_group, weakref.ref(wrapper)  # the hook keeps nothing that keeps it

        def own(state: object, bucket: GradBucket) -> Future[Tensor]:
            future: Future[Tensor] = self.torch.futures.Future()
            buffer = bucket.buffer()
            self.world.moved("all_reduce", in_bytes(buffer), group)
            self.memory.bucket(weakly(), bucket.index(), buffer)
            grads = [each.grad for each in bucket.parameters() if each.grad is not None]
            self.assuming.mark([buffer, *grads], "backward")
            future.set_result(buffer)
            return future

        own.__annotations__ = {"bucket": self.dist.GradBucket, "return": self.torch.futures.Future[self.torch.Tensor]}
        wrapper.register_comm_hook(None, own)


def _length(thing: object) -> int:
    try:
        return len(pickle.dumps(thing))
    except Exception:  # noqa: BLE001 - an object of the script that cannot be pickled: real ranks fail of it
        return 0


def _digest(given: Handed) -> str:
    try:
        return f"{zlib.crc32(pickle.dumps(given)):x}"
    except Exception:  # noqa: BLE001 - an object of the script that cannot be pickled
        return "not known"
