"""From a syntax tree to a module's summary: plain nested lists that ``program`` walks and the cache keeps as JSON.

Expressions                                        Statements (second item: span of the statement or of its header)
  ["name", id]                                       ["expr", span, value]
  ["const", value]                                   ["assign", span, targets, value]
  ["attr", value, name, span]                        ["aug", span, target, operator, value]
  ["call", func, args, [[name, value]], span]        ["if", span, test, body, orelse]
  ["fstr", parts]                                    ["for", span, target, iter, body, orelse]
  ["seq", tuple|list|set, items]                     ["while", span, test, body, orelse]
  ["dict", keys, values]                             ["with", span, [[context, target]], body]
  ["cond", test, body, orelse]                       ["try", span, body, [[type, name, body]], orelse, final]
  ["bool", and|or, values]                           ["return", span, value]  ["raise", span, value]
  ["not", value]                                     ["break", span]  ["continue", span]
  ["cmp", left, operators, values]                   ["def", span, name, parameters, body, decorators, generator, names]
  ["bin", operator, left, right]                     ["class", span, name, bases, body, decorators, names]
  ["sub", value, index, span]                        ["import", span, [[module, asname]]]
  ["lambda", parameters, value]                      ["from", span, module, level, [[name, asname]]]
  ["comp", kind, items, [[target, iter, tests]]]     ["global", span, names]
  ["walrus", name, value]                            ["assert", span, test]
  ["star", value]  ["yield", value]                  ["match", span, subject, [[captures, guard, body]]]
  ["other", parts]

Parameters are [[name, default, annotation] ..., vararg, kwarg, positional]: ``positional`` counts the first ones that
may be given by position. ``names`` lists every identifier in a body, and every short string behind a quotation mark,
with leading hyphens taken off, to tell quickly whether it can matter; at a
module's top level, assignments, expressions and for loops have such a list too, as their last item.
"""

from __future__ import annotations

import _ast as ast  # what `ast` is made of, without the cost of its helpers
from collections.abc import Callable, Iterator
from typing import Any

Node = list[Any]
FORMAT = 2
"""Raised when the shape of summaries changes: older cache entries are then misses."""

_LONGEST_STRING = 400


class _Lowering:
    """Walks one tree; holds the stack of identifier sets of the enclosing definitions."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: list[set[str]] = [set()]

    def expression(self, node: ast.expr | None) -> Node:
        if node is None:
            return ["const", None]
        handler = _EXPRESSIONS.get(type(node))
        if handler is not None:
            return handler(self, node)
        return ["other", [self.expression(child) for child in _children(node) if isinstance(child, ast.expr)]]

    def expressions(self, nodes: list[ast.expr]) -> list[Node]:
        return [self.expression(node) for node in nodes]

    def body(self, statements: list[ast.stmt]) -> list[Node]:
        lowered = []
        for statement in statements:
            handler = _STATEMENTS.get(type(statement))
            if handler is not None:
                lowered.append(handler(self, statement))
        return lowered

    def parameters(self, arguments: ast.arguments) -> Node:
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        defaults += arguments.defaults
        rows = []
        for parameter, default in [
            *zip(positional, defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]:
            annotation = self.expression(parameter.annotation) if parameter.annotation else None
            rows.append([parameter.arg, self.expression(default) if default else None, annotation])
        vararg = arguments.vararg.arg if arguments.vararg else None
        kwarg = arguments.kwarg.arg if arguments.kwarg else None
        return [rows, vararg, kwarg, len(positional)]


def _span(node: ast.expr | ast.stmt) -> list[int]:
    return [node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset]


def _header(node: ast.stmt, last: ast.AST | None) -> list[int]:
    """From the start of a compound statement to the end of its header's last expression."""
    end_line = getattr(last, "end_lineno", None) or node.lineno
    end_column = getattr(last, "end_col_offset", None) or node.col_offset
    return [node.lineno, node.col_offset, end_line, end_column]


def _name(self: _Lowering, node: ast.Name) -> Node:
    self.names[-1].add(node.id)
    return ["name", node.id]


def _constant(self: _Lowering, node: ast.Constant) -> Node:
    value = node.value
    if isinstance(value, str):
        if len(value) < 40:
            self.names[-1].add('"' + value.lstrip("-"))
        return ["const", value[:_LONGEST_STRING]]
    if value is None or isinstance(value, (bool, float)):
        return ["const", value]
    if isinstance(value, int) and -(1 << 63) < value < 1 << 63:
        return ["const", value]
    return ["other", []]


def _attribute(self: _Lowering, node: ast.Attribute) -> Node:
    self.names[-1].add(node.attr)
    return ["attr", self.expression(node.value), node.attr, _span(node)]


