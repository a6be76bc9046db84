"""Abstract values: what the walk knows of a Python value. A value is a tuple of alternatives, called atoms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeVar

from validate_ddp.findings import Span
from validate_ddp.interpreter.ranks import Who, opposite
from validate_ddp.source.syntax import Binding, ClassDef, FunctionDef, Lambda

# These merge values: no statement goes unwalked, so it is not said. What has a role (a model, a rank) stays longest.
_MOST_ATOMS = 8
_MOST_CARRIED = 12
_MOST_FIELDS = 40


class Site(NamedTuple):
    """A place in the program, with its enclosing statement."""

    path: str
    span: Span
    statement: Span
    function: str


class Lazy:
    """What a name of a module is bound to until somebody looks: an import, or the node of a definition.

    spare: it is bound where another one failed, in a handler of errors.
    """

    __slots__ = ("dotted", "module", "name", "node", "spare", "target")

    def __init__(
        self, dotted: str, name: str, target: str | None, node: Binding | None = None, module: Any = None
    ) -> None:
        self.dotted = dotted
        self.name = name
        self.target = target
        self.node = node
        self.module = module
        self.spare = False


class Const:
    """A Python constant."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Opaque:
    """Something unknown. ``name`` is how the code calls it; ``carries`` what went into it.

    alike: equal on every rank by construction, as ``sameness`` knows it.
    """

    __slots__ = ("alike", "carries", "name")

    def __init__(self, name: str = "", carries: Value = (), alike: bool = False) -> None:
        self.name = name
        self.carries = carries
        self.alike = alike


class Symbol:
    """An object of a module that is not part of the program, by its dotted name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


class ModuleRef:
    """A module of the program."""

    __slots__ = ("module",)

    def __init__(self, module: Any) -> None:
        self.module = module


class Function:
    """A function of the program, with its closure. bound: the object of a method; preset: of ``functools.partial``."""

    __slots__ = ("bound", "marks", "module", "node", "owner", "preset", "scope")

    def __init__(self, module: Any, node: FunctionDef | Lambda, scope: Any, owner: Any = None) -> None:
        self.module = module
        self.node = node
        self.scope = scope
        self.owner = owner
        self.bound: Any = None
        self.preset: Any = None
        self.marks: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.node.name

    def bind(self, instance: Any) -> Function:
        bound = Function(self.module, self.node, self.scope, self.owner)
        bound.bound, bound.marks, bound.preset = instance, self.marks, self.preset
        return bound


class Class:
    """A class of the program; ``members`` are its body's names, ``bases`` Class and Symbol atoms."""

    __slots__ = ("bases", "members", "module", "node")

    def __init__(self, module: Any, node: ClassDef, members: dict[str, Value], bases: list[Any]) -> None:
        self.module = module
        self.node = node
        self.members = members
        self.bases = bases

    @property
    def name(self) -> str:
        return self.node.name

    def lineage(self) -> list[Any]:
        """This class and its bases, nearest first; Symbols stand for classes outside the program."""
        found: list[Any] = []
        queue: list[Any] = [self]
        while queue:
            current = queue.pop(0)
            if current in found:
                continue
            found.append(current)
            if isinstance(current, Class):
                queue.extend(current.bases)
        return found

    def find(self, name: str) -> tuple[Value | None, Any]:
        for current in self.lineage():
            if isinstance(current, Class) and name in current.members:
                return current.members[name], current
        return None, None


class Instance:
    """An object of a class of the program.

    base: what a class outside the program made of it (a loader, say). given: what its constructor got, and its
    methods that were not walked. alone: it is for one process, made in the place of one that starts the ranks' group.
    """

    __slots__ = ("alone", "base", "cls", "fields", "given", "site")

    def __init__(self, cls: Class, site: Site) -> None:
        self.cls = cls
        self.fields: dict[str, Value] = {}
        self.site = site
        self.given: Value = ()
        self.base: Resource | None = None
        self.alone = False


