"""What a script imports at once, looked for before ranks are started: they would spend seconds on torch, and fail."""

from __future__ import annotations

import ast
import builtins
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import NamedTuple, cast

from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.hook import StandIns
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import Plan as Told
from validate_ddp.rehearse.log import Log
from validate_ddp.rehearse.plan import Plan

_FILES = 200
"""Modules of the script's own that are looked through."""
_MOVING = ("sys.path", "sys.modules", "meta_path", "addsitedir")
"""With these a script decides itself where modules are found: then a run tells."""
_NEUTRAL = sys.stdlib_module_names | set(dir(builtins)) - {"exec", "eval", "__import__"} | {"torch", "numpy"}
"""What may be called without a say in where modules are found, by the first part of its name."""


class Missing(NamedTuple):
    """A package that is not there, and the line that imports it. others: what else is not, by name."""

    name: str
    path: str
    line: int
    code: str
    others: tuple[str, ...] = ()


def missing(file: str, plan: Plan) -> Missing | None:
    """The first import that must fail: of the script, or of a module of its own that it imports; none within a `try`, a
    function or a condition. None where all are there, or where it cannot be told."""
    root = os.path.abspath(os.path.dirname(file) if plan.script[0] != "-m" else ".")
    given = dict(plan.environment).get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    places = [root, *filter(None, given.split(os.pathsep)), *sys.path[1:]]
    found = dict[str, Missing]()
    waiting = [os.path.abspath(file)]
    for number, path in enumerate(waiting):
        try:
            with open(path, encoding="utf-8") as opened:
                text = opened.read()
            body = ast.parse(text).body
        except (OSError, ValueError, SyntaxError):
            return None
        if number >= _FILES or any(word in text for word in _MOVING):
            return None
        for name, line in _imported(body):
            own = [each for each in _files(root, name) if each not in waiting]
            waiting += own
            package = name.partition(".")[0]
            if package not in found and not own and not _is_there(package, places):
                found[package] = Missing(package, path, line, text.splitlines()[line - 1].strip())
    if not found:
        return None
    first, *others = found.values()
    return first._replace(others=tuple(each.name for each in others))


def _imported(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """As far as nothing is called that may have said where modules are found (rootutils)."""
    for node in body:
        value = node.value if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and ast.unparse(value.func).partition(".")[0] not in _NEUTRAL:
            return
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _files(root: str, name: str) -> Iterator[str]:
    """The files of the script's own that an import of a dotted name runs."""
    path = root
    for part in name.split("."):
        path = os.path.join(path, part)
        yield from (each for each in (path + ".py", os.path.join(path, "__init__.py")) if os.path.isfile(each))


def _is_there(name: str, places: list[str]) -> bool:
    if name in sys.stdlib_module_names or os.path.exists(os.path.join(StandIns.folder, name)):
        return True
    if os.path.exists(os.path.join(StandIns.folder, name + ".py")) or PathFinder.find_spec(name, places):
        return True
    try:
        return find_spec(name) is not None  # packages that are installed as links have finders of their own
    except (ImportError, ValueError):
        return True


def tell(log: Log, plan: Plan, wrong: Missing, read: list[object] | None) -> str:
    """Logs what a run would have come to, and returns how that ends. read: what the static check has found."""
    log.add(protocol.Start(version=protocol.VERSION, cwd=os.getcwd(), plan=cast("Told", asdict(plan)), read=read))
    log.add(protocol.Hello(version=protocol.VERSION, pid=0, process=0, launched=True))
    frame = protocol.Frame(wrong.path, wrong.line, "<module>", False)
    message = f"No module named '{wrong.name}'"
    others = f"Not there either: {', '.join(wrong.others)}\n" if wrong.others else ""
    told = f'Before torch was imported:\n  File "{wrong.path}", line {wrong.line}, in <module>\n    {wrong.code}\n'
    error = protocol.UncaughtException(
        kind="ModuleNotFoundError", message=message, stack=(frame,), process=0,
        traceback=f"{told}ModuleNotFoundError: {message}\n{others}",
    )  # fmt: skip
    log.add(error)
    log.add(protocol.Ended(rank_of=None, code=1))
    log.add(protocol.Finish(outcome="failed", seconds=0.0))
    return "failed"
