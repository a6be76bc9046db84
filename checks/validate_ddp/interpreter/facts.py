"""The kinds of facts that the walk records: one class a kind, and its roles as fields.

A role that is a ``Value`` is what may play it, empty where nothing does. Rules ask for ``program.facts(facts.Save)``.
"""

from __future__ import annotations

from typing import Literal

from validate_ddp.findings import Span
from validate_ddp.interpreter import marks, objects, training
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.facts_of_data import Draw as Draw
from validate_ddp.interpreter.facts_of_data import Order as Order
from validate_ddp.interpreter.facts_of_data import Preparation as Preparation
from validate_ddp.interpreter.facts_of_data import Preparing as Preparing
from validate_ddp.interpreter.facts_of_files import Load as Load
from validate_ddp.interpreter.facts_of_files import LoadState as LoadState
from validate_ddp.interpreter.facts_of_files import Read as Read
from validate_ddp.interpreter.facts_of_files import Role as Role
from validate_ddp.interpreter.facts_of_files import Save as Save
from validate_ddp.interpreter.facts_of_files import ShardedState as ShardedState
from validate_ddp.interpreter.ranks import Who
from validate_ddp.interpreter.values import Value

# The start.


class ProcessGroup(Fact, untold="deepspeed timeout_text one_node world_size_text rank_text"):
    """The process group is started (named ``init``), or destroyed (``destroy``)."""

    rank: Value = ()
    world_size: Value = ()
    backend: Value = ()
    deepspeed: bool = False
    """Started by ``deepspeed.init_distributed``."""
    timeout: Value = ()
    device_id: Value = ()
    timeout_text: str = ""
    """The argument as written, where that is a name, a field or a number; so are the other two."""
    one_node: bool = False
    """The ranks meet at an address that other machines cannot reach."""
    world_size_text: str = ""
    rank_text: str = ""


class WorldOfOne(Fact):
    """The script gives itself a world of one: ``os.environ.setdefault("WORLD_SIZE", "1")``; or starts a group of one,
    then named ``init``."""


class Variable(Fact):
    """A variable of the environment by which ranks find each other is set; named by it."""

    value: Value


class Launch(Fact, untold="launched"):
    """Something starts the ranks or stands for their launcher: spawn, Process, horovod, an Accelerator."""

    launcher: tuple[training.Launcher, ...] = ()
    """The Accelerator or Fabric."""
    nprocs: Value = ()
    launched: bool = False
    """Only launch files tell that there are several."""


class Device(Fact):
    """A device is chosen."""

    device: Value


class Option(Fact, untold="parser"):
    """An option of the command line that rules ask about is declared; named by where its value goes."""

    option: Value
    """The option as written."""
    default: Value
    required: Value
    parser: str
    """The name of the parser; empty for one without a name."""


# Data.


class Sampler(Fact):
    """A distributed sampler is made."""

    sampler: tuple[training.Sampler, ...]
    shuffle: Value
    num_replicas: Value
    rank: Value
    seed: Value = ()


class Loader(Fact):
    """A data loader is made."""

    loader: tuple[training.Loader, ...]
    dataset: Value = ()
    batch_size: Value = ()
    shuffle: Value = ()
    sampler: Value = ()
    batch_sampler: Value = ()
    collate_fn: Value = ()
    worker_init_fn: Value = ()
    generator: Value = ()
    open: Value = ()
    """There are arguments that are not written out: ``**options``."""


class Iterate(Fact, untold="serial open"):
    """A loader is iterated over; named ``for`` where a loop does it."""

    loader: tuple[training.Loader, ...]
    serial: int
    """The loop's serial, as ``Loop`` has it."""
    open: bool = False
    """It may go over something else, of which nothing is known."""


class EpochLoop(Fact, untold="body held"):
    """A counting loop in which names hold a loader or a sampler; named by its target."""

    body: Span
    """The first statement in it."""
    held: dict[str, Value]
    """What the names hold."""


class SetEpoch(Fact):
    """The epoch of a sampler is set."""

    target: Value
    """The sampler, or what holds it."""
    epoch: Value = ()


class Seed(Fact):
    """A random number generator is seeded."""

    seed: Value
    library: str
    """The library whose generator it is; ``generator`` for one of the script's own."""
    device_specific: Value = ()
    workers_apart: Value = ()
    """Whether the workers of loaders are seeded by rank all the same."""


class RandomState(Fact):
    """The state of a random number generator is put back."""

    state: Value


# The model.


class _Wrapping(Fact, untold="flavour sharding_strategy"):
    wrapper: tuple[training.Wrapper, ...]
    inner: Value
    """The model that is wrapped."""
    flavour: str = ""
    """Whose wrapper it is: torch or apex."""
    device_ids: Value = ()
    device_id: Value = ()
    find_unused_parameters: Value = ()
    broadcast_buffers: Value = ()
    sharding_strategy: Value = ()
    """Of FSDP."""
    process_group: Value = ()
    """Whose gradients are put together; not given, those of all ranks."""


class Wrap(_Wrapping):
    """A model is wrapped; named by the kind of wrapper: ddp, fsdp, dp, engine, prepare."""


class DataParallel(_Wrapping):
    """A model is wrapped by DataParallel, for one process and several devices."""


