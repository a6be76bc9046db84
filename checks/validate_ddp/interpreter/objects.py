"""The objects that the walk knows, one class a kind: those of Python itself, and what a value carries as a mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from validate_ddp.interpreter.values import (
    Class,
    Const,
    Instance,
    Opaque,
    Resource,
    Site,
    Value,
    bare,
    constant,
    held_by,
)

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    def _first(*, kw_only: bool) -> Any: ...

    @dataclass_transform(kw_only_default=True, field_specifiers=(_first,))
    class _Declared: ...
else:
    _Declared = object

_Own = TypeVar("_Own", bound="Object")


class _Part:
    """Reads and writes a part of an object where the walk keeps it: in the object's ``fields``, by its name."""

    __slots__ = ("name",)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, made: Resource | None, owner: type) -> Any:
        return self if made is None else made.fields.get(self.name, ())

    def __set__(self, made: Resource, value: Value) -> None:
        made.fields[self.name] = value


def part() -> Any:
    """Declares a part of an object: a value, empty where nobody has given it."""
    return _Part()


class Object(Resource, _Declared):
    """An object made of declared parts, which are given by name."""

    __slots__ = ()

    if TYPE_CHECKING:
        site: Site = _first(kw_only=False)
    else:

        def __init__(self, site, /, **parts):
            self.site = site
            self.fields = parts

    def copy(self: _Own) -> _Own:
        """Another one like it, of which something else may be said."""
        made = object.__new__(type(self))
        made.site, made.fields = self.site, dict(self.fields)
        return made


class Holder(Resource):
    """An object that holds values by names or numbers which the program chooses; ``*`` are those of unknown name."""

    __slots__ = ()


class Container(Holder):
    """A list, a tuple or a dictionary: what a value carries of it is what it holds."""

    __slots__ = ()

    def carried(self, seen: set[int]) -> Value:
        return held_by(self, seen)


class Sequence(Container):
    """A list or a tuple, by position; sets, and other containers that are told apart nowhere, are lists."""

    __slots__ = ()


class List(Sequence):
    """A list, made by a display, a comprehension or ``list()``, or what a method such as ``items()`` gives."""

    __slots__ = ()


class Tuple(Sequence):
    """A tuple, made by a display, or of the several values that a function of a library returns."""

    __slots__ = ()


class Mapping(Holder):
    """What holds values by name, and passes for keyword arguments in ``**options``."""

    __slots__ = ()


class Dict(Container, Mapping):
    """A dictionary, by its constant keys."""

    __slots__ = ()


class Fields(Dict):
    """``vars(instance)``: the fields of an instance, which are written as items."""

    __slots__ = ("of",)

    def __init__(self, of: Instance) -> None:
        super().__init__(of.site, of.fields)
        self.of = of


class Options(Mapping):
    """What holds the options of a program: equal on all ranks, unless a rank went into it."""

    __slots__ = ()


class Namespace(Options):
    """What ``parse_args`` gives, with the options that launchers fill in, or a namespace made by hand."""

    __slots__ = ()
    phrase = "the parsed arguments"


class Settings(Options):
    """A configuration object: of yacs, OmegaConf or ml_collections, an attribute dictionary, a file read."""

    __slots__ = ()
    phrase = "the configuration"


class Key(Opaque):
    """A key of a mapping, as ``items()`` and ``keys()`` give it: any of those that ``of`` holds."""

    __slots__ = ("of",)

    def __init__(self, of: Mapping) -> None:
        super().__init__("key")
        self.of = of


class Range(Holder):
    """``range(...)``: its arguments by position."""

    __slots__ = ()

    def carried(self, seen: set[int]) -> Value:
        return held_by(self, seen)


class Zip(Holder):
    """``zip(...)`` or ``itertools.chain(...)``: what it draws from, by position."""

    __slots__ = ()


class Enumerate(Object):
    """``enumerate(inner)``."""

    __slots__ = ()
    inner: Value = part()


class Days(Object):
    """Mark: ``timedelta(90)``, whose first argument counts days and was given without its name."""

    __slots__ = ()
    count: Value = part()


class Iterator(Holder):
    """``iter(loader)``: the batches that it gives, under ``*``."""

    __slots__ = ()


class Generator(Holder):
    """What a generator function of the program gives when it is called: what it yields, under ``*``."""

    __slots__ = ()


class Super(Resource):
    """``super()`` in a method: the object, and the class behind which methods are looked for."""

    __slots__ = ("instance", "owner")

    def __init__(self, site: Site, instance: Instance, owner: Class | None) -> None:
        super().__init__(site)
        self.instance = instance
        self.owner = owner


