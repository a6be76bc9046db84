"""The objects of the libraries that train, one class a kind: data, models, optimizers, process groups, files."""

from __future__ import annotations

from typing import ClassVar

from validate_ddp.interpreter.objects import Asked, Holder, Object, Options, part
from validate_ddp.interpreter.values import Const, Resource, Site, Value, carried_by

DEALT: Value = (Const("dealt"),)
"""Of a loader whose batches Lightning deals out: nothing else about it is changed."""


class Loader(Object):
    """A ``DataLoader`` of torch or one of its kin.

    open: not all of its arguments are in sight. derived: of a class of the program, or picked by a rank. prepared: by
    Accelerate, Fabric or DeepSpeed, which deal its batches out. drop_last: where it leaves the last batch out.
    """

    __slots__ = ()
    phrase = "the DataLoader"
    dataset: Value = part()
    batch_size: Value = part()
    shuffle: Value = part()
    sampler: Value = part()
    batch_sampler: Value = part()
    collate_fn: Value = part()
    worker_init_fn: Value = part()
    generator: Value = part()
    open: Value = part()
    derived: Value = part()
    prepared: Value = part()
    drop_last: Value = part()
    num_workers: Value = part()


class Sampler(Object):
    """A ``DistributedSampler``.

    conditional: made in one branch of a conditional expression. own_order: of a class of the program that draws an
    order by itself. asked_for: the call of the function that made it. even: it may leave samples out, so that all ranks
    have as many, or is not torch's.
    """

    __slots__ = ()
    phrase = "the DistributedSampler"
    dataset: Value = part()
    shuffle: Value = part()
    conditional: Value = part()
    own_order: Value = part()
    asked_for: tuple[Asked, ...] = part()
    derived: Value = part()
    even: Value = part()


class PlainSampler(Object):
    """A sampler that gives every rank all of the data."""

    __slots__ = ()
    phrase = "a sampler that does not split"
    dataset: Value = part()
    derived: Value = part()


class BatchSampler(Object):
    """A ``BatchSampler`` of torch: what its batches are drawn from decides."""

    __slots__ = ()
    phrase = "the batch sampler"
    sampler: Value = part()
    drop_last: Value = part()


class Subset(Object):
    """A ``Subset`` of a data set."""

    __slots__ = ()
    phrase = "a subset"
    dataset: Value = part()
    indices: Value = part()


class RNG(Object):
    """A ``torch.Generator``: its seeds, and where the last one is set."""

    __slots__ = ()
    phrase = "a random number generator"
    seed: Value = part()
    at: tuple[Asked, ...] = part()


class Shell(Object):
    """What a library puts around a model (and Accelerate around other things): ``inner`` lies in it.

    called: what facts of wrapping it and of running it call it.
    """

    __slots__ = ()
    called: ClassVar[str]
    inner: Value = part()


class Prepared(Shell):
    """What ``prepare`` of Accelerate, or ``setup`` of Fabric, made of something that is no known model or loader."""

    __slots__ = ()
    called = "prepared"
    phrase = "what Accelerate prepared"


class Wrapper(Shell):
    """A wrapper that is surely one around a model, which it stands for in a distributed launch."""

    __slots__ = ()
    flavour: Value = part()
    device_ids: Value = part()
    device_id: Value = part()
    find_unused_parameters: Value = part()
    broadcast_buffers: Value = part()
    sharding_strategy: Value = part()

    def wrapped(self) -> Value:
        return self.inner


class DDP(Wrapper):
    """``DistributedDataParallel``, of torch or apex, made by the script or by Accelerate."""

    __slots__ = ()
    called = "ddp"
    phrase = "the DistributedDataParallel wrapper"


class DP(Wrapper):
    """``DataParallel``, which is of one process."""

    __slots__ = ()
    called = "dp"
    phrase = "the DataParallel wrapper"


class FSDP(Wrapper):
    """``FullyShardedDataParallel``, torch's or fairscale's."""

    __slots__ = ()
    called = "fsdp"
    phrase = "the FullyShardedDataParallel wrapper"


class Engine(Wrapper):
    """What ``deepspeed.initialize`` makes of a model."""

    __slots__ = ()
    called = "engine"
    phrase = "the DeepSpeed engine"


class WrapperOptions(Holder):
    """The ``DistributedDataParallelKwargs`` of Accelerate, by keyword."""

    __slots__ = ()


class Launcher(Object):
    """An object by which a script is made to run on several ranks: ``called`` is what facts call it.

    split: its loaders may cut batches up instead of dealing them out. own_schedule: it was told when to step
    schedulers. accumulating: over how many turns. precision: how it was told to compute, as "fp16". single: it runs one
    process. sharded: it was told to use DeepSpeed or FSDP. unseen: it prepared what is not in sight. wrapping: the
    options with which it wraps models. Hooks lie in its fields by the name of the method they went to.
    """

    __slots__ = ()
    called: ClassVar[str]
    split: Value = part()
    own_schedule: Value = part()
    accumulating: Value = part()
    precision: Value = part()
    single: Value = part()
    sharded: Value = part()
    unseen: Value = part()
    wrapping: tuple[WrapperOptions, ...] = part()


