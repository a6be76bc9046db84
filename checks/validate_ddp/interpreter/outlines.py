"""What the parts of a file name: which words its top level, its definitions and its methods hold, without a walk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from validate_ddp.source import syntax
from validate_ddp.source.syntax import Expression, Statement
from validate_ddp.source.traversal import asks_for_main, children, walk

STARTS = "="
"""Stands among words for one without which no second rank can come into being; no word is written so."""
_STARTING = frozenset(
    """DistributedSampler DataParallel DistributedDataParallel DistributedDataParallelCPU LegacyDistributedDataParallel
    DDP FSDP FullyShardedDataParallel init_process_group destroy_process_group init_distributed init_dist spawn
    start_processes Process HfArgumentParser TrlParser TrainingArguments Seq2SeqTrainingArguments from_argparse_args
    Accelerator PartialState AcceleratorState Fabric notebook_launcher debug_launcher""".split()
)
_LIBRARIES = frozenset(
    "accelerate deepspeed horovod hydra lightning lightning_fabric lite pytorch_lightning torch_xla trl".split()
)
_PLAIN = frozenset(
    """abc abstractmethod cache cached_property classmethod compile contextlib contextmanager dataclass dataclasses
    final functools ignore inference_mode jit lru_cache no_grad overload override property script setter staticmethod
    torch total_ordering typing unused wraps""".split()
)
"""Words of decorators that hand what they decorate to nobody."""
_CALLED = frozenset({"forward"})
_ANNOTATED = frozenset({"Accelerator", "Fabric"})
"""What a parameter is that is annotated so, whatever it is given."""
_ASKING = frozenset({"isinstance", "issubclass"})

Origin = tuple[str, int, str]
"""Module, level and name of what an import binds; the name is empty for a module."""


Words = tuple[str, ...]
"""A set takes five times the memory of these, and there is one for each function of a run."""


class Outline(NamedTuple):
    """The words of a file by where they stand.

    top: of what runs where it is imported; main: of what runs besides where it is the script. held: of each definition
    of its top level; methods: of each method, by its name. imports: by the name that they bind; stars: modules of which
    all names are imported.
    """

    top: Words
    main: Words
    held: dict[str, Words]
    methods: dict[str, Words]
    imports: dict[str, list[Origin]]
    stars: list[Origin]
    names: frozenset[str]


def outline(body: list[Statement]) -> Outline:
    """The outline of a file with these statements."""
    found = _Outlining()
    found.imported(body)
    found.starting |= found.held.keys()
    top: set[str] = set()
    found.statements(body, top)
    for words in (top, found.main, *found.held.values(), *found.methods.values()):
        if not _STARTING.isdisjoint(words):
            words.add(STARTS)
    held = {name: tuple(words) for name, words in found.held.items()}
    methods = {name: tuple(words) for name, words in found.methods.items()}
    names = frozenset((*held, *found.imports))
    return Outline(tuple(top), tuple(found.main), held, methods, found.imports, found.stars, names)


class _Outlining:
    def __init__(self) -> None:
        self.main: set[str] = set()
        self.held: dict[str, set[str]] = {}
        self.methods: dict[str, set[str]] = {}
        self.imports: dict[str, list[Origin]] = {}
        self.stars: list[Origin] = []
        self.starting: set[str] = set(_STARTING)

    def imported(self, body: list[Statement]) -> None:
        """Note the imports of a body, those within functions too."""
        for node in body:
            if isinstance(node, syntax.ImportFrom):
                for name, alias in node.names:
                    self._bound(alias or name, (node.module, node.level, name))
            elif isinstance(node, syntax.Import):
                for dotted, alias in node.names:
                    self._bound(alias or dotted.partition(".")[0], (dotted, 0, ""))
            else:
                for inner in _bodies(node):
                    self.imported(inner)

    def _bound(self, name: str, origin: Origin) -> None:
        module, level, imported = origin
        root, _, rest = module.partition(".")
        starts = not level and (root in _LIBRARIES or (root == "detectron2" and rest.startswith("engine")))
        if imported == "*":
            self.stars.append(origin)
            name = imported
        else:
            self.imports.setdefault(name, []).append(origin)
        if (starts and imported[:1] != "_") or imported in _STARTING:
            self.held.setdefault(name, set()).add(STARTS)

    def statements(self, body: list[Statement], into: set[str]) -> None:
        """Note the statements of a top level; ``into`` gets the words of what they do at once."""
        for node in body:
            if isinstance(node, syntax.FunctionDef):
                self._defined(node, self.held, into)
            elif isinstance(node, syntax.ClassDef):
                self._class(node, into)
            elif isinstance(node, (syntax.Import, syntax.ImportFrom)):
                continue
            elif isinstance(node, syntax.If) and asks_for_main(node):
                self.statements(node.body, self.main)
                self.statements(node.orelse, into)
            elif isinstance(node, syntax.Assign) and _is_plain(node):
                for target in node.targets:
                    for word in _words([target]):
                        self.held.setdefault(word, set()).update(_words([node.value]))
            else:
                inner = list(_bodies(node))
                into |= _words(_own(node) if inner else [node])
                for each in inner:
                    self.statements(each, into)

    def _defined(self, node: syntax.FunctionDef, held: dict[str, set[str]], into: set[str]) -> set[str]:
        words = _clean(node.words)
        starting = words & self.starting
        if starting:
            words -= starting - _words(_used(node.body))
        for parameter in node.args.parameters:
            words |= _words([parameter.default] if parameter.default is not None else ())
            annotation = _words([parameter.annotation] if parameter.annotation is not None else ())
            words |= annotation - self.starting | annotation & _ANNOTATED
        self._decorated(node, words, into)
        own = held.setdefault(node.name, set())
        own |= words
        return own

    def _decorated(self, node: syntax.FunctionDef | syntax.ClassDef, own: set[str], into: set[str]) -> None:
        """Whoever decorates it may call it: then it is reached where the file is."""
        words = _words(node.decorator_list)
        own |= words
        if not words <= _PLAIN:
            into.add(node.name)

    def _class(self, node: syntax.ClassDef, into: set[str]) -> None:
        own = self.held.setdefault(node.name, set())
        own |= _words(node.bases)
        self._decorated(node, own, into)
        for part in node.body:
            if isinstance(part, syntax.FunctionDef):
                called = part.name.startswith("__") or part.name in _CALLED  # by whoever makes or uses one
                words = self._defined(part, {} if called else self.methods, own)
                if called:
                    own |= words
            elif isinstance(part, syntax.ClassDef):
                self._class(part, own)
                own.add(part.name)
            else:
                own |= _words([part])


def _used(body: list[Statement]) -> Iterator[syntax.Node]:
    """The names and strings of a body, but for classes of which something is only asked whether it is one."""
    pending: list[syntax.Node] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, (syntax.Name, syntax.Constant)):
            yield node
            continue
        if isinstance(node, syntax.Attribute):
            yield syntax.Name(node.attr)
        if isinstance(node, syntax.Call) and isinstance(node.func, syntax.Name) and node.func.id in _ASKING:
            pending += node.args[:1]
        else:
            pending += children(node)


def _bodies(node: Statement) -> Iterator[list[Statement]]:
    """The statements within a statement, body by body."""
    for field in ("body", "orelse", "finalbody"):
        inner = getattr(node, field, None)
        if isinstance(inner, list):
            yield inner
    for each in getattr(node, "handlers", None) or getattr(node, "cases", None) or ():
        yield each.body


def _own(node: Statement) -> list[Expression]:
    """The expressions of a compound statement's header."""
    found = [getattr(node, field) for field in ("test", "target", "iter", "subject") if hasattr(node, field)]
    for item in getattr(node, "items", ()):
        found += [part for part in item if part is not None]
    for handler in getattr(node, "handlers", ()):
        found += [handler.type] if handler.type is not None else []
    return found


def _is_plain(node: syntax.Assign) -> bool:
    """Whether an assignment does nothing but name a value."""
    return all(isinstance(target, syntax.Name) for target in node.targets) and not any(
        isinstance(part, syntax.Call) for part in walk(node.value)
    )


def _words(nodes: Iterable[syntax.Node]) -> set[str]:
    found: set[str] = set()
    for node in walk(nodes):
        if isinstance(node, syntax.Name):
            found.add(node.id)
        elif isinstance(node, syntax.Attribute):
            found.add(node.attr)
        elif isinstance(node, syntax.Constant) and isinstance(node.value, str):
            found |= _clean(['"' + node.value.lstrip("-")])
        elif isinstance(node, syntax.FunctionDef):
            found |= _clean(node.words)
    return found


_NAME = re.compile(r'"?[A-Za-z_][\w.]*')


def _clean(words: Iterable[str]) -> set[str]:
    """The words that may name something of a program: no text."""
    return {word for word in words if word[:1] != '"' or _NAME.fullmatch(word)}
