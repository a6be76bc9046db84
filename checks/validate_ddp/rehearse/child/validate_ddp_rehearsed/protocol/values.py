"""What events hold besides numbers and texts: call sites, samplers, names of parameters, the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple, TypedDict

from .bounds import (
    PATH,
    RANK,
    TEXT,
    Count,
    Flag,
    Is,
    Number,
    Size,
    Text,
    each,
    integer,
    is_flag,
    is_path,
    is_plain,
    is_text,
    list_of,
)  # fmt: skip
from .records import Record


class Frame(NamedTuple):
    """A line of the script, or of a library that it calls."""

    path: str
    line: int
    function: str
    library: bool


class Site:
    """Where the script called. frames: innermost first. via: the function of torch that it called, where that is not
    the one observed. number: that of the stack in its process, which stands for it in JSON. Not to be changed."""

    __slots__ = ("_hash", "_lines", "_own", "frames", "number", "via")

    def __init__(self, frames: tuple[Frame, ...] = (), via: str = "", number: int = 0) -> None:
        self.frames, self.via, self.number = frames, via, number
        self._own: Frame | None = None
        self._lines: tuple[tuple[str, int], ...] | None = None
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Site) and self.frames == other.frames and self.via == other.via)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.frames, self.via))
        return self._hash

    def __repr__(self) -> str:
        return f"Site({self.frames!r}, {self.via!r}, {self.number})"

    @property
    def own(self) -> Frame:
        """The innermost line that is no library's."""
        if self._own is None:
            inner = self.frames[0] if self.frames else _NOWHERE
            self._own = next((frame for frame in self.frames if not frame.library), inner)
        return self._own

    @property
    def place(self) -> tuple[str, int]:
        """Path and line of ``own``."""
        return self.own.path, self.own.line

    @property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """Path and line of every frame that is no library's."""
        if self._lines is None:
            self._lines = tuple((frame.path, frame.line) for frame in self.frames if not frame.library)
        return self._lines

    def in_json(self) -> int:
        return self.number


_NOWHERE = Frame("", 0, "", True)
NOWHERE = Site()


class Name(NamedTuple):
    """A parameter under DDP: the number of its wrapper, and its name in the module."""

    ddp: int
    name: str


class Twins(NamedTuple):
    """Two dictionaries of one file with the same names but for ``module.`` in front: where they lie, whether it is in
    front in each, and how many names both have."""

    key: str
    wrapped: bool
    former: str
    before: bool
    both: int


class Sampling(Record):
    """What a sampler is set to when an iteration begins. known: whether its class is torch's or Accelerate's, so that
    what it does with the rest is known. drawn: its own number of samples. Without what it has not."""

    kind: Text
    known: Flag
    seed: Count | None = None
    epoch: Count | None = None
    replicas: Count | None = None
    rank: Count | None = None
    shuffle: Flag | None = None
    drop_last: Flag | None = None
    replacement: Flag | None = None
    drawn: Count | None = None

    @property
    def shares(self) -> int:
        """Into how many parts it divides the data."""
        return 1 if self.replicas is None else self.replicas


class Standing(Record):
    """What a rank was doing when a run was ended. ended, code: whether its process had gone, and how. waiting: the
    number ``n`` of the call that it was in."""

    ended: Flag
    code: Count | None
    waiting: Count | None = None


class Plan(TypedDict, total=False):
    """How the run was launched; the fields of ``validate_ddp.rehearse.plan.Plan``, as far as they are read."""

    script: Annotated[list[str], list_of(PATH)]
    arguments: Annotated[list[str], list_of(TEXT)]
    nproc_per_node: Size
    nnodes: Size
    launcher: Text
    max_steps: Count | None
    stop_after: Count | None
    timeout: Number
    hang: Number
    ranks: Annotated[list[int], list_of(RANK)]
    link: Annotated[Sequence[tuple[str, float]], Is("a list of names with a speed each", each(_speed))]


class Orders(TypedDict, total=False):
    """What the command asks of the processes, in VALIDATE_DDP_REHEARSAL. socket: for events. dumps: its folder.
    devices: of a node. observers: where not all are wanted. sources: a folder of ours too."""

    socket: str
    dumps: str
    sources: str
    devices: int
    max_steps: int | None
    stop_after: int | None
    shim: bool
    observers: list[str]
    timeout: float


def _speed(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return value[0] in ("intra", "inter") and isinstance(value[1], int | float) and 0 < value[1] < 1e12


def _frame(value: object) -> bool:
    if type(value) is not list or len(value) != 4:
        return False
    return is_path(value[0]) and integer()(value[1]) and is_text(value[2]) and type(value[3]) is bool


def _name(value: object) -> bool:
    return value is None or (type(value) is list and len(value) == 2 and integer()(value[0]) and is_text(value[1]))


def _twins(value: object) -> bool:
    return type(value) is list and len(value) == 5 and all(map(is_text, value[:1] + value[2:3])) and is_plain(value)


def _sampling(value: object) -> bool:
    if type(value) is not dict or not (is_text(value.get("kind")) and type(value.get("known")) is bool):
        return False
    return all(isinstance(state, int) for name, state in value.items() if name != "kind")


def _standings(value: object) -> bool:
    if type(value) is not dict:
        return False
    return all(
        rank.isascii()
        and rank.isdecimal()
        and len(rank) < 7
        and type(state) is dict
        and {"ended", "code"} <= state.keys()
        and all(map(is_flag, state.values()))
        for rank, state in value.items()
    )


def _read(kind: type[Record], held: dict[str, object]) -> Record:
    return kind(**{name: value for name, value in held.items() if name in kind.fields})


def _frames(rows: list[list[object]]) -> tuple[Frame, ...]:
    return tuple(Frame(*row) for row in rows)  # type: ignore[arg-type]


Stack = Annotated[tuple[Frame, ...], Is("a stack", each(_frame), _frames)]
Line = Annotated[Frame, Is("a line", _frame, lambda row: Frame(*row))]
CallSite = Annotated[Site, Is("a call site", integer())]
Names = Annotated[
    list[Name | None],
    Is("a list of names", each(_name), lambda rows: [None if row is None else Name(*row) for row in rows]),
]
TwinList = Annotated[list[Twins], Is("a list of pairs", each(_twins), lambda rows: [Twins(*row) for row in rows])]
Samplings = Annotated[
    Sequence[Sampling],
    Is("a list with the state of each sampler", each(_sampling), lambda rows: [_read(Sampling, row) for row in rows]),
]
Standings = Annotated[
    dict[int, Standing],
    Is(
        "an object with the state of each rank", _standings,
        lambda held: {int(rank): _read(Standing, state) for rank, state in held.items()},
    ),
]  # fmt: skip
PlanFields = Annotated[Plan, Is("an object", lambda value: type(value) is dict and is_plain(value))]