class Shard(Fact):
    """A model is sharded in place (FSDP2)."""

    model: Value
    mesh: Value = ()


class NoSync(Fact):
    """A model is told not to send gradients in the way of DDP: by ``no_sync``, or ``require_backward_grad_sync``."""

    model: Value


class Partition(Fact, untold="plan"):
    """A model is split by tensor or pipeline parallelism."""

    mesh: Value = ()
    plan: Value = ()
    """How its parts are split."""


class Rework(Fact):
    """Something is done to a wrapper that belongs before wrapping."""

    wrapper: tuple[training.Shell, ...]
    device: Value = ()


class Forward(Fact, untold="own"):
    """A model runs; named by the kind of its wrapper, ``module`` without one."""

    model: Value
    inputs: tuple[objects.Batch, ...]
    """The batches that go into it."""
    own: bool = False
    """Whether a rank went into what it is given, as into the part of a batch that all ranks have read."""


class PastWrapper(Fact):
    """A method of a model that is wrapped is called from outside, with gradients on."""

    model: Value


class Backward(Fact):
    """Gradients are computed; named ``engine`` where an engine does more than that, ``schedule`` where a pipeline's
    schedule does it, whose ranks may be parts of one model."""

    loss: Value
    launcher: tuple[training.Launcher, ...] = ()
    """The Accelerator or Fabric that was asked to."""


class Optimizer(Fact):
    """An optimizer is made."""

    optimizer: Value
    parameters: Value


class Step(Fact):
    """An optimizer steps."""

    optimizer: Value


class ZeroGrad(Fact, untold="receiver"):
    """Gradients are set to zero."""

    target: Value
    """The optimizer or the model."""
    receiver: str
    """The last name of what the method is called on."""


class Clip(Fact):
    """Gradients are clipped by their norm, by torch's function."""

    parameters: Value


class Mode(Fact):
    """A model is put into a mode: named ``train`` or ``eval``."""


# Ranks.


class Collective(Fact, untold="timeout_text dropped"):
    """A function that every rank of its group must call."""

    wrapper: Value = ()
    """Of the making of a wrapper, which is one too."""
    arguments: Value = ()
    launcher: tuple[training.Launcher, ...] = ()
    """The Accelerator or Fabric whose method it is."""
    function: Value = ()
    group: Value = ()
    device_ids: Value = ()
    timeout: Value = ()
    ranks: Value = ()
    """Of a new group."""
    timeout_text: str = ""
    """The argument as written, where that is a name, a field or a number."""
    dropped: Lost = ""


Lost = Literal["", "handle", "result"]
"""What a call that is a statement of its own loses: the handle to wait for, its result, or nothing."""


class GroupRank(Fact):
    """The rank within a group is asked for."""


class Gather(Fact):
    """A tensor is gathered whose gradient ends there."""

    result: tuple[objects.Gathered, ...]


class Absence(Fact, untold="said holder none whole sure"):
    """Something is taken from a value that some ranks lack; named by what is taken, else it is only read."""

    object: Value
    """The value on the ranks that have it."""
    said: str
    """What it is taken from, as written."""
    holder: Who
    """The ranks that have it."""
    none: bool
    """On the others it is None; else they have no such name."""
    whole: bool
    """It is all that the statement does."""
    sure: bool
    """Which ranks have it is no guess from a name."""


class Unapplied(Fact):
    """The result of a function of the program's own for autograd, which names this, is thrown away."""


class Beyond(Fact):
    """An attribute that only the model inside can have is taken from its wrapper; named by it."""

    wrapper: tuple[training.Shell, ...]


class Exit(Fact, untold="lacking words"):
    """Some ranks leave a loop, a function or the program, or (named ``skip``) leave a backward out."""

    subject: Value
    """What the condition asks to be finite, or to be there at all, where it is about that."""
    code: Value
    """The exit code of one that ends the program."""
    lacking: str = ""
    """Where the condition asks whether there is anything in it, "empty"; whether all of it is there, "incomplete"."""
    words: str = ""
    """The names in what the condition asks about, as written."""


# Numbers.


class Scheduler(Fact):
    """A learning rate schedule is made from a length."""

    steps: Value
    """The number of steps, or what else spans the schedule."""
    lengths: tuple[objects.Length, ...]
    scheduler: tuple[training.Scheduler, ...]


class ScheduleStep(Fact):
    """A schedule of the learning rate goes on by one step."""

    scheduler: tuple[training.Scheduler, ...]


class Division(Fact):
    """A number that a batch went into is divided by the number of ranks."""

    value: Value
    by: Value


class Report(Fact, untold="part"):
    """A number summed up over batches is reported, or the loss of one batch."""

    value: Value
    part: int
    """Tells several of one place apart."""


class Decision(Fact):
    """A condition hangs on a number summed up over batches."""

    value: Value


class RootedDecision(Fact):
    """A condition or (named ``step``) a schedule hangs on the result of a collective that one rank has."""

    result: tuple[marks.Rooted, ...]


class NoGrad(Fact):
    """Gradients are turned off in a loop."""


BY_NAME: dict[str, type[Fact]] = {
    f"facts.{name}": kind
    for name, kind in globals().copy().items()
    if isinstance(kind, type) and issubclass(kind, Fact) and kind is not Fact and name[0] != "_"
}
"""The kinds as a rule names the one that triggers it."""