class Context(Resource):
    """A context that marks the code in it, by the function or method that made it: ``no_grad``, ``no_sync``."""

    __slots__ = ("manager",)

    def __init__(self, site: Site, manager: str) -> None:
        super().__init__(site)
        self.manager = manager


class Item(Object):
    """Mark: drawn from something unknown, as the items of some data are."""

    __slots__ = ()
    phrase = "an item of the data"


class Batch(Object):
    """Mark: computed from a batch which ``loader`` gave."""

    __slots__ = ()
    phrase = "a batch"
    loader: Value = part()


class Shuffled(Object):
    """Mark: in an order which a generator, or the hashes of a set, gave."""

    __slots__ = ()


class Length(Resource):
    """Mark: computed from the length of a data set or a loader.

    of: what was measured. steps: the operations since, in order, each with its other operand.
    """

    __slots__ = ("of", "steps")

    def __init__(self, site: Site, of: Value, steps: tuple[tuple[str, Value], ...] = ()) -> None:
        super().__init__(site)
        self.of = of
        self.steps = steps


class Flow(Object):
    """Mark: tells of a gradient, and so is gone behind ``detach``."""

    __slots__ = ()


class Output(Flow):
    """Mark: computed from the output of ``model``. live: the model is being trained, with gradients on."""

    __slots__ = ()
    phrase = "the output of the model run"
    model: Value = part()
    live: Value = part()


class Gathered(Flow):
    """Mark: what a collective that autograd does not see made of outputs.

    of: the outputs whose gradient ends there. restored: the own shard was put back. reduced: summed, not gathered.
    divided: by the collective itself. mixed: met a tensor with a gradient other than in a sum.
    """

    __slots__ = ()
    phrase = "what was gathered"
    of: tuple[Output, ...] = part()
    restored: Value = part()
    reduced: Value = part()
    divided: Value = part()
    mixed: Value = part()


class Term(Flow):
    """Mark: the Gathered in ``of`` is a summand without any gradient of its own."""

    __slots__ = ()
    of: tuple[Gathered, ...] = part()


class Rescaled(Flow):
    """Mark: the Gathered in ``of`` was multiplied with the world size (``scaled``), or ``divided`` by it."""

    __slots__ = ("how",)

    def __init__(self, site: Site, of: Gathered, how: str) -> None:
        super().__init__(site)
        self.of = (of,)
        self.how = how

    of: tuple[Gathered, ...] = part()


class Augmented(Resource):
    """Mark: made by something out of sight that changes samples at random, as its name or a parameter says.

    sure: nothing else can be meant. said: what says so, as the code writes it.
    """

    __slots__ = ("said", "sure")
    phrase = "an augmentation"

    def __init__(self, site: Site, said: str, sure: bool) -> None:
        super().__init__(site)
        self.said = said
        self.sure = sure


class Unique(Object):
    """Mark: each process draws it for itself. before: in a function that no spawned process runs."""

    __slots__ = ("before",)
    phrase = "a name that each process draws for itself"

    def __init__(self, site: Site, before: bool = False) -> None:
        super().__init__(site)
        self.before = before


class Nameless(Object):
    """Mark, of a text in which None stands for a name, ``f"{folder}/logs"``: nobody has made what is called so."""

    __slots__ = ()


class Open(Object):
    """Mark, among what an object was given: there is more, which the walk has not seen (``*args``)."""

    __slots__ = ()


class Overridden(Object):
    """Mark, among what an object was given: its fields may have been set from elsewhere, out of ``by``."""

    __slots__ = ()
    by: Value = part()


class Worker(Object):
    """Mark: an argument of the function that a loader's workers start with, so that the call is walked."""

    __slots__ = ()


class Asked(Object):
    """The place of a call, held by the object that the call was about."""

    __slots__ = ()


def contents(value: Value, seen: set[int] | None = None) -> list[Any]:
    """The atoms in the containers that the value is, all the way down."""
    found: list[Any] = []
    seen = set() if seen is None else seen
    for atom in bare(value):
        if isinstance(atom, Container) and id(atom) not in seen:
            seen.add(id(atom))
            for held in atom.fields.values():
                found += [*bare(held), *contents(held, seen)]
    return found


def one_more(count: Value) -> Value:
    """How often something has happened, one time later."""
    number = constant(count)
    return (Const(number + 1 if isinstance(number, int) else 1),)
