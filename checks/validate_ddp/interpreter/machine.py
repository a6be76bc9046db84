"""The walk's state: frames, branches, guards, loops and facts. What statements and calls mean is said elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts, ranks, remaining
from validate_ddp.interpreter.counts import Counts
from validate_ddp.interpreter.fact import Fact, Flag, Guard, Loop
from validate_ddp.interpreter.ranks import Who
from validate_ddp.interpreter.sameness import told_apart
from validate_ddp.interpreter.values import (
    Class,
    Const,
    Function,
    Instance,
    Lazy,
    Site,
    Value,
    join,
    on_ranks,
)
from validate_ddp.source.syntax import Assign, Expression, Extent, Statement

if TYPE_CHECKING:
    from validate_ddp.interpreter.registry import Registry
    from validate_ddp.interpreter.started import Started

MISSING: Value = (Const("missing"),)
"""A name that an alternative leaves unbound; never seen outside merges."""
BIRTH = ""
"""What a journal notes an object under that is made in a branch: no field is called so."""

MAIN: Value = (Const("__main__"),)
"""The ``__name__`` of the script itself."""

_NO_SPAN = Span(1, 0, 1, 0)
_TURNING = (facts.Backward, facts.Step, facts.ScheduleStep, facts.ZeroGrad)
"""Facts for which it matters in which loop, and in which of its turns, they happen."""
_MATCHED = (facts.Collective, facts.Forward)


class Scope:
    """Names and the scope around them; a module's scope has no parent."""

    __slots__ = ("names", "outer", "parent")

    def __init__(self, names: dict[str, Value], parent: Scope | None) -> None:
        self.names = names
        self.parent = parent
        self.outer: set[str] = set()


def let_go(made: list[Scope | Class | Instance]) -> None:
    """Take apart what holds itself, a scope with functions in it that hold the scope, once nobody asks any more: all
    of a walk is then freed at once, and no collection need go through what stays."""
    for each in made:
        if isinstance(each, Scope):
            each.names.clear()
        elif isinstance(each, Class):
            each.members.clear()
        else:
            each.fields.clear()
    made.clear()


class Frame:
    """One activation of a function, or of a module's top level."""

    __slots__ = ("call", "function", "module", "returned", "scope", "statement", "who", "yielded")

    def __init__(
        self, module: Any, scope: Scope, function: Function | None, call: Site | None, who: Who = "all"
    ) -> None:
        self.module = module
        self.scope = scope
        self.function = function
        self.returned: Value = ()
        self.yielded: Value = ()
        self.statement: Extent = _NO_SPAN
        self.call = call
        self.who = who


class Outcome(NamedTuple):
    """How a piece of code ends: ``ends`` says that nothing follows it (return, raise, exit, loop, or empty);
    ``rest``, on which ranks what follows still runs, ``until`` how far that reaches (return, raise or loop), and
    ``sure``, whether which ranks those are is no guess from a name."""

    ends: str = ""
    rest: Who = "all"
    until: str = "return"
    sure: bool = True


RUNS_ON = Outcome()
LEAVES = ("return", "raise", "exit")
"""Ends after which nothing more of a function runs, unless a handler takes up a raise."""


class Pushed:
    """A context that has some items on a stack. A class, as generators for it cost a tenth of the walk."""

    __slots__ = ("count", "items", "stack")

    def __init__(self, stack: list[Any], items: tuple[Any, ...]) -> None:
        self.stack = stack
        self.items = items
        self.count = 0

    def __enter__(self) -> None:
        self.count = len(self.stack)
        self.stack.extend(self.items)

    def __exit__(self, *error: object) -> None:
        del self.stack[self.count :]


MOST_AGAIN = 60_000
"""Statements walked more than once, some three seconds of them. What a program holds is walked once in any case: a
limit on all statements loses what stands behind the 60,000th line of a generated file."""
MOST_ONCE = 400_000
"""Different statements of one program; above that it is a table of data with a suffix of .py."""


class BudgetSpent(Exception):
    """The program is larger than the walk is willing to go through; the facts so far stand."""


class Stop(NamedTuple):
    """Where something of the program was not looked at.

    why: in words. site: the statement. above: the statement of the entry's top level that led there.
    """

    why: str
    site: Site
    above: Site


