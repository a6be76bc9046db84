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

from validate_ddp.source.expressions import NONE as NONE
from validate_ddp.source.expressions import Arguments as Arguments
from validate_ddp.source.expressions import Attribute as Attribute
from validate_ddp.source.expressions import BinOp as BinOp
from validate_ddp.source.expressions import BoolOp as BoolOp
from validate_ddp.source.expressions import Call as Call
from validate_ddp.source.expressions import Compare as Compare
from validate_ddp.source.expressions import Comprehension as Comprehension
from validate_ddp.source.expressions import Constant as Constant
from validate_ddp.source.expressions import Dict as Dict
from validate_ddp.source.expressions import DictComp as DictComp
from validate_ddp.source.expressions import Expression as Expression
from validate_ddp.source.expressions import Extent as Extent
from validate_ddp.source.expressions import IfExp as IfExp
from validate_ddp.source.expressions import JoinedStr as JoinedStr
from validate_ddp.source.expressions import Keyword as Keyword
from validate_ddp.source.expressions import Lambda as Lambda
from validate_ddp.source.expressions import List as List
from validate_ddp.source.expressions import ListComp as ListComp
from validate_ddp.source.expressions import Name as Name
from validate_ddp.source.expressions import NamedExpr as NamedExpr
from validate_ddp.source.expressions import Not as Not
from validate_ddp.source.expressions import Other as Other
from validate_ddp.source.expressions import Parameter as Parameter
from validate_ddp.source.expressions import Starred as Starred
from validate_ddp.source.expressions import Subscript as Subscript
from validate_ddp.source.expressions import Tuple as Tuple
from validate_ddp.source.expressions import Yield as Yield
from validate_ddp.source.expressions import YieldFrom as YieldFrom


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
    """``class``. The span is the start only. fields: the names that its body annotates, in their order."""

    span: Extent
    name: str
    bases: list[Expression]
    body: list[Statement]
    decorator_list: list[Expression]
    words: list[str]
    fields: list[str]


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
Binding = Assign | FunctionDef | ClassDef
"""What gives a name of a module's top level its value."""
Node = Expression | Statement
EXPRESSIONS: frozenset[type] = frozenset(Expression.__args__)
STATEMENTS: frozenset[type] = frozenset(Statement.__args__)
PARTS = frozenset((Keyword, Parameter, Arguments, Comprehension, WithItem, ExceptHandler, MatchCase))
"""What holds nodes and is none itself."""
