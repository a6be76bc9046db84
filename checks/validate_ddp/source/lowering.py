"""From a syntax tree to the nodes of ``source.syntax``, which are fewer and hold what rules ask about."""

from __future__ import annotations

import _ast as ast  # what `ast` is made of, without the cost of its helpers
from collections.abc import Callable, Iterator
from typing import Any

from validate_ddp.source import syntax
from validate_ddp.source.syntax import Expression, Extent, Statement

_LONGEST_STRING = 400


class _Lowering:
    """Walks one tree; holds the stack of identifier sets of the enclosing definitions, and the names met so far."""

    __slots__ = ("identifiers", "strings", "words")

    def __init__(self) -> None:
        self.words: list[set[str]] = [set()]
        self.identifiers: dict[str, syntax.Name] = {}
        self.strings: dict[str, syntax.Constant] = {}

    def expression(self, node: ast.expr | None) -> Expression:
        if node is None:
            return syntax.NONE
        handler = _EXPRESSIONS.get(type(node))
        if handler is not None:
            return handler(self, node)
        return syntax.Other([self.expression(child) for child in _children(node) if isinstance(child, ast.expr)])

    def optional(self, node: ast.expr | None) -> Expression | None:
        return None if node is None else self.expression(node)

    def expressions(self, nodes: list[ast.expr]) -> list[Expression]:
        return [self.expression(node) for node in nodes]

    def body(self, statements: list[ast.stmt]) -> list[Statement]:
        lowered = []
        for statement in statements:
            handler = _STATEMENTS.get(type(statement))
            if handler is not None:
                lowered.append(handler(self, statement))
        return lowered

    def arguments(self, arguments: ast.arguments) -> syntax.Arguments:
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        defaults += arguments.defaults
        parameters = [
            syntax.Parameter(parameter.arg, self.optional(default), self.optional(parameter.annotation))
            for parameter, default in [
                *zip(positional, defaults, strict=True),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
            ]
        ]
        vararg = arguments.vararg.arg if arguments.vararg else None
        kwarg = arguments.kwarg.arg if arguments.kwarg else None
        return syntax.Arguments(parameters, vararg, kwarg, len(positional))