def _call(self: _Lowering, node: ast.Call) -> Node:
    keywords = []
    for keyword in node.keywords:
        if keyword.arg:
            self.names[-1].add(keyword.arg)
        keywords.append([keyword.arg, self.expression(keyword.value)])
    return ["call", self.expression(node.func), self.expressions(node.args), keywords, _span(node)]


def _sequence(kind: str) -> Callable[[_Lowering, Any], Node]:
    return lambda self, node: ["seq", kind, self.expressions(node.elts)]


def _compare(self: _Lowering, node: ast.Compare) -> Node:
    operators = [type(operator).__name__ for operator in node.ops]
    return ["cmp", self.expression(node.left), operators, self.expressions(node.comparators)]


def _unary(self: _Lowering, node: ast.UnaryOp) -> Node:
    operand = self.expression(node.operand)
    if isinstance(node.op, ast.Not):
        return ["not", operand]
    if isinstance(node.op, ast.USub) and operand[0] == "const" and type(operand[1]) in (int, float):
        return ["const", -operand[1]]
    return ["other", [operand]]


def _comprehension(kind: str) -> Callable[[_Lowering, Any], Node]:
    def lower(self: _Lowering, node: Any) -> Node:
        generators = [
            [self.expression(clause.target), self.expression(clause.iter), self.expressions(clause.ifs)]
            for clause in node.generators
        ]
        items = [node.key, node.value] if kind == "dict" else [node.elt]
        return ["comp", kind, self.expressions(items), generators]

    return lower


def _binary(self: _Lowering, node: ast.BinOp) -> Node:
    # Chains such as "a" + "b" + ... are deep on the left: they are unrolled, or a long one would exhaust the stack.
    rights: list[tuple[str, ast.expr]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp):
        rights.append((type(left.op).__name__, left.right))
        left = left.left
    if len(rights) > 60:
        return ["other", []]
    lowered = self.expression(left)
    for operator, right in reversed(rights):
        lowered = ["bin", operator, lowered, self.expression(right)]
    return lowered


def _dict(self: _Lowering, node: ast.Dict) -> Node:
    keys = [None if key is None else self.expression(key) for key in node.keys]
    return ["dict", keys, self.expressions(node.values)]


_EXPRESSIONS: dict[type, Callable[[_Lowering, Any], Node]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.JoinedStr: lambda self, node: ["fstr", self.expressions(node.values)],
    ast.FormattedValue: lambda self, node: self.expression(node.value),
    ast.Tuple: _sequence("tuple"),
    ast.List: _sequence("list"),
    ast.Set: _sequence("set"),
    ast.Dict: _dict,
    ast.IfExp: lambda self, node: ["cond", *self.expressions([node.test, node.body, node.orelse])],
    ast.BoolOp: lambda self, node: [
        "bool",
        "and" if isinstance(node.op, ast.And) else "or",
        self.expressions(node.values),
    ],
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BinOp: _binary,
    ast.Subscript: lambda self, node: ["sub", self.expression(node.value), self.expression(node.slice), _span(node)],
    ast.Lambda: lambda self, node: ["lambda", self.parameters(node.args), self.expression(node.body)],
    ast.ListComp: _comprehension("list"),
    ast.SetComp: _comprehension("set"),
    ast.GeneratorExp: _comprehension("generator"),
    ast.DictComp: _comprehension("dict"),
    ast.NamedExpr: lambda self, node: ["walrus", node.target.id, self.expression(node.value)],
    ast.Await: lambda self, node: self.expression(node.value),
    ast.Starred: lambda self, node: ["star", self.expression(node.value)],
    ast.Yield: lambda self, node: ["yield", self.expression(node.value)],
    ast.YieldFrom: lambda self, node: ["yield", ["star", self.expression(node.value)]],
}


def _assign(self: _Lowering, node: ast.Assign) -> Node:
    return ["assign", _span(node), self.expressions(node.targets), self.expression(node.value)]


def _annotated(self: _Lowering, node: ast.AnnAssign) -> Node:
    if node.value is None:
        return ["expr", _span(node), ["const", None]]
    return ["assign", _span(node), [self.expression(node.target)], self.expression(node.value)]


def _augmented(self: _Lowering, node: ast.AugAssign) -> Node:
    operator = type(node.op).__name__
    return ["aug", _span(node), self.expression(node.target), operator, self.expression(node.value)]


def _if(self: _Lowering, node: ast.If) -> Node:
    # An elif chain is a ladder of nested Ifs: it is walked down in a loop, since 20,000 of them are one file away.
    top: Node = ["if", _header(node, node.test), self.expression(node.test), self.body(node.body), []]
    lowest = top
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        step: Node = ["if", _header(node, node.test), self.expression(node.test), self.body(node.body), []]
        lowest[4] = [step]
        lowest = step
    lowest[4] = self.body(node.orelse)
    return top