class Resource:
    """An object that the walk knows: where it was made, of what. phrase: how people are told of it."""

    __slots__ = ("fields", "site")
    phrase: ClassVar[str] = ""

    def __init__(self, site: Site, fields: dict[str, Value] | None = None) -> None:
        self.site = site
        self.fields: dict[str, Value] = fields if fields is not None else {}

    def carried(self, seen: set[int]) -> Value:
        """What a computation carries that this goes into."""
        return (self,)

    def wrapped(self) -> Value:
        """What this stands for in a distributed launch: nothing but itself, unless it is a wrapper."""
        return ()


class Rank:
    """A number that differs between ranks. scope: global, local, node, spawn (both where one node spawns all), or group
    (of a dimension of a mesh, ``of`` where it is known).

    sure: read from the process group or the launcher, with this scope. named: the name, where nothing else says that
    it is a rank. option: the command line option that it comes from. alike: a setting, equal on all ranks if no rank.
    text: as the environment has it, so that "0" counts as true.
    """

    __slots__ = ("alike", "named", "of", "option", "scope", "sure", "text")

    def __init__(
        self, scope: str, sure: bool = True, option: str = "", named: str = "", alike: bool = False, of: str = ""
    ) -> None:
        self.text = False
        self.alike = alike
        self.scope = scope
        self.sure = sure and not named
        self.option = option
        self.named = named
        self.of = of

    def number(self) -> Rank:
        """This rank as a number, where it may be a text."""
        return Rank(self.scope, self.sure, self.option, self.named, self.alike, self.of) if self.text else self

    def unlike(self, scope: str = "", sure: bool = False) -> Rank:
        """A number computed from this one: of another scope, or of a scope that is not sure."""
        return Rank(scope or self.scope, sure, named=self.named, of="" if scope else self.of)


class WorldSize:
    """The number of ranks, of devices of one node (``local``), or of ranks of one ``group``: there one may be all.
    named: nothing but a name says so."""

    __slots__ = ("group", "local", "named")

    def __init__(self, local: bool = False, named: bool = False, group: bool = False) -> None:
        self.local = local
        self.named = named
        self.group = group


class RankTest:
    """A truth value that depends on the rank: true only on ranks ``who``; on all of those where ``exact``.

    rest: the ranks on which it may be false. sure: not a guess from a name.
    """

    __slots__ = ("exact", "rest", "sure", "who")

    def __init__(self, who: Who, exact: bool = True, rest: Who | None = None, sure: bool = True) -> None:
        self.who = who
        self.exact = exact
        self.sure = sure
        self.rest: Who = rest or (opposite(who) if exact else "unclear")


class OnRanks:
    """An alternative that a name has on ranks ``who`` only. sure: which ranks those are is no guess from a name."""

    __slots__ = ("atom", "sure", "who")

    def __init__(self, atom: Any, who: Who, sure: bool = True) -> None:
        self.atom = atom
        self.who = who
        self.sure = sure


_Thing = Const | Symbol | ModuleRef | Function | Class | Instance | Resource | Lazy
Atom = _Thing | Opaque | Rank | WorldSize | RankTest | OnRanks
_PLAIN = (Const, Symbol, Function)
_A = TypeVar("_A")
Value = tuple[Atom, ...]
"""What a Python value may be: its alternatives."""

UNKNOWN: Value = (Opaque(),)
NONE: Value = (Const(None),)
TRUE: Value = (Const(True),)
FALSE: Value = (Const(False),)


def bare(value: tuple[_A, ...]) -> list[_A]:
    """The atoms, with the marks of the ranks taken off."""
    if len(value) == 1 and type(value[0]) is not OnRanks:
        return [value[0]]
    return [atom.atom if isinstance(atom, OnRanks) else atom for atom in value]


def is_none(atom: Any) -> bool:
    """Whether the atom is surely None."""
    return isinstance(atom, Const) and atom.value is None


def constant(value: Value) -> Any:
    """The constant that a value surely is, else Ellipsis."""
    if len(value) == 1 and isinstance(value[0], Const):
        return value[0].value
    return ...


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    compare = _COMPARISONS.get(type(a))
    return compare is not None and compare(a, b)


