"""The nodes of a syntax tree that the walk and the rules read: kinds and fields are called as in Python's ``ast``.

What differs from ``ast``, since it spares those who read a case:
- ``await x`` and the parts of an f-string are the expression itself; async statements are the plain ones.
- A negative number is a Constant. What nobody asks about is an Other, with the expressions in it.
- A set counts as a List, a set comprehension or a generator expression as a ListComp: nothing tells them apart.
- Operators are the names of their classes ("Add", "Eq", "And"). What is not given is a Constant of None, where it is
  evaluated, as in a bare ``return``.
- A node of ``if`` and the like has the span of its header.
- ``words`` has every identifier of a definition, and every short string behind a quotation mark, with leading hyphens
  taken off: it tells quickly whether a body can matter. Statements of a module's top level have them too, others None.

Nodes are not changed, and a Name or a Constant may stand at several places of a tree. They are tuples: kinds are told
by ``isinstance``, not by ``==``, since a Name equals a Constant of the same text.
"""

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


class Alias(NamedTuple):
    """A name that an import statement gives, ``name as asname``."""

    name: str
    asname: str | None


class WithItem(NamedTuple):
    """``context_expr as optional_vars``."""

    context_expr: Expression
    optional_vars: Expression | None


class ExceptHandler(NamedTuple):
    """``except type as name: body``."""

    type: Expression | None
    name: str | None
    body: list[Statement]


class MatchCase(NamedTuple):
    """A case of ``match``. captures: the names that its pattern binds."""

    captures: list[str]
    guard: Expression | None
    body: list[Statement]


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


class Expr(NamedTuple):
    """An expression that is a statement."""

    span: Extent
    value: Expression
    words: list[str] | None = None


class Assign(NamedTuple):
    """``a = b = value``, also with an annotation."""

    span: Extent
    targets: list[Expression]
    value: Expression
    words: list[str] | None = None


class AugAssign(NamedTuple):
    """``target += value``."""

    span: Extent
    target: Expression
    op: str
    value: Expression


class If(NamedTuple):
    """``if``; an ``elif`` is an If in ``orelse``."""

    span: Extent
    test: Expression
    body: list[Statement]
    orelse: list[Statement]


class For(NamedTuple):
    """``for target in iter``."""

    span: Extent
    target: Expression
    iter: Expression
    body: list[Statement]
    orelse: list[Statement]
    words: list[str] | None = None


class While(NamedTuple):
    """``while test``."""

    span: Extent
    test: Expression
    body: list[Statement]
    orelse: list[Statement]


class With(NamedTuple):
    """``with items``."""

    span: Extent
    items: list[WithItem]
    body: list[Statement]


class Try(NamedTuple):
    """``try``, also with ``except*``."""

    span: Extent
    body: list[Statement]
    handlers: list[ExceptHandler]
    orelse: list[Statement]
    finalbody: list[Statement]


class Return(NamedTuple):
    """``return value``."""

    span: Extent
    value: Expression


class Raise(NamedTuple):
    """``raise exc``."""

    span: Extent
    exc: Expression


class Break(NamedTuple):
    """``break``."""

    span: Extent


class Continue(NamedTuple):
    """``continue``."""

    span: Extent


class FunctionDef(NamedTuple):
    """``def``. The span is the start only. is_generator: its own body yields, not only a function in it."""

    span: Extent
    name: str
    args: Arguments
    body: list[Statement]
    decorator_list: list[Expression]
    is_generator: bool
    words: list[str]


class ClassDef(NamedTuple):
    """``class``. The span is the start only."""

    span: Extent
    name: str
    bases: list[Expression]
    body: list[Statement]
    decorator_list: list[Expression]
    words: list[str]


class Import(NamedTuple):
    """``import a.b as c``."""

    span: Extent
    names: list[Alias]


class ImportFrom(NamedTuple):
    """``from ..module import names``. level: the number of dots; module: empty for nothing but dots."""

    span: Extent
    module: str
    level: int
    names: list[Alias]


class Global(NamedTuple):
    """``global`` or ``nonlocal``."""

    span: Extent
    names: list[str]


class Assert(NamedTuple):
    """``assert test``."""

    span: Extent
    test: Expression


class Match(NamedTuple):
    """``match subject``."""

    span: Extent
    subject: Expression
    cases: list[MatchCase]


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
Statement = (
    Expr
    | Assign
    | AugAssign
    | If
    | For
    | While
    | With
    | Try
    | Return
    | Raise
    | Break
    | Continue
    | FunctionDef
    | ClassDef
    | Import
    | ImportFrom
    | Global
    | Assert
    | Match
)
Node = Expression | Statement
EXPRESSIONS: frozenset[type] = frozenset(Expression.__args__)
STATEMENTS: frozenset[type] = frozenset(Statement.__args__)
PARTS = frozenset((Keyword, Parameter, Arguments, Comprehension, WithItem, ExceptHandler, MatchCase))
"""What holds nodes and is none itself."""

NONE = Constant(None)
"""What is not given."""
