"""What is known of libraries: who answers for a function, a method, an attribute or a base class of theirs.

The files of models/ declare it, a row for each thing; the walk asks here and knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from validate_ddp.interpreter import calls
from validate_ddp.interpreter.call import Call, Parameters, parameters
from validate_ddp.interpreter.values import UNKNOWN, Class, Resource, Symbol, Value, bare, join

if TYPE_CHECKING:
    from validate_ddp.interpreter.machine import Machine
    from validate_ddp.source.syntax import Expression

Model = Callable[["Machine", Symbol, Call], Value]
"""What a call of a function or class does: a value, and facts recorded on the way."""
MethodModel = Callable[["Machine", Any, Call], Value | None]
"""What a call of a method does; None where this model does not know it, and the next is asked."""


class Api(NamedTuple):
    """A function or class of a library: see ``api``."""

    names: tuple[str, ...]
    within: tuple[str, ...]
    model: Model
    parameters: Parameters
    facts: tuple[str, ...]


class Guess(NamedTuple):
    """What tells from more than a name's parts whose model it has, asked after all that are declared by name."""

    find: Callable[[str], Model | None]


_R = TypeVar("_R", bound=Resource)


class Methods(Generic[_R]):
    """The methods of the objects of a class and of those derived from it; ``model`` is asked for any of them."""

    __slots__ = ("kind", "model")

    def __init__(self, kind: type[_R], model: Callable[[Machine, _R, Call], Value | None]) -> None:
        self.kind = kind
        self.model = model


class Method(NamedTuple):
    """Methods known by their names alone, whatever they are called on."""

    names: str
    model: MethodModel
    fact: str = ""


class Attributes(NamedTuple):
    """Attributes of the objects of a class and of those derived from it, by name."""

    kind: type[Resource]
    values: Mapping[str, Value]


class Base(NamedTuple):
    """A class of a library from which classes of the program are derived.

    make: the object that an instance of one, of the given class where it is known, is besides; None if it is none.
    """

    make: Callable[[Machine, Symbol, Call, Class | None], Resource | None]


class ClassMethod(NamedTuple):
    """A method that classes of the program have from a library's class, unless they define it."""

    name: str
    model: Callable[[Machine, Class, Call], Value]


Declaration = Api | Guess | Methods[Any] | Method | Attributes | Base | ClassMethod


def api(
    names: str | Iterable[str],
    model: Model | None = None,
    *,
    within: str = "",
    parameters: str = "",
    fact: str = "",
    result: Value = UNKNOWN,
) -> Api:
    """A row on functions or classes of libraries that do the same.

    names: whole dotted names; the last parts of names, with ``within``. within: the packages or modules in which
    they are, however deep; ``*`` for any. parameters: in their order, see ``call.parameters``; the model asks for them
    by ``call.value``. model: what a call does; without one it gives ``result``, always the same. fact: the kinds of
    facts that it records, or that the object it makes stands for.
    """
    listed = tuple(names.split()) if isinstance(names, str) else tuple(names)
    return Api(listed, tuple(within.split()), model or _always(result), _parameters(parameters), tuple(fact.split()))


_parameters = parameters  # which `api` calls an argument of its own


def _always(value: Value) -> Model:
    return lambda machine, symbol, call: value