class Accelerator(Launcher):
    """The ``Accelerator`` of Accelerate, or one of its states."""

    __slots__ = ()
    called = "accelerator"
    phrase = "the Accelerator"


class Fabric(Launcher):
    """The ``Fabric`` of Lightning."""

    __slots__ = ()
    called = "fabric"
    phrase = "the Fabric"


class Layer(Object):
    """A layer of ``torch.nn``, carried by the unknown module that it makes.

    called: the name of its class. order: the number of facts before it. parts: what it was given and holds.
    """

    __slots__ = ("called", "order")

    def __init__(self, site: Site, called: str, order: int) -> None:
        super().__init__(site)
        self.called = called
        self.order = order

    parts: Value = part()


class Optimizer(Object):
    """An optimizer, made by the script."""

    __slots__ = ()
    parameters: Value = part()


class Scheduler(Object):
    """A schedule of the learning rate. prepared: by Accelerate. stepped: how often its ``step`` is called."""

    __slots__ = ()
    prepared: Value = part()
    stepped: Value = part()


class Device(Object):
    """A ``torch.device``: its index, or its name where that is all."""

    __slots__ = ()
    phrase = "the device"
    index: Value = part()


class State(Object):
    """What ``state_dict()`` gives, ``of`` a model, an optimizer or whatever has one. plain: a prefix was taken off."""

    __slots__ = ()
    of: Value = part()
    plain: Value = part()

    def carried(self, seen: set[int]) -> Value:
        return (self, *carried_by(self.of, seen))


class StateOptions(Holder):
    """The ``StateDictOptions`` of ``torch.distributed.checkpoint``, by keyword."""

    __slots__ = ()
    full_state_dict: Value = part()


class Loaded(Object):
    """What ``torch.load`` gives. named: how often the name it got is read. consumed: how often it goes into a model."""

    __slots__ = ()
    phrase = "what was loaded"
    path: Value = part()
    named: Value = part()
    consumed: Value = part()


class File(Object):
    """An open file."""

    __slots__ = ()
    phrase = "the file opened"
    path: Value = part()
    mode: Value = part()


class Buffer(Object):
    """A file in memory."""

    __slots__ = ()
    phrase = "the buffer in memory"


class Handler(Object):
    """A handler of ``logging``. quiet: ranks other than the first log errors only."""

    __slots__ = ()
    quiet: Value = part()


class Writer(Object):
    """A writer of events for TensorBoard. used: how often every rank writes to it. at: where it first does."""

    __slots__ = ()
    phrase = "the event writer"
    path: Value = part()
    used: Value = part()
    at: tuple[Asked, ...] = part()


class FileCheckpointer(Object):
    """A ``Checkpointer`` of fvcore. writes: whether a rank that saves writes a file."""

    __slots__ = ()
    phrase = "the checkpointer"
    model: Value = part()
    folder: Value = part()
    writes: Value = part()


class Group(Object):
    """A process group other than the default one."""

    __slots__ = ()
    phrase = "the group"
    ranks: Value = part()
    dimension: Value = part()


class Mesh(Object):
    """A device mesh, or some of its dimensions. dimension: which one. whole: made of all ranks. shape: as given."""

    __slots__ = ()
    phrase = "the device mesh"
    dimension: Value = part()
    shape: Value = part()
    whole: Value = part()


class Host(Resource):
    """What a library makes of an object of the program whose methods its own loop calls, or the loop itself.

    Only what its rows declare is of the library: the rest is of the program's class. of: the program's object.
    """

    __slots__ = ()


class Trainer(Host, Object):
    """The ``Trainer`` of transformers, or one of trl. several: it is meant to be started on several ranks, or is.

    hosting: its loop runs. callbacks: that it was given.
    """

    __slots__ = ()
    phrase = "the Trainer"
    of: Value = part()
    args: Value = part()
    several: Value = part()
    hosting: Value = part()
    callbacks: Value = part()
    metrics: Value = part()


class TrainingArguments(Host, Options):
    """The options of a ``Trainer``, by name. several: whatever starts the script says on how many ranks it runs."""

    __slots__ = ("several",)

    def __init__(self, site: Site, options: dict[str, Value], several: bool) -> None:
        super().__init__(site, options)
        self.several = several


class TrainerState(Host, Object):
    """What a ``Trainer`` tells its callbacks of how far it is."""

    __slots__ = ()


class LightningTrainer(Host, Object):
    """The ``Trainer`` of Lightning. several: it starts more ranks than one. spawns: from ``fit`` on, not before.

    dealing: it gives loaders samplers that split. hosting: its loop runs.
    """

    __slots__ = ()
    phrase = "the Trainer"
    of: Value = part()
    several: Value = part()
    spawns: Value = part()
    dealing: Value = part()
    hosting: Value = part()
    callbacks: Value = part()


class LightningModule(Host, Object):
    """What Lightning makes of a ``LightningModule`` or a ``LightningDataModule`` of the program."""

    __slots__ = ()
    of: Value = part()
    trainer: Value = part()
