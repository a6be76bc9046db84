"""A correct script as concrete trees: its files, with places, parents and qualified names of their nodes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, ParentNodeProvider, QualifiedNameProvider

from ci.mutants.mutant import Edit, Place

CORRECT = Path(__file__).parent / "correct"
_Node = TypeVar("_Node", bound=cst.CSTNode)


class Script:
    """An entry script and the modules beside it, of one folder or one file."""

    def __init__(self, name: str, texts: dict[str, str]) -> None:
        self.name = name
        self.texts = texts
        self.entry = "train.py" if "train.py" in texts else next(iter(texts))
        self.files = [File(path, text) for path, text in texts.items()]

    def find(self, kind: type[_Node]) -> Iterator[tuple[File, _Node]]:
        """The nodes of a kind, in all files, in order."""
        for file in self.files:
            for node in file.of(kind):
                yield file, node

    def calls(self, *names: str) -> Iterator[tuple[File, cst.Call]]:
        """Calls of a function by its qualified name's end: ``distributed.barrier``, or of a method: ``.set_epoch``."""
        for file, call in self.find(cst.Call):
            if file.is_call_of(call, *names):
                yield file, call

    def mentions(self, pattern: str) -> bool:
        """Whether any file holds the regular expression."""
        return any(re.search(pattern, text) for text in self.texts.values())


