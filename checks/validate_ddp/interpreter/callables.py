"""Objects that stand for functions of the program, or call them: one of several, one with arguments, a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from validate_ddp.interpreter.values import Resource, Site, Value, carried_by

if TYPE_CHECKING:
    from validate_ddp.interpreter.call import Call


class Called(Resource):
    """An object of which a row says what a call does: any other that is called is a model, or something unknown."""

    __slots__ = ()


class Partial(Called):
    """``functools.partial`` of what is no function of the program: a class, or something of a library.

    preset: the call whose arguments come before those of the one to come.
    """

    __slots__ = ("function", "preset")

    def __init__(self, site: Site, function: Value, preset: Call) -> None:
        super().__init__(site)
        self.function = function
        self.preset = preset

    def carried(self, seen: set[int]) -> Value:
        return carried_by(self.preset.given, seen)


class Choice(Resource):
    """One of several functions, classes, objects or modules of the program, by a name that a run knows.

    all: whether there are no others.
    """

    __slots__ = ("all", "options")

    def __init__(self, site: Site, options: Value, all: bool) -> None:
        super().__init__(site)
        self.options = options
        self.all = all

    def carried(self, seen: set[int]) -> Value:
        return carried_by(self.options, seen)


class Commands(Called):
    """What runs one of several functions of the program, which the command line names: ``typer.Typer()``.

    added: the functions handed to it other than by a decorator. first: the function that runs ahead of any of them.
    """

    __slots__ = ("added", "first")

    def __init__(self, site: Site, first: Value = ()) -> None:
        super().__init__(site)
        self.added: list[Any] = []
        self.first = first