def _for(self: _Lowering, node: ast.For | ast.AsyncFor) -> Node:
    header = _header(node, node.iter)
    target, iterated = self.expressions([node.target, node.iter])
    return ["for", header, target, iterated, self.body(node.body), self.body(node.orelse)]


def _while(self: _Lowering, node: ast.While) -> Node:
    return [
        "while",
        _header(node, node.test),
        self.expression(node.test),
        self.body(node.body),
        self.body(node.orelse),
    ]


def _with(self: _Lowering, node: ast.With | ast.AsyncWith) -> Node:
    items = [
        [self.expression(item.context_expr), self.expression(item.optional_vars) if item.optional_vars else None]
        for item in node.items
    ]
    last = node.items[-1].optional_vars or node.items[-1].context_expr
    return ["with", _header(node, last), items, self.body(node.body)]


def _try(self: _Lowering, node: Any) -> Node:
    handlers = [[self.expression(h.type) if h.type else None, h.name, self.body(h.body)] for h in node.handlers]
    header = [node.lineno, node.col_offset, node.lineno, node.col_offset + 3]
    return ["try", header, self.body(node.body), handlers, self.body(node.orelse), self.body(node.finalbody)]


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


def _definition(self: _Lowering, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Node:
    decorators = self.expressions(node.decorator_list)
    parameters = self.parameters(node.args)
    self.names.append(set())
    body = self.body(node.body)
    names = self.names.pop()
    self.names[-1] |= names
    names.update(row[0] for row in parameters[0])
    generator = "yield" in names and _yields(node.body)  # the handler of yield sets it: only such bodies are searched
    header = [node.lineno, node.col_offset, node.lineno, node.col_offset]
    return ["def", header, node.name, parameters, body, decorators, generator, sorted(names)]


def _yield(self: _Lowering, node: ast.Yield | ast.YieldFrom) -> Node:
    self.names[-1].add("yield")
    value = self.expression(node.value)
    return ["yield", ["star", value] if isinstance(node, ast.YieldFrom) else value]


_EXPRESSIONS[ast.Yield] = _EXPRESSIONS[ast.YieldFrom] = _yield


def _class(self: _Lowering, node: ast.ClassDef) -> Node:
    bases = self.expressions(node.bases)
    decorators = self.expressions(node.decorator_list)
    self.names.append(set())
    body = self.body(node.body)
    names = self.names.pop()
    self.names[-1] |= names
    header = [node.lineno, node.col_offset, node.lineno, node.col_offset]
    return ["class", header, node.name, bases, body, decorators, sorted(names)]


def _import(self: _Lowering, node: ast.Import) -> Node:
    return ["import", _span(node), [[alias.name, alias.asname] for alias in node.names]]


def _import_from(self: _Lowering, node: ast.ImportFrom) -> Node:
    return ["from", _span(node), node.module or "", node.level, [[alias.name, alias.asname] for alias in node.names]]


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


def _match(self: _Lowering, node: Any) -> Node:
    cases = []
    for case in node.cases:
        captures = _captures(case.pattern)
        cases.append([captures, self.expression(case.guard) if case.guard else None, self.body(case.body)])
    return ["match", _header(node, node.subject), self.expression(node.subject), cases]


_STATEMENTS: dict[type, Callable[[_Lowering, Any], Node]] = {
    ast.Expr: lambda self, node: ["expr", _span(node), self.expression(node.value)],
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
    ast.Return: lambda self, node: ["return", _span(node), self.expression(node.value)],
    ast.Raise: lambda self, node: ["raise", _span(node), self.expression(node.exc)],
    ast.Break: lambda self, node: ["break", _span(node)],
    ast.Continue: lambda self, node: ["continue", _span(node)],
    ast.FunctionDef: _definition,
    ast.AsyncFunctionDef: _definition,
    ast.ClassDef: _class,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Global: lambda self, node: ["global", _span(node), node.names],
    ast.Nonlocal: lambda self, node: ["global", _span(node), node.names],
    ast.Assert: lambda self, node: ["assert", _span(node), self.expression(node.test)],
    ast.Match: _match,
}
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = _try


def lower(tree: ast.Module) -> Node:
    """The body of ``tree`` as plain lists. Raises RecursionError where the tree is deeper than Python's stack."""
    lowering = _Lowering()
    body: Node = []
    for statement in tree.body:
        lowering.names = [set()]
        lowered = lowering.body([statement])
        if lowered and lowered[0][0] in ("assign", "expr", "for"):
            lowered[0].append(sorted(lowering.names[0]))
        body += lowered
    return body
