"""What every fact has, whatever its kind: its place, and the ranks, conditions, calls, loops and marks around it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from validate_ddp.interpreter.ranks import PARTIAL, Who, all_of
from validate_ddp.interpreter.values import Site

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python has it from 3.11 on, and only a type checker needs it

    def dataclass_transform(**_: object) -> object:
        return lambda cls: cls


class Loop(NamedTuple):
    """A loop around a fact.

    counts: it runs over numbers or for ever, as epochs and steps do, not over given items. once: it surely runs only
    once. serial: tells the activations of one loop apart.
    """

    site: Site
    target: str
    counts: bool
    once: bool
    serial: int = 0


class Guard(NamedTuple):
    """A condition around a fact: only ranks ``who`` pass; ``all`` for one that has nothing to do with the rank.

    depth: number of calls around the condition. exact: it depends on the rank and on nothing else.
    swallows: not a condition but a ``try`` with a handler that catches any error and goes on.
    every: of an unknown one, in which turns of a loop it holds (``turns``), where that is known.
    sure: which ranks pass is no guess from a name.
    apart: of an unknown one, whether ranks may differ about it: it hangs on more than options and counters.
    premised: it holds because several ranks run, which the walk takes for granted (``premise``).
    remains: no condition around it but one before it, by which the others have left the function or the turn.
    way: of one of several candidates (``candidates``), which of them this is, from 1 on.
    """

    who: Who
    site: Site
    depth: int = 0
    exact: bool = True
    swallows: bool = False
    every: str = ""
    sure: bool = True
    apart: bool = False
    premised: bool = False
    remains: bool = False
    way: int = 0


class Flag(Enum):
    """A mark of what surrounds a fact."""

    ACCUMULATE = "accumulate"
    """In ``with accelerator.accumulate(model)``."""
    ALONE = "alone"
    """Before any rank but one was started."""
    ANY_ERROR = "any_error"
    """In a handler that catches what one rank alone may meet."""
    CONDITIONAL = "conditional"
    """Behind a condition."""
    DATASET = "dataset"
    """In a method of a dataset, which a loader calls; not while the dataset is made, which every rank does."""
    GENERATOR = "generator"
    """In a generator, which runs as far as somebody asks it to."""
    HANDLER = "handler"
    """In a handler of errors."""
    IN_TURN = "in_turn"
    """In a context of the program's own by which one rank goes first and the others after it: `zero_first`."""
    JOIN = "join"
    """In ``Join`` or ``DDP.join``, where ranks may run out of batches before others."""
    LOCKED = "locked"
    """In a lock."""
    NO_GRAD = "no_grad"
    """Where no gradients are kept."""
    NO_SYNC = "no_sync"
    """In ``no_sync``, where DDP does not average gradients."""
    PERHAPS_NO_SYNC = "perhaps_no_sync"
    """Of ``model.no_sync() if accumulating else nullcontext()``."""
    PROCESS_FIRST = "process_first"
    """In ``main_process_first`` and the like: every rank, one before the others."""
    RUN_AGAIN = "run_again"
    """Ahead of where the first rank starts the others by running the script again: they do it too, all at once."""
    SHORTED = "shorted"
    """Behind another part of a condition: ``a and b``."""
    SPAWNED = "spawned"
    """In a process that the script starts itself."""
    TRIED = "tried"
    """Where it is caught that a name or an attribute is missing."""
    WORKER = "worker"
    """In the function that a loader's workers start with."""


def _field(*, kw_only: bool) -> Any:
    """Of what a type checker has to know more about a field than its type. Never called."""


@dataclass_transform(kw_only_default=True, field_specifiers=(_field,))
class _Declared:
    """A class whose annotations are what it is made with, each by its name."""

    __slots__ = ()


_F = TypeVar("_F", bound="Fact")