_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    Const: lambda a, b: type(a.value) is type(b.value) and bool(a.value == b.value),
    Symbol: lambda a, b: bool(a.name == b.name),
    Rank: lambda a, b: (a.scope, a.sure, a.option, a.named, a.of) == (b.scope, b.sure, b.option, b.named, b.of),
    RankTest: lambda a, b: (a.who, a.exact, a.rest, a.sure) == (b.who, b.exact, b.rest, b.sure),
    WorldSize: lambda a, b: (a.local, a.named, a.group) == (b.local, b.named, b.group),
    OnRanks: lambda a, b: (a.who, a.sure) == (b.who, b.sure) and _same(a.atom, b.atom),
    Function: lambda a, b: a.node is b.node and a.bound is b.bound and a.preset is b.preset,
    ModuleRef: lambda a, b: a.module is b.module,
}
"""What makes two atoms of a kind one; the other kinds are objects with an identity of their own."""


def join(first: Value, second: Value) -> Value:
    """The alternatives of both. A wrapper swallows what it wraps: the walk is of the distributed launch."""
    if first is second or not second:
        return first
    if not first:
        return second
    atoms = list(first)
    for atom in second:
        for other in first:
            if atom is other or _same(atom, other):
                break
        else:
            atoms.append(atom)
    if len(atoms) == len(first):
        return first
    wrapped = [inner for atom in atoms if isinstance(atom, Resource) for inner in bare(atom.wrapped())]
    if wrapped:
        atoms = [atom for atom in atoms if not any(_same(atom, inner) for inner in wrapped)] or atoms
    if any(type(atom) is Rank and not atom.named for atom in atoms):  # what is known replaces what was guessed
        atoms = [atom for atom in atoms if type(atom) is not Rank or not atom.named]
    opaque = [atom for atom in atoms if isinstance(atom, Opaque)]
    if len(opaque) > 1:
        merged = Opaque(opaque[0].name, carried_by(opaque), all(atom.alike for atom in opaque))
        atoms = [atom for atom in atoms if not isinstance(atom, Opaque)] + [merged]
    if len(atoms) > _MOST_ATOMS:
        atoms.sort(key=lambda atom: isinstance(unmarked(atom), (Const, Opaque)))
        atoms = atoms[:_MOST_ATOMS]
    return tuple(atoms)


def unmarked(atom: Atom) -> Any:
    return atom.atom if isinstance(atom, OnRanks) else atom


def on_ranks(value: Value, who: Who, sure: bool = True) -> Value:
    """``value`` as one which only ranks ``who`` hold."""
    return tuple(atom if isinstance(atom, OnRanks) else OnRanks(atom, who, sure) for atom in value)


def carried_by(atoms: Iterable[Atom], seen: set[int] | None = None) -> Value:
    """The atoms worth following through a computation that the walk does not understand."""
    found: list[Any] = []
    for atom in atoms:
        atom = unmarked(atom)
        if type(atom) is Opaque:  # most are, with nothing in it: this is one of the walk's busiest places
            parts: Value = atom.carries
            if not parts:
                continue
        elif type(atom) in _PLAIN:
            continue
        elif isinstance(atom, Resource):
            seen = set() if seen is None else seen
            parts = atom.carried(seen)
        elif isinstance(atom, (Instance, Rank, RankTest, WorldSize)):
            parts = (atom,)
        else:
            parts = getattr(atom, "measured", ())
        for part in parts:
            for other in found:
                if part is other or _same(part, other):
                    break
            else:
                found.append(part)
        if len(found) >= _MOST_CARRIED:
            break
    return tuple(found[:_MOST_CARRIED])


def is_whole(parts: tuple[Any, ...]) -> bool:
    """Whether ``reaching`` surely found all of them: where it found as many as are kept, others may be left out."""
    return len(parts) < _MOST_CARRIED


def held_by(container: Resource, seen: set[int]) -> Value:
    """What a container carries: what it holds; nothing where it was seen, as containers hold each other."""
    if id(container) in seen:
        return ()
    seen.add(id(container))
    held = islice(container.fields.values(), _MOST_FIELDS)
    return carried_by((part for value in held for part in value), seen)


def merged(*parts: Atom) -> Value:
    """What a value carries that all of these went into, so many of them as it may, the first in any case."""
    return tuple(dict.fromkeys(parts))[:_MOST_CARRIED]


def reaching(value: Value) -> Value:
    """Every resource, instance and rank that the value is, holds, or was computed from."""
    return carried_by(value)
