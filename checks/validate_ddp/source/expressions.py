"""The kinds of expressions of ``source.syntax``, which says what they have in common."""

from __future__ import annotations

from typing import NamedTuple

Extent = tuple[int, int, int, int]
"""What ``findings.Span`` has names for; plain, as there is one for every second node."""


class Keyword(NamedTuple):
    """``arg=value`` in a call; without a name, ``**value``."""

    arg: str | None
    value: Expression


class Parameter(NamedTuple):
    """A parameter of a function, ``*args`` and ``**kwargs`` aside."""

    name: str
    default: Expression | None
    annotation: Expression | None


class Arguments(NamedTuple):
    """The parameters of a function. positional: how many of the first may be given by position."""

    parameters: list[Parameter]
    vararg: str | None
    kwarg: str | None
    positional: int


class Comprehension(NamedTuple):
    """``for target in iter if ifs``."""

    target: Expression
    iter: Expression
    ifs: list[Expression]


class Name(NamedTuple):
    """An identifier."""

    id: str


class Constant(NamedTuple):
    """A string, cut off after some hundred characters, a number, a truth value or None."""

    value: str | int | float | bool | None


class Attribute(NamedTuple):
    """``value.attr``."""

    value: Expression
    attr: str
    span: Extent


class Call(NamedTuple):
    """``func(*args, **keywords)``."""

    func: Expression
    args: list[Expression]
    keywords: list[Keyword]
    span: Extent


class JoinedStr(NamedTuple):
    """An f-string: its texts and expressions."""

    values: list[Expression]


class Tuple(NamedTuple):
    """A tuple, on either side of an assignment."""

    elts: list[Expression]


class List(NamedTuple):
    """A list or a set."""

    elts: list[Expression]


class Dict(NamedTuple):
    """A dictionary. A key of None stands before what ``**`` spreads."""

    keys: list[Expression | None]
    values: list[Expression]


class IfExp(NamedTuple):
    """``body if test else orelse``."""

    test: Expression
    body: Expression
    orelse: Expression


class BoolOp(NamedTuple):
    """``a and b and c``, or the same with ``or``. op: And or Or."""

    op: str
    values: list[Expression]


class Not(NamedTuple):
    """``not operand``."""

    operand: Expression


class Compare(NamedTuple):
    """``left < b <= c``."""

    left: Expression
    ops: list[str]
    comparators: list[Expression]


class BinOp(NamedTuple):
    """``left + right``."""

    op: str
    left: Expression
    right: Expression


class Subscript(NamedTuple):
    """``value[slice]``."""

    value: Expression
    slice: Expression
    span: Extent


class Lambda(NamedTuple):
    """``lambda args: body``."""

    args: Arguments
    body: Expression

    @property
    def name(self) -> str:
        """What Python calls it."""
        return "<lambda>"

    @property
    def words(self) -> list[str]:
        """None are kept of a lambda."""
        return []


class ListComp(NamedTuple):
    """A comprehension that makes a list or a set, or a generator expression."""

    elt: Expression
    generators: list[Comprehension]


class DictComp(NamedTuple):
    """``{key: value for ...}``."""

    key: Expression
    value: Expression
    generators: list[Comprehension]


class NamedExpr(NamedTuple):
    """``name := value``."""

    name: str
    value: Expression


class Starred(NamedTuple):
    """``*value``."""

    value: Expression


class Yield(NamedTuple):
    """``yield value``."""

    value: Expression


class YieldFrom(NamedTuple):
    """``yield from value``."""

    value: Expression


class Other(NamedTuple):
    """An expression of any other kind, by the expressions in it."""

    parts: list[Expression]


Expression = (
    Name
    | Constant
    | Attribute
    | Call
    | JoinedStr
    | Tuple
    | List
    | Dict
    | IfExp
    | BoolOp
    | Not
    | Compare
    | BinOp
    | Subscript
    | Lambda
    | ListComp
    | DictComp
    | NamedExpr
    | Starred
    | Yield
    | YieldFrom
    | Other
)

NONE = Constant(None)
"""What is not given."""
