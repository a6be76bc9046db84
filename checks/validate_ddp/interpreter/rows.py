"""The rows by which libraries are declared: what a row says by itself, and the function that says what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from validate_ddp.console import UsageError
from validate_ddp.interpreter import call as calling
from validate_ddp.interpreter.call import Call, Parameters
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.objects import Object
from validate_ddp.interpreter.values import UNKNOWN, Class, Opaque, Resource, Symbol, Value, carried_by

if TYPE_CHECKING:
    from validate_ddp.interpreter.machine import Machine

Model = Callable[["Machine", Symbol, Call], Value]
"""What a call of a function or class does: a value, and facts recorded on the way."""
MethodModel = Callable[["Machine", Any, Call], Value | None]
"""What a call of a method does; None where this model does not know it, and the next is asked."""
Kinds = type[Fact] | tuple[type[Fact], ...]
Result = Value | str | Callable[[str, Call], Value]
"""What a call gives: always the same; the argument that has a role; or what is made of the call, by its name."""


def named(name: str, call: Call) -> Value:
    """Something of which only the name is known, and nothing goes into it."""
    return (Opaque(f"{name}()"),)


def made_of_arguments(name: str, call: Call) -> Value:
    """Something of which the name is known, and what went into it."""
    return (Opaque(f"{name}()", carried_by(call.given)),)


class BrokenRow(UsageError):
    """A row that cannot be as it is written. The message, one line, names it."""


class Api(NamedTuple):
    """A function or class of a library: see ``api``."""

    names: tuple[str, ...]
    within: tuple[str, ...]
    model: Model
    parameters: Parameters
    facts: tuple[type[Fact], ...]
    where: Callable[[str], bool] | None

    def call(self, machine: Machine, symbol: Symbol, call: Call) -> Value:
        """Do what it does, which asks for arguments by their roles."""
        call.parameters = self.parameters
        return self.model(machine, symbol, call)


_R = TypeVar("_R", bound=Resource)


class Method(NamedTuple):
    """Methods of a library's objects: see ``method``."""

    names: tuple[str, ...]
    model: MethodModel
    parameters: Parameters
    facts: tuple[type[Fact], ...]
    of: type[Resource] | None
    notes: bool

    def call(self, machine: Machine, atom: Any, call: Call) -> Value | None:
        """Do what it does, which asks for arguments by their roles; None where it does not know."""
        call.parameters = self.parameters
        return self.model(machine, atom, call)

    def is_meant(self, kind: type, name: str) -> bool:
        """Whether objects of this class have the method from here."""
        if self.of is None or not issubclass(kind, self.of):
            return False
        return any(name == own or (own[-1] == "*" and name.startswith(own[:-1])) for own in self.names)


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


Declaration = Api | Method | Attributes | Base | ClassMethod


def api(
    names: str | Iterable[str] = (),
    model: Model | None = None,
    *,
    within: str = "",
    where: Callable[[str], bool] | None = None,
    parameters: str = "",
    fact: Kinds = (),
    called: str = "",
    makes: type[Object] | None = None,
    result: Result = UNKNOWN,
    **roles: Any,
) -> Api:
    """A row on functions or classes of libraries that do the same.

    names: whole dotted names; the last parts of names, with ``within``. within: the packages or modules in which
    they are, however deep; ``*`` for any. where: whether a name is meant that no row has by its parts.
    parameters: in their order, see ``call.parameters``; the model asks for them by ``call.value``. fact: the kinds of
    facts that a call records, or that the object it makes stands for.

    model: what a call does, where the row cannot say it. Without one, a call makes the object ``makes``, of the
    parameters that are called as its parts are, or gives ``result``; and records the fact, named ``called`` or as the
    function is, in which ``roles`` play what they say, and parameters and the object made the roles that are called
    as they are.

    Raises BrokenRow where the fact has not these roles, or others that nothing plays, and where nothing asks for a
    parameter.
    """
    known = calling.parameters(parameters)
    kinds = _kinds(fact)
    if model is None:
        act = _said(_listed(names), known, kinds, called, makes, result, roles)

        def model(machine: Machine, symbol: Symbol, call: Call) -> Value:
            return act(machine, symbol.name, call, ())

    return Api(_listed(names), tuple(within.split()), model, known, kinds, where)


