"""What is known of libraries: who answers for a function, a method, an attribute or a base class of theirs.

The files of models/ declare it, a row for each thing; the walk asks here and knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from validate_ddp.interpreter import calls, vocabulary
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.rows import Api, Attributes, Base, Declaration, Method, MethodModel, Model, api
from validate_ddp.interpreter.training import Host
from validate_ddp.interpreter.values import UNKNOWN, Class, Resource, Symbol, Value, bare, join

if TYPE_CHECKING:
    from validate_ddp.interpreter.machine import Machine
    from validate_ddp.source.syntax import Expression


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
        self._nothing = api(model=unresolved)
        self.call_unknown = unknown
        """Calls a method of something unknown, or something unknown."""
        self.call_object = forward
        """Calls an object of a library, or a module of the program, as a function: a forward."""
        self.annotated = annotated
        """A parameter of which nothing but its annotation and name is known."""
        self._known: dict[str, Api] = {}
        self._whole: dict[str, Api] = {}
        self._within: dict[str, list[tuple[str, Api]]] = {}
        self._guessed: list[tuple[Callable[[str], bool], Api]] = []
        self._methods: dict[str, MethodModel] = {}
        self._of_objects: list[Method] = []
        self._of_kind: dict[tuple[type, str], list[Method]] = {}
        self._attributes: list[Attributes] = []
        self._bases: list[Callable[[Machine, Symbol, Call, Class | None], Resource | None]] = []
        self._class_methods: dict[str, Callable[[Machine, Class, Call], Value]] = {}
        words = set(vocabulary.KEYS)
        for row in declared:
            self._add(row)
            if isinstance(row, (Api, Method)) and row.facts:
                words.update(name.rpartition(".")[2] for name in row.names if "*" not in name)
        words -= vocabulary.EVERYDAY
        self.words = frozenset(words | {'"' + word for word in words | vocabulary.OPTIONS})
        """A function of a program that has none of these, and uses none that has one, cannot matter. A short string
        counts too, behind a quotation mark."""

    def _add(self, row: Declaration) -> None:
        if isinstance(row, Api):
            if row.where is not None:
                self._guessed.append((row.where, row))
            for name in row.names:
                if row.within:
                    self._within.setdefault(name, []).extend((place, row) for place in row.within)
                else:
                    self._whole[name] = row
        elif isinstance(row, Method):
            if row.of is None:
                self._methods.update(dict.fromkeys(row.names, row.call))
            else:
                self._of_objects.append(row)
        elif isinstance(row, Attributes):
            self._attributes.append(row)
        elif isinstance(row, Base):
            self._bases.append(row.make)
        else:
            self._class_methods[row.name] = row.model

    def find(self, name: str) -> Api:
        """The row on a name: on the whole name, else within the innermost package that declares it, else guessed."""
        row = self._whole.get(name)
        if row is None:
            rows = [
                (place, row)
                for place, row in self._within.get(name.rpartition(".")[2], ())
                if place == "*" or name.startswith(place + ".")
            ]
            row = max(rows, key=lambda found: len(found[0]))[1] if rows else None
        if row is not None:
            return row
        return next((row for is_meant, row in self._guessed if is_meant(name)), self._nothing)

    def knows(self, name: str) -> bool:
        """Whether anything is declared of the function or class with this dotted name."""
        row = self.find(name)
        return row.model is not self._nothing.model

    def call_symbol(self, machine: Machine, symbol: Symbol, call: Call) -> Value:
        """Call a function or class outside the program."""
        if symbol.name not in self._known:
            self._known[symbol.name] = self.find(symbol.name)
        return self._known[symbol.name].call(machine, symbol, call)

    def call_resource(self, machine: Machine, resource: Resource, call: Call) -> Value:
        """Call a method of an object of a library."""
        meant = (type(resource), call.name)
        if meant not in self._of_kind:
            rows = [row for row in self._of_objects if row.is_meant(*meant)]
            self._of_kind[meant] = sorted(rows, key=lambda row: not row.notes)
        for row in self._of_kind[meant]:
            value = row.call(machine, resource, call)
            if value is not None and not row.notes:
                return value
        if call.name in resource.fields:
            result: Value = ()
            for target in bare(resource.fields[call.name]):
                result = join(result, calls.call_atom(machine, target, call))
            return result or UNKNOWN
        return self.call_unknown(machine, resource, call)

    def answers(self, resource: Resource, name: str) -> bool:
        """Whether a method of an object of the program is one that the library's class gives it."""
        if not isinstance(resource, Host):
            return True
        return any(row.is_meant(type(resource), name) and not row.notes for row in self._of_objects)

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