class Registry:
    """All that is declared, and the four functions that answer where nothing is."""

    def __init__(
        self,
        declared: Iterable[Declaration],
        *,
        unresolved: Model,
        unknown: Callable[[Machine, Any, Call], Value],
        forward: Callable[[Machine, Any, Call], Value],
        annotated: Callable[[Machine, Expression, str], Value],
    ) -> None:
        self.unresolved = unresolved
        self.call_unknown = unknown
        """Calls a method of something unknown, or something unknown."""
        self.call_object = forward
        """Calls an object of a library, or a module of the program, as a function: a forward."""
        self.annotated = annotated
        """A parameter of which nothing but its annotation and name is known."""
        self._known: dict[str, tuple[Model, Parameters]] = {}
        self._whole: dict[str, Api] = {}
        self._within: dict[str, list[tuple[str, Api]]] = {}
        self._guesses: list[Callable[[str], Model | None]] = []
        self._methods: dict[str, MethodModel] = {}
        self._of_objects: list[Methods[Any]] = []
        self._of_kind: dict[type, list[Methods[Any]]] = {}
        self._attributes: list[Attributes] = []
        self._bases: list[Callable[[Machine, Symbol, Call, Class | None], Resource | None]] = []
        self._class_methods: dict[str, Callable[[Machine, Class, Call], Value]] = {}
        for row in declared:
            self._add(row)

    def _add(self, row: Declaration) -> None:
        if isinstance(row, Api):
            for name in row.names:
                if row.within:
                    self._within.setdefault(name, []).extend((place, row) for place in row.within)
                else:
                    self._whole[name] = row
        elif isinstance(row, Guess):
            self._guesses.append(row.find)
        elif isinstance(row, Methods):
            self._of_objects.append(row)
        elif isinstance(row, Method):
            self._methods.update(dict.fromkeys(row.names.split(), row.model))
        elif isinstance(row, Attributes):
            self._attributes.append(row)
        elif isinstance(row, Base):
            self._bases.append(row.make)
        else:
            self._class_methods[row.name] = row.model

    def find(self, name: str) -> tuple[Model, Parameters]:
        """The model of a name: of the whole name, else within the innermost package that declares it, else guessed."""
        row = self._whole.get(name)
        if row is None:
            rows = [
                (place, row)
                for place, row in self._within.get(name.rpartition(".")[2], ())
                if place == "*" or name.startswith(place + ".")
            ]
            row = max(rows, key=lambda found: len(found[0]))[1] if rows else None
        if row is not None:
            return row.model, row.parameters
        found = next((model for guess in self._guesses if (model := guess(name)) is not None), None)
        return found or self.unresolved, {}

    def knows(self, name: str) -> bool:
        """Whether anything is declared of the function or class with this dotted name."""
        return self.find(name)[0] is not self.unresolved

    def call_symbol(self, machine: Machine, symbol: Symbol, call: Call) -> Value:
        """Call a function or class outside the program."""
        if symbol.name not in self._known:
            self._known[symbol.name] = self.find(symbol.name)
        model, call.parameters = self._known[symbol.name]
        return model(machine, symbol, call)

    def call_resource(self, machine: Machine, resource: Resource, call: Call) -> Value:
        """Call a method of an object of a library."""
        kind = type(resource)
        if kind not in self._of_kind:
            self._of_kind[kind] = [row for row in self._of_objects if issubclass(kind, row.kind)]
        for row in self._of_kind[kind]:
            value = row.model(machine, resource, call)
            if value is not None:
                return value
        if call.name in resource.fields:
            result: Value = ()
            for target in bare(resource.fields[call.name]):
                result = join(result, calls.call_atom(machine, target, call))
            return result or UNKNOWN
        return self.call_unknown(machine, resource, call)

    def method(self, name: str) -> MethodModel | None:
        """The model of a method known by its name alone."""
        return self._methods.get(name)

    def class_method(self, name: str) -> Callable[[Machine, Class, Call], Value] | None:
        """The model of a method that a class of the program may have from a library's."""
        return self._class_methods.get(name)

    def attribute(self, resource: Resource, name: str) -> Value | None:
        """What an attribute of a library's object is, where that is always the same."""
        for row in self._attributes:
            if isinstance(resource, row.kind) and name in row.values:
                return row.values[name]
        return None

    def base_object(self, machine: Machine, base: Symbol, call: Call, cls: Class | None = None) -> Resource | None:
        """What a library's class makes of an instance of a class of the program derived from it."""
        for make in self._bases:
            made = make(machine, base, call, cls)
            if made is not None:
                return made
        return None