class Fact(_Declared):
    """Something that the program does. Each kind of it is a class in ``facts``, whose annotations are its roles.

    name: the function of the library that does it, without its module.
    who: the ranks that reach it, as ``ranks`` names them.
    guards: the conditions on the rank around it, outermost first.
    chain: the calls that lead to it from the entry, outermost first.
    loops: the loops around it, outermost first, those around its callers included.
    flags: marks of its surroundings.
    order: how many facts were recorded before it.
    scope: the names at the place, as they are at the end of the walk; None for a fact that was moved.

    Made with its roles alone; all but them is known once the walk has recorded it. A class names behind ``untold``
    those of its roles that are for rules only: whoever asks how a finding was derived does not hear of them.
    """

    __slots__ = ("chain", "flags", "guards", "loops", "name", "order", "scope", "site", "who")

    if TYPE_CHECKING:
        name: str = _field(kw_only=False)
    roles: ClassVar[frozenset[str]] = frozenset()
    told: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, untold: str = "") -> None:
        own, apart = frozenset(cls.__annotations__), frozenset(untold.split())
        if not apart <= own:
            raise TypeError(f"no role of {cls.__name__}: {', '.join(sorted(apart - own))}")
        cls.roles = cls.roles | own
        cls.told = cls.told | (own - apart)

    def __init__(self, name: str, **roles: Any) -> None:
        if not roles.keys() <= self.roles:
            raise TypeError(f"no role of {type(self).__name__}: {', '.join(sorted(roles.keys() - self.roles))}")
        self.name = name
        self.__dict__.update(roles)
        self.site: Site
        self.who: Who
        self.guards: tuple[Guard, ...]
        self.chain: tuple[Site, ...]
        self.loops: tuple[Loop, ...]
        self.flags: frozenset[Flag]
        self.order: int
        self.scope: Any = None

    @property
    def given(self) -> dict[str, Any]:
        """The roles that it was recorded with, in that order, and what plays them."""
        return self.__dict__

    def moved(self: _F, site: Site) -> _F:
        """The same fact, told of another place."""
        moved = type(self)(self.name, **self.given)
        moved.site, moved.order, moved.scope = site, self.order, None
        moved.who, moved.guards, moved.flags = self.who, self.guards, self.flags
        moved.chain, moved.loops = self.chain, self.loops
        return moved

    @property
    def split(self) -> Guard | None:
        """The outermost condition that surely keeps ranks away from the fact."""
        return next((guard for guard in self.guards if guard.who in PARTIAL), None)

    @property
    def hangs_on_unknown(self) -> bool:
        """Whether a condition around it cannot be decided: nothing to do with the rank, or who passes is open."""
        return any(guard.who in ("all", "unclear") and not guard.exact for guard in self.guards)

    @property
    def is_guessed(self) -> bool:
        """Whether it is left to some ranks only as far as the name of something unknown says so."""
        return self.who in PARTIAL and all_of(guard.who for guard in self.guards if guard.sure) not in PARTIAL

    @property
    def divides(self) -> Guard | None:
        """The outermost condition around it, or way out ahead of it, about which the ranks may differ."""
        return next((guard for guard in self.guards if guard.apart), None)

    @property
    def is_open(self) -> bool:
        """Whether it also hangs on a condition of unknown truth in a function called under the split."""
        split = self.split
        return split is not None and any(guard.depth > split.depth and not guard.exact for guard in self.guards)

    @property
    def under_split(self) -> Site:
        """Where the ranks that are let through go on to the fact: the call under the outermost condition, or itself."""
        guard = self.split
        return self.chain[guard.depth] if guard is not None and guard.depth < len(self.chain) else self.site

    def same_fork(self, other: Fact) -> bool:
        """Whether the two are kept apart in one and the same activation of a function."""
        mine, its = self.split, other.split
        if mine is None or its is None or mine.depth != its.depth:
            return False
        return self.chain[: mine.depth] == other.chain[: its.depth]

    @property
    def in_epoch_loop(self) -> bool:
        """Whether a counting loop that runs more than once lies around it."""
        return any(loop.counts and not loop.once for loop in self.loops)
