"""A call about to happen: what is called, on what, with which arguments, where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validate_ddp.findings import Span
from validate_ddp.interpreter.values import Site, Value
from validate_ddp.source import syntax

if TYPE_CHECKING:
    from validate_ddp.interpreter.machine import Frame


class Call:
    """A call about to happen.

    parameters: those that the library's function is declared with, for ``value``; see ``registry.Api``.
    """

    __slots__ = ("_place", "_site", "args", "keywords", "name", "node", "open", "parameters", "receiver")

    def __init__(
        self,
        name: str,
        args: list[Value],
        keywords: dict[str, Value],
        site: Site | None,
        place: tuple[Frame, syntax.Extent, syntax.Extent] | None = None,
    ) -> None:
        self.name = name
        self.receiver: Value = ()
        self.args = args
        self.keywords = keywords
        self.open = False
        self.node: syntax.Call | None = None
        self.parameters: Parameters = {}
        self._site = site
        self._place = place

    @property
    def site(self) -> Site:
        """Where the call is; made when somebody asks, as most calls are of no note."""
        if self._site is None:
            assert self._place is not None
            frame, span, statement = self._place
            function = frame.function.name if frame.function else ""
            self._site = Site(frame.module.path, Span(*span), Span(*statement), function)
        return self._site

    def behind(self, preset: Call) -> Call:
        """This call with the arguments of ``preset`` before its own, as ``functools.partial`` makes it."""
        made = Call(self.name, [*preset.args, *self.args], {**preset.keywords, **self.keywords}, self.site)
        made.open, made.node, made.receiver = self.open or preset.open, self.node, self.receiver
        return made

    def argument(self, index: int, name: str = "") -> Value:
        """The argument at a position or by name; empty where it is not given."""
        if name and name in self.keywords:
            return self.keywords[name]
        if 0 <= index < len(self.args):
            return self.args[index]
        return ()

    def value(self, role: str) -> Value:
        """The argument that has this role among the declared parameters; empty where it is not given.

        Raises KeyError where none is declared: the model and the declaration do not fit.
        """
        index, names = self.parameters[role]
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        return self.args[index] if 0 <= index < len(self.args) else ()

    @property
    def given(self) -> Value:
        """The atoms of all arguments."""
        return tuple(atom for value in (*self.args, *self.keywords.values()) for atom in value)


Parameters = dict[str, tuple[int, tuple[str, ...]]]
"""By its role: the position of a parameter, -1 for one that is given by keyword only, and the names it may have."""


def parameters(declared: str) -> Parameters:
    """Parameters in their order, from text such as ``"obj path=f=filename * pickle_protocol"``.

    Each is its role, then its names where these are others (``=`` alone: none, it is given by position); those behind
    ``*`` are given by keyword only.
    """
    found: Parameters = {}
    index, step = 0, 1
    for word in declared.split():
        if word == "*":
            index, step = -1, 0
            continue
        role, *names = word.split("=")
        found[role] = (index, tuple(names) or (role,))
        index += step
    return found
