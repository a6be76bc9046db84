"""What the processes of a rehearsal tell the command: one class a kind of event, for both sides. Standard library only.

A new kind is one class with its fields; how it is written, read and refused follows from their annotations.
"""

from .bounds import Is, packed
from .calls import (
    Backward,
    Call,
    Collective,
    Ddp,
    Done,
    Forward,
    Gathered,
    Group,
    GroupCall,
    InnerForward,
    Join,
    Joining,
)  # fmt: skip
from .data import Batch, Draw, Iterated, Iteration, Loader, Sampler, Seed, SetEpoch, Split
from .event import KINDS, VERSION, Event, Timed, Unknown
from .files import Claim, Device, Load, Read, Renamed, Save, Unsaved, Write
from .launch import (
    Ended,
    Exit,
    Fault,
    Finish,
    Gone,
    Hang,
    Hello,
    NewSite,
    Shim,
    Spawn,
    Start,
    Stop,
    Stopped,
    Timeout,
    UncaughtException,
    Where,
)  # fmt: skip
from .partition import Partition, Reading, Sloped, Taped, Undivided
from .records import Record, as_json, bounds_of, wrong
from .restart import Difference, Kept, Moment, Randomness, Restart, Settings, Side
from .simulated import UNRUN, Assumed, Memory, Moved
from .steps import (
    Average,
    AveragedShards,
    Called,
    Changed,
    Clip,
    Divided,
    Grown,
    Model,
    Optimizer,
    Parameters,
    Parted,
    Piled,
    Rescaled,
    Rounded,
    Schedule,
    Scheduled,
    Sharded,
    Squares,
    Stale,
    State,
    Step,
    Unscale,
    Weighed,
    ZeroGrad,
)  # fmt: skip
from .values import NOWHERE, Frame, Name, Orders, Plan, Sampling, Site, Standing, Twins

__all__ = [
    "KINDS", "NOWHERE", "UNRUN", "VERSION", "Assumed", "Average", "AveragedShards", "Backward", "Batch", "Call",
    "Called", "Changed", "Claim", "Clip", "Collective", "Ddp", "Device", "Difference", "Divided", "Done", "Draw",
    "Ended", "Event", "Exit", "Fault", "Finish", "Forward", "Frame", "Gathered", "Gone", "Group", "GroupCall", "Grown",
    "Hang", "Hello", "InnerForward", "Is", "Iterated", "Iteration", "Join", "Joining", "Kept", "Load", "Loader",
    "Memory", "Model", "Moment", "Moved", "Name", "NewSite", "Optimizer", "Orders", "Parameters", "Parted", "Partition",
    "Piled", "Plan", "Randomness", "Read", "Reading", "Record", "Renamed", "Rescaled", "Restart", "Rounded", "Sampler",
    "Sampling", "Save", "Schedule", "Scheduled", "Seed", "SetEpoch", "Settings", "Sharded", "Shim", "Side", "Site",
    "Sloped", "Spawn", "Split", "Squares", "Stale", "Standing", "Start", "State", "Step", "Stop", "Stopped", "Taped",
    "Timed", "Timeout", "Twins", "UncaughtException", "Undivided", "Unknown", "Unsaved", "Unscale", "Weighed", "Where",
    "Write", "ZeroGrad",
    "as_json", "bounds_of", "packed", "wrong",
]  # fmt: skip