class Machine:
    """Walks a program. One machine for each entry."""

    def __init__(self, library: Any, registry: Registry) -> None:
        self.library = library
        self.registry = registry
        self.facts: list[Fact] = []
        self.frames: list[Frame] = []
        self.epoch_setters: frozenset[str] = frozenset()
        """Methods of the program's own samplers that set their epoch."""
        self.guards: list[Guard] = []
        self.loops: list[Loop] = []
        self.flags: list[Flag] = []
        self.journals: list[dict[tuple[int, str], tuple[dict[str, Value], str, Value]]] = []
        self.walked: dict[int, int] = {}
        self.results: dict[int, Value] = {}
        self.fruitless: dict[tuple[Any, ...], int] = {}
        self.budget = MOST_AGAIN
        self.unseen: set[tuple[str, str]] = set()
        """Functions, by file and name, of which a call was not walked any more: see ``worth.most_walks``."""
        self.stops: list[Stop] = []
        self.closed = 0
        """Facts that were known before the outermost branch or loop which is being walked: those within it may yet be
        put right by what follows there."""
        self._opened = 0
        self._met: set[int] = set()
        self.environment: dict[str, Value] = {}
        self.settings: dict[str, Value] = {}
        """What the program has put into configurations it was given that ranks may differ about, by the field."""
        self.counts = Counts()
        self.presumed: dict[str, bool] = {}
        """What is so in a distributed launch of the flags that the start of the process group hangs on, by name."""
        self.agreed: set[str] = set()
        """Flags about which no ranks differ, since how the process group is started hangs on them, by name."""
        self.printing: Any = None
        """Which ranks print, where the program has put a function of its own in its place: see ``quiet``."""
        self.wrapped: list[Any] = []
        """What was wrapped: calls of it are forwards past the wrapper, where its class is not known too."""
        self.late: dict[int, Any] = {}
        """By the identity of something unknown: how it was made, see ``late``."""
        self.due: set[int] = set()
        """Functions to be walked whatever they hold, since what they make is handed a model."""
        self.unbound: dict[tuple[int, str], dict[str, Value]] = {}
        self.evaluate: Callable[[Expression], Value]
        self.walk: Callable[[list[Statement]], Outcome]
        self.started: Started
        self.call: Callable[..., Value]
        self.activations = 0
        self.gathers: list[Any] = []
        self.differs = False
        """Whether a part of the condition being tested, undecided, hangs on more than options and counters."""
        self.premised = False
        """Whether a part of it is decided by the premise, that there are several ranks."""
        self.making = False
        self.defining = False
        self.registering = False
        """Whether decorators are being carried out that put definitions into registries: all functions are walked."""
        self.has_registered = False
        self.made: list[Scope | Class | Instance] = []
        """What may hold itself: see ``let_go``."""

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def who(self) -> Who:
        """The ranks that run the code being walked."""
        return ranks.all_of(guard.who for guard in self.guards)

    @property
    def sure(self) -> bool:
        """Whether the code being walked is kept to some ranks, if it is, by more than the name of something unknown."""
        return all(guard.sure for guard in self.guards) or (
            ranks.all_of(guard.who for guard in self.guards if guard.sure) == self.who
        )

    def spend(self, statement: Statement) -> None:
        """Pay for the walk of a statement. Raises BudgetSpent."""
        key = id(statement)
        if key not in self._met:
            self._met.add(key)
            if len(self._met) <= MOST_ONCE:
                return
            why = f"the program has more than {MOST_ONCE:,} statements"
        else:
            self.budget -= 1
            if self.budget >= 0:
                return
            why = "its functions call each other in too many ways to follow them all"
        self.stop(f"{why}: what comes after is not looked at", statement.span)
        raise BudgetSpent

    def stop(self, why: str, span: Extent | None = None) -> None:
        """Note that from here on, or from here down, nothing is looked at; the first place counts."""
        if not self.stops:
            entry = self.frames[0]
            statement = Span(*entry.statement)
            self.stops.append(Stop(why, self.site(span), Site(entry.module.path, statement, statement, "")))

    @property
    def is_open(self) -> bool:
        """Whether the walk is within a branch or loop, or has stopped there."""
        return self._opened > 0

    def open(self) -> None:
        """A branch or loop begins, of which ``close`` tells the end; a walk that stops leaves it open."""
        if not self._opened:
            self.closed = len(self.facts)
        self._opened += 1

    def close(self) -> None:
        self._opened -= 1

    def site(self, span: Extent | None = None) -> Site:
        frame = self.frame
        statement = Span(*frame.statement)
        place = statement if span is None else Span(*span)
        return Site(frame.module.path, place, statement, frame.function.name if frame.function else "")

    def record(self, fact: Fact, site: Site) -> None:
        """Note a fact at ``site`` with the guards, calls and loops around it; the same fact is kept once."""
        kind = type(fact)
        who = self.who
        around: tuple[Any, ...] = (who, len(self.loops) > 0, Flag.SPAWNED in self.flags)
        if kind in (facts.Backward, facts.Forward):
            around = (*around, Flag.NO_SYNC in self.flags, Flag.JOIN in self.flags)
        if kind in _TURNING and self.loops:
            around = (*around, self.loops[-1].serial, any(guard.every for guard in self.guards))
        apart = next((each for each in self.guards if each.who in ranks.PARTIAL), None) if kind in _MATCHED else None
        if apart is not None:  # at each call anew, as what the other ranks do instead may be
            around = (*around, apart.site, *[each.call for each in self.frames if each.call is not None][: apart.depth])
        identity = (kind, fact.name, site.path, site.span, *around, *map(told_apart, fact.given.values()))
        if who == "none" or not self.counts.meet(identity, fact, Flag.ALONE in self.flags):
            return
        order = self.facts[-1].order + 1 if self.facts else 0
        fact.site, fact.who, fact.order, fact.scope = site, who, order, self.frames[-1].scope
        fact.guards, fact.loops, fact.flags = tuple(self.guards), tuple(self.loops), frozenset(self.flags)
        fact.chain = tuple(frame.call for frame in self.frames if frame.call is not None)
        self.facts.append(fact)

    def write(self, names: dict[str, Value], key: str, value: Value) -> None:
        """Set a name or field, so that a branch can be taken back."""
        if self.journals:
            old = names.get(key, MISSING)
            if old and type(old[0]) is Lazy and isinstance(old[0].node, Assign):
                old = self.library.forced(self, names, key)  # or the branches could not be merged
            self.journals[-1].setdefault((id(names), key), (names, key, old))
        if key in names and self.guards and names is not self.frames[-1].scope.names:
            value = remaining.set_by(self.guards, names[key], value)
        names[key] = value

    def bear(self, fields: dict[str, Value]) -> None:
        """Note that the object with these fields is made here: whoever has it has them, on whichever ranks that is."""
        if self.journals:
            self.journals[-1].setdefault((id(fields), BIRTH), (fields, BIRTH, MISSING))

    def leave(self, names: dict[str, Value]) -> None:
        """Take a scope that nothing returns to out of the journal: else every branch around it would merge it."""
        if self.journals:
            journal, place = self.journals[-1], id(names)
            for name in names:
                journal.pop((place, name), None)

    def guard(
        self,
        who: Who,
        site: Site,
        exact: bool = True,
        every: str = "",
        sure: bool = True,
        apart: bool = False,
        premised: bool = False,
    ) -> Guard:
        depth = sum(1 for frame in self.frames if frame.call is not None)
        return Guard(who, site, depth, exact, every=every, sure=sure, apart=apart, premised=premised)

    def remain(self, outcome: Outcome, span: Extent) -> None:
        """From here on only the ranks of ``outcome`` go on in a body."""
        self.guards.append(self.guard(outcome.rest, self.site(span), sure=outcome.sure)._replace(remains=True))

    def guarded(
        self,
        who: Who,
        site: Site | None = None,
        exact: bool = True,
        every: str = "",
        sure: bool = True,
        apart: bool = False,
        premised: bool = False,
    ) -> Pushed:
        """Code that only ranks ``who`` run; not ``exact``, where it also hangs on something unknown."""
        if who == "all" and exact and not premised:
            return Pushed(self.guards, ())
        return Pushed(self.guards, (self.guard(who, site or self.site(), exact, every, sure, apart, premised),))

    def flagged(self, *flags: Flag) -> Pushed:
        """Code whose facts carry these marks."""
        return Pushed(self.flags, flags)

    def looping(self, loop: Loop) -> Pushed:
        """Code in the body of a loop."""
        return Pushed(self.loops, (loop,))

    def try_out(self, action: Callable[[], Outcome]) -> tuple[Outcome, dict[tuple[int, str], Any]]:
        """Walk an alternative and take its effects on names back: its outcome, and what it would have set."""
        journal: dict[tuple[int, str], tuple[dict[str, Value], str, Value]] = {}
        self.open()
        self.journals.append(journal)
        try:
            outcome = action()
        finally:
            self.journals.pop()
            changes = {}
            for key, (names, name, old) in journal.items():
                changes[key] = (names, name, names.get(name, MISSING))
                if old is MISSING:
                    names.pop(name, None)
                else:
                    names[name] = old
        self.close()
        return outcome, changes

    def merge(self, alternatives: list[tuple[Outcome, dict[tuple[int, str], Any], Who]], sure: bool = True) -> None:
        """Set every name that an alternative changed to what it may be afterwards.

        Each alternative is its outcome, its changes, and the ranks that take it; one that left the function counts
        only where all did. sure: the ranks are no guess from a name.
        """
        staying = [row for row in alternatives if row[0].ends not in LEAVES] or alternatives
        gone = remaining.of_objects(alternatives, staying, self.frames[-1].scope.names)
        places = {key: change for row in (*staying, *gone) for key, change in row[1].items()}
        born = {place for place, name in places if name == BIRTH}
        for key, (names, name, _) in places.items():
            if name == BIRTH:
                self.bear(names)
                continue
            value: Value = ()
            before = names.get(name, MISSING)
            for _, changes, who in (*staying, *(row for row in gone if key in row[1])):
                change = changes.get(key)
                new = before if change is None else change[2]
                if new is MISSING and who in ranks.PARTIAL and key[0] not in born:
                    self.unbound[id(names), name] = names
                if new is MISSING or new is value:
                    continue
                if who in ranks.PARTIAL and len(staying) > 1 and key[0] not in born:
                    new = on_ranks(new, who, sure)
                value = join(value, new)
            if value:
                self.write(names, name, value)