class File:
    """One file; spans count characters, and the texts are ASCII so that they are bytes too."""

    def __init__(self, path: str, text: str) -> None:
        if not text.isascii():
            raise ValueError(f"{path}: write correct scripts in ASCII")
        self.path = path
        self.text = text
        self._wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self._spans = self._wrapper.resolve(ByteSpanPositionProvider)
        self._parents = self._wrapper.resolve(ParentNodeProvider)
        self._names = self._wrapper.resolve(QualifiedNameProvider)
        self._by_kind: dict[type[cst.CSTNode], list[Any]] = {}

    @cached_property
    def nodes(self) -> list[cst.CSTNode]:
        """Every node that has a place, in source order."""
        found: list[cst.CSTNode] = []

        class Collector(cst.CSTVisitor):
            def on_visit(self, node: cst.CSTNode) -> bool:
                found.append(node)
                return True

        self._wrapper.module.visit(Collector())
        return found

    def of(self, kind: type[_Node]) -> list[_Node]:
        """The nodes of a kind, in source order."""
        if kind not in self._by_kind:
            self._by_kind[kind] = [node for node in self.nodes if isinstance(node, kind)]
        return self._by_kind[kind]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        parent: cst.CSTNode | None = self._parents.get(node)
        return parent

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """What holds the node, innermost first."""
        current = self.parent(node)
        while current is not None:
            yield current
            current = self.parent(current)

    def inside(self, node: cst.CSTNode, kind: type[_Node]) -> Iterator[_Node]:
        """The nodes of a kind within a node, itself included."""
        start, end = self.span(node)
        for other in self.of(kind):
            first, last = self.span(other)
            if start <= first and last <= end and first < last:
                yield other

    def enclosing(self, node: cst.CSTNode, kind: type[_Node]) -> _Node | None:
        """The innermost node of a kind around the node."""
        return next((parent for parent in self.parents(node) if isinstance(parent, kind)), None)

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        """The innermost statement that holds the node, or is it."""
        for current in (node, *self.parents(node)):
            if isinstance(current, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                return current
        raise ValueError("outside of every statement")

    def qualified(self, node: cst.CSTNode) -> str:
        """The qualified name of a name or dotted name: where its import says that it comes from."""
        names: Any = self._names.get(node, ())
        if callable(names):
            names = names()  # the provider is lazy
        return next((name.name for name in names), "")

    def is_call_of(self, call: cst.Call, *names: str) -> bool:
        """As ``Script.calls``: names that start with a dot are methods, the others ends of qualified names."""
        qualified = "." + self.qualified(call.func)
        method = "." + call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        return any(method == name if name.startswith(".") else qualified.endswith("." + name) for name in names)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where the node starts and ends; a compound statement ends with the last statement in it."""
        span = self._spans.get(node)
        if span is None:
            return 0, 0
        end = span.start + span.length
        if isinstance(node, cst.BaseCompoundStatement):
            end = span.start + len(self.text[span.start : end].rstrip())
        return span.start, end

    def code(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def place(self, node: cst.CSTNode) -> Place:
        return Place(self.path, *self.span(node))

    def lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """From the start of its first line to behind the end of its last."""
        start, end = self.span(node)
        newline = self.text.find("\n", end)
        return self.text.rfind("\n", 0, start) + 1, len(self.text) if newline < 0 else newline + 1

    def indent_of(self, node: cst.CSTNode) -> str:
        start, _ = self.span(node)
        return self.text[self.text.rfind("\n", 0, start) + 1 : start]

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        return self.enclosing(node, cst.FunctionDef)

    # What may be done to it.

    def replace(self, node: cst.CSTNode, text: str) -> Edit:
        return Edit(self.path, *self.span(node), text)

    def remove(self, statement: cst.CSTNode) -> Edit:
        """Take a statement out; ``pass`` takes its place where it is alone."""
        block = self.parent(statement)
        start, end = self.lines_of(statement)
        alone = isinstance(block, cst.IndentedBlock) and len(block.body) == 1
        return Edit(self.path, start, end, f"{self.indent_of(statement)}pass\n" if alone else "")

    def before(self, statement: cst.CSTNode, text: str) -> Edit:
        start, _ = self.lines_of(statement)
        return Edit(self.path, start, start, textwrap.indent(text, self.indent_of(statement)) + "\n")

    def after(self, statement: cst.CSTNode, text: str) -> Edit:
        _, end = self.lines_of(statement)
        return Edit(self.path, end, end, textwrap.indent(text, self.indent_of(statement)) + "\n")

    def under(self, statement: cst.CSTNode, header: str, footer: str = "") -> Edit:
        """Put a statement under ``header``, such as ``if x:``; ``footer`` follows at the header's indentation."""
        start, end = self.lines_of(statement)
        indent = self.indent_of(statement)
        body = textwrap.indent(self.text[start:end], "    ")
        tail = textwrap.indent(footer, indent) + "\n" if footer else ""
        return Edit(self.path, start, end, f"{indent}{header}\n{body}{tail}")

    def free(self, compound: cst.If | cst.With) -> Edit:
        """Let the body take the place of an ``if`` or ``with`` around it."""
        start, end = self.lines_of(compound)
        assert isinstance(compound.body, cst.IndentedBlock)
        first, _ = self.lines_of(compound.body.body[0])
        body = textwrap.dedent(self.text[first:end])
        return Edit(self.path, start, end, textwrap.indent(body, self.indent_of(compound)))

    def without_argument(self, call: cst.Call, keyword: str, value: str | None = None) -> Edit | None:
        """The call without a keyword argument, or with another value; None where it has none of that name."""
        arguments = []
        found = False
        for argument in call.args:
            code = self.code(argument).rstrip().rstrip(",")
            if argument.keyword is not None and argument.keyword.value == keyword:
                found = True
                if value is None:
                    continue
                code = f"{keyword}={value}"
            arguments.append(code)
        return self.replace(call, f"{self.code(call.func)}({', '.join(arguments)})") if found else None

    def with_argument(self, call: cst.Call, text: str) -> Edit:
        """The call with one more argument at its end."""
        arguments = [self.code(argument).rstrip().rstrip(",") for argument in call.args]
        return self.replace(call, f"{self.code(call.func)}({', '.join([*arguments, text])})")


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """The keyword argument of that name."""
    return next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def load(path: Path) -> Script:
    """A script of one file, or of all files of a folder."""
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return Script(path.stem, {file.name: file.read_text(encoding="utf-8") for file in files})


def correct_scripts() -> list[Script]:
    """The scripts under ``correct/``, by name."""
    paths = [path for path in CORRECT.iterdir() if path.suffix == ".py" or (path / "train.py").exists()]
    return [load(path) for path in sorted(paths)]