def _span(node: ast.expr | ast.stmt) -> Extent:
    return (node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


def _header(node: ast.stmt, last: ast.AST | None) -> Extent:
    """From the start of a compound statement to the end of its header's last expression."""
    end_line = getattr(last, "end_lineno", None) or node.lineno
    end_column = getattr(last, "end_col_offset", None) or node.col_offset
    return (node.lineno, node.col_offset, end_line, end_column)


def _start(node: ast.stmt) -> Extent:
    return (node.lineno, node.col_offset, node.lineno, node.col_offset)


def _name(self: _Lowering, node: ast.Name) -> Expression:
    name = node.id
    self.words[-1].add(name)
    known = self.identifiers.get(name)
    if known is None:
        known = self.identifiers[name] = syntax.Name(name)
    return known


def _constant(self: _Lowering, node: ast.Constant) -> Expression:
    value = node.value
    if isinstance(value, str):
        if len(value) < 40:
            self.words[-1].add('"' + value.lstrip("-"))
        text = value[:_LONGEST_STRING]
        known = self.strings.get(text)
        if known is None:
            known = self.strings[text] = syntax.Constant(text)
        return known
    if value is None:
        return syntax.NONE
    if isinstance(value, (bool, float)) or (isinstance(value, int) and -(1 << 63) < value < 1 << 63):
        return syntax.Constant(value)
    return syntax.Other([])


def _attribute(self: _Lowering, node: ast.Attribute) -> Expression:
    self.words[-1].add(node.attr)
    return syntax.Attribute(self.expression(node.value), node.attr, _span(node))


def _call(self: _Lowering, node: ast.Call) -> Expression:
    keywords = []
    for keyword in node.keywords:
        if keyword.arg:
            self.words[-1].add(keyword.arg)
        keywords.append(syntax.Keyword(keyword.arg, self.expression(keyword.value)))
    return syntax.Call(self.expression(node.func), self.expressions(node.args), keywords, _span(node))


def _compare(self: _Lowering, node: ast.Compare) -> Expression:
    operators = [type(operator).__name__ for operator in node.ops]
    return syntax.Compare(self.expression(node.left), operators, self.expressions(node.comparators))


def _unary(self: _Lowering, node: ast.UnaryOp) -> Expression:
    operand = self.expression(node.operand)
    if isinstance(node.op, ast.Not):
        return syntax.Not(operand)
    if isinstance(node.op, ast.USub) and isinstance(operand, syntax.Constant):
        if isinstance(operand.value, (int, float)) and not isinstance(operand.value, bool):
            return syntax.Constant(-operand.value)
    return syntax.Other([operand])


def _clauses(self: _Lowering, generators: list[ast.comprehension]) -> list[syntax.Comprehension]:
    return [
        syntax.Comprehension(self.expression(each.target), self.expression(each.iter), self.expressions(each.ifs))
        for each in generators
    ]


def _list_comprehension(self: _Lowering, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Expression:
    return syntax.ListComp(self.expression(node.elt), _clauses(self, node.generators))


def _dict_comprehension(self: _Lowering, node: ast.DictComp) -> Expression:
    return syntax.DictComp(self.expression(node.key), self.expression(node.value), _clauses(self, node.generators))


def _binary(self: _Lowering, node: ast.BinOp) -> Expression:
    # Chains such as "a" + "b" + ... are deep on the left: they are unrolled, or a long one would exhaust the stack.
    rights: list[tuple[str, ast.expr]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp):
        rights.append((type(left.op).__name__, left.right))
        left = left.left
    if len(rights) > 60:
        return syntax.Other([])
    lowered = self.expression(left)
    for operator, right in reversed(rights):
        lowered = syntax.BinOp(operator, lowered, self.expression(right))
    return lowered


def _dict(self: _Lowering, node: ast.Dict) -> Expression:
    return syntax.Dict([self.optional(key) for key in node.keys], self.expressions(node.values))


def _list(self: _Lowering, node: ast.List | ast.Set) -> Expression:
    return syntax.List(self.expressions(node.elts))


def _conditional(self: _Lowering, node: ast.IfExp) -> Expression:
    return syntax.IfExp(self.expression(node.test), self.expression(node.body), self.expression(node.orelse))


def _subscript(self: _Lowering, node: ast.Subscript) -> Expression:
    return syntax.Subscript(self.expression(node.value), self.expression(node.slice), _span(node))


def _yield(self: _Lowering, node: ast.Yield | ast.YieldFrom) -> Expression:
    self.words[-1].add("yield")
    value = self.expression(node.value)
    return syntax.YieldFrom(value) if isinstance(node, ast.YieldFrom) else syntax.Yield(value)


_EXPRESSIONS: dict[type, Callable[[_Lowering, Any], Expression]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.JoinedStr: lambda self, node: syntax.JoinedStr(self.expressions(node.values)),
    ast.FormattedValue: lambda self, node: self.expression(node.value),
    ast.Tuple: lambda self, node: syntax.Tuple(self.expressions(node.elts)),
    ast.List: _list,
    ast.Set: _list,
    ast.Dict: _dict,
    ast.IfExp: _conditional,
    ast.BoolOp: lambda self, node: syntax.BoolOp(type(node.op).__name__, self.expressions(node.values)),
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BinOp: _binary,
    ast.Subscript: _subscript,
    ast.Lambda: lambda self, node: syntax.Lambda(self.arguments(node.args), self.expression(node.body)),
    ast.ListComp: _list_comprehension,
    ast.SetComp: _list_comprehension,
    ast.GeneratorExp: _list_comprehension,
    ast.DictComp: _dict_comprehension,
    ast.NamedExpr: lambda self, node: syntax.NamedExpr(node.target.id, self.expression(node.value)),
    ast.Await: lambda self, node: self.expression(node.value),
    ast.Starred: lambda self, node: syntax.Starred(self.expression(node.value)),
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
}


def _assign(self: _Lowering, node: ast.Assign) -> Statement:
    return syntax.Assign(_span(node), self.expressions(node.targets), self.expression(node.value))


def _annotated(self: _Lowering, node: ast.AnnAssign) -> Statement:
    if node.value is None:
        return syntax.Expr(_span(node), syntax.NONE)
    return syntax.Assign(_span(node), [self.expression(node.target)], self.expression(node.value))


def _augmented(self: _Lowering, node: ast.AugAssign) -> Statement:
    operator = type(node.op).__name__
    return syntax.AugAssign(_span(node), self.expression(node.target), operator, self.expression(node.value))


def _if(self: _Lowering, node: ast.If) -> Statement:
    # An elif chain is a ladder of nested Ifs: it is walked down in a loop, since 20,000 of them are one file away.
    ladder = [node]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        ladder.append(node)
    orelse = self.body(node.orelse)
    for step in reversed(ladder):
        lowered = syntax.If(_header(step, step.test), self.expression(step.test), self.body(step.body), orelse)
        orelse = [lowered]
    return lowered


def _for(self: _Lowering, node: ast.For | ast.AsyncFor) -> Statement:
    target, iterated = self.expression(node.target), self.expression(node.iter)
    return syntax.For(_header(node, node.iter), target, iterated, self.body(node.body), self.body(node.orelse))


def _while(self: _Lowering, node: ast.While) -> Statement:
    test = self.expression(node.test)
    return syntax.While(_header(node, node.test), test, self.body(node.body), self.body(node.orelse))


def _with(self: _Lowering, node: ast.With | ast.AsyncWith) -> Statement:
    items = [
        syntax.WithItem(self.expression(item.context_expr), self.optional(item.optional_vars)) for item in node.items
    ]
    last = node.items[-1].optional_vars or node.items[-1].context_expr
    return syntax.With(_header(node, last), items, self.body(node.body))


def _try(self: _Lowering, node: Any) -> Statement:
    handlers = [
        syntax.ExceptHandler(self.optional(handler.type), handler.name, self.body(handler.body))
        for handler in node.handlers
    ]
    header = (node.lineno, node.col_offset, node.lineno, node.col_offset + 3)
    return syntax.Try(header, self.body(node.body), handlers, self.body(node.orelse), self.body(node.finalbody))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for field in node._fields:
        value = getattr(node, field, None)
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                yield child


def _yields(body: list[ast.stmt]) -> bool:
    """Whether a body yields, nested definitions aside."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            todo.extend(_children(node))
    return False


def _definition(self: _Lowering, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Statement:
    decorators = self.expressions(node.decorator_list)
    arguments = self.arguments(node.args)
    self.words.append(set())
    body = self.body(node.body)
    words = self.words.pop()
    self.words[-1] |= words
    words.update(parameter.name for parameter in arguments.parameters)
    generator = "yield" in words and _yields(node.body)  # the handler of yield sets it: only such bodies are searched
    return syntax.FunctionDef(_start(node), node.name, arguments, body, decorators, generator, sorted(words))


def _class(self: _Lowering, node: ast.ClassDef) -> Statement:
    bases = self.expressions(node.bases)
    decorators = self.expressions(node.decorator_list)
    self.words.append(set())
    body = self.body(node.body)
    words = self.words.pop()
    self.words[-1] |= words
    return syntax.ClassDef(_start(node), node.name, bases, body, decorators, sorted(words), _fields(node.body))


def _fields(body: list[ast.stmt]) -> list[str]:
    """The names that a class body annotates, but for those that belong to the class itself."""
    return [
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and _last(node.annotation) != "ClassVar"
    ]


def _last(annotation: ast.expr) -> str:
    inner = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return getattr(inner, "attr", "") or getattr(inner, "id", "")


def _aliases(names: list[ast.alias]) -> list[syntax.Alias]:
    return [syntax.Alias(alias.name, alias.asname) for alias in names]


def _captures(pattern: ast.AST) -> list[str]:
    names = []
    todo = [pattern]
    while todo:
        node = todo.pop()
        name = getattr(node, "name", None)
        if isinstance(name, str):
            names.append(name)
        todo.extend(_children(node))
    return names


def _match(self: _Lowering, node: ast.Match) -> Statement:
    cases = [
        syntax.MatchCase(_captures(case.pattern), self.optional(case.guard), self.body(case.body))
        for case in node.cases
    ]
    return syntax.Match(_header(node, node.subject), self.expression(node.subject), cases)


_STATEMENTS: dict[type, Callable[[_Lowering, Any], Statement]] = {
    ast.Expr: lambda self, node: syntax.Expr(_span(node), self.expression(node.value)),
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.Return: lambda self, node: syntax.Return(_span(node), self.expression(node.value)),
    ast.Raise: lambda self, node: syntax.Raise(_span(node), self.expression(node.exc)),
    ast.Break: lambda self, node: syntax.Break(_span(node)),
    ast.Continue: lambda self, node: syntax.Continue(_span(node)),
    ast.FunctionDef: _definition,
    ast.AsyncFunctionDef: _definition,
    ast.ClassDef: _class,
    ast.Import: lambda self, node: syntax.Import(_span(node), _aliases(node.names)),
    ast.ImportFrom: lambda self, node: syntax.ImportFrom(
        _span(node), node.module or "", node.level, _aliases(node.names)
    ),
    ast.Global: lambda self, node: syntax.Global(_span(node), node.names),
    ast.Nonlocal: lambda self, node: syntax.Global(_span(node), node.names),
    ast.Assert: lambda self, node: syntax.Assert(_span(node), self.expression(node.test)),
    ast.Match: _match,
}
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = _try


def lower(tree: ast.Module) -> list[Statement]:
    """The statements of ``tree``. Raises RecursionError where the tree is deeper than Python's stack."""
    lowering = _Lowering()
    body: list[Statement] = []
    for statement in tree.body:
        lowering.words = [set()]
        for lowered in lowering.body([statement]):
            if isinstance(lowered, (syntax.Assign, syntax.Expr, syntax.For)):
                lowered = lowered._replace(words=sorted(lowering.words[0]))
            body.append(lowered)
    return body