def method(
    names: str | Iterable[str],
    model: Callable[[Machine, _R, Call], Value | None] | None = None,
    *,
    of: type[_R] | None = None,
    notes: bool = False,
    on: str = "",
    parameters: str = "",
    fact: Kinds = (),
    called: str = "",
    makes: type[Object] | None = None,
    result: Result = UNKNOWN,
    **roles: Any,
) -> Method:
    """A row on methods that do the same, as ``api``. names: of a method, or how it starts, with ``*`` behind it.

    of: the class of objects whose methods they are; of several rows on one, the first is asked first. Without one, they
    are known by their names alone, whatever they are called on. notes: it only notes facts, and another row answers.
    on: the role of what they are called on.
    """
    known = calling.parameters(parameters)
    kinds = _kinds(fact)
    if model is None:
        act = _said(_listed(names), known, kinds, called, makes, result, roles, on)

        def model(machine: Machine, atom: Any, call: Call) -> Value | None:
            return act(machine, call.name, call, (atom,))

    return Method(_listed(names), model, known, kinds, of, notes)


def _listed(names: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(names.split()) if isinstance(names, str) else tuple(names)


def _kinds(fact: Kinds) -> tuple[type[Fact], ...]:
    return fact if isinstance(fact, tuple) else (fact,)


def _said(
    names: tuple[str, ...],
    parameters: Parameters,
    kinds: tuple[type[Fact], ...],
    called: str,
    makes: type[Object] | None,
    result: Result,
    roles: dict[str, Any],
    on: str = "",
) -> Callable[[Machine, str, Call, Value], Value]:
    """What a row says by itself."""
    if roles and not kinds:
        raise BrokenRow(f"{_row(names)} has no fact that these could be roles of: {', '.join(roles)}")
    given = (on, *parameters) if on else tuple(parameters)
    parts = [name for name in given if makes is not None and hasattr(makes, name)]
    itself = makes.__name__.lower() if makes is not None else ""
    played = [_played(names, kind, {*given, *roles, itself}, roles) for kind in kinds]
    asked = {*parts, *(role for wanted in played for role in wanted), *([result] if isinstance(result, str) else [])}
    if unasked(parameters, asked):
        raise BrokenRow(f"{_row(names)} has parameters that nothing asks for: {', '.join(unasked(parameters, asked))}")

    def act(machine: Machine, name: str, call: Call, receiving: Value) -> Value:
        def argument(role: str) -> Value:
            return receiving if role == on else call.value(role)

        if makes is not None:
            value: Value = (makes(call.site, **{part: argument(part) for part in parts}),)
        elif isinstance(result, str):
            value = argument(result) or UNKNOWN
        else:
            value = result(name, call) if callable(result) else result
        for kind, wanted in zip(kinds, played, strict=True):
            playing = {
                role: roles[role] if role in roles else value if role == itself else argument(role) for role in wanted
            }
            machine.record(kind(called or name.rpartition(".")[2], **playing), call.site)
        return value

    return act


def unasked(parameters: Parameters, asked: Iterable[str]) -> list[str]:
    """The parameters that are not asked for, but for those that stand only in the place ahead of one that is."""
    asked = frozenset(asked)
    last = max((index for role, (index, _) in parameters.items() if role in asked), default=-1)
    return [
        role
        for role, (index, names) in parameters.items()
        if role not in asked and not (0 <= index < last and names in ((role,), ("",)))
    ]


def _row(names: tuple[str, ...]) -> str:
    return f"the row `{' '.join(names)}`"


def _played(names: tuple[str, ...], kind: type[Fact], known: set[str], roles: dict[str, Any]) -> list[str]:
    """The roles of a fact that a row has, in the order in which the fact declares them."""
    order = [role for cls in reversed(kind.__mro__) for role in getattr(cls, "__annotations__", ())]
    lacking = {role for role in kind.roles - known if not hasattr(kind, role)}
    if lacking or not kind.roles.issuperset(roles):
        said = ", ".join(sorted(lacking)) if lacking else ", ".join(sorted(roles.keys() - kind.roles))
        what = "lacks" if lacking else "has no role of it"
        raise BrokenRow(f"{_row(names)} on {kind.__name__} {what}: {said}")
    return [role for role in order if role in kind.roles and role in known]
