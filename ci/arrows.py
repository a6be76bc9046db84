"""Checks that the arrows of the house point down: no modules that import each other, imports inside functions counted.

An import under ``TYPE_CHECKING`` is none: nothing runs. Prints each circle with a way around it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"validate_ddp": ROOT / "checks/validate_ddp", "reference_trainer": ROOT / "reference_trainer"}
STANDING: tuple[frozenset[str], ...] = ()
"""Circles that stand until they are taken apart, each named by two of its modules. None does."""

Arrows = dict[str, set[str]]


def modules(package: str, folder: Path) -> dict[str, Path]:
    """The modules of a package by their dotted names."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def imported(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a module's code imports, wherever it does so, when it runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from imported(other, known)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from (each for each in (name, node.module) if each in known)
        yield from imported(node, known)


def arrows() -> Arrows:
    """Who imports whom."""
    known = {name: path for package, folder in PACKAGES.items() for name, path in modules(package, folder).items()}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in known.items()}
    return {name: set(imported(tree, known)) - {name} for name, tree in trees.items()}


def way_back(graph: Arrows, start: str) -> list[str]:
    """The shortest way along the arrows from a module to itself, empty without one."""
    before: dict[str, str] = {}
    waiting = [start]
    for module in waiting:
        for target in sorted(graph[module]):
            if target == start:
                way = [module]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return [*reversed(way), start]
            if target not in before:
                before[target] = module
                waiting.append(target)
    return []


def circles(graph: Arrows) -> list[frozenset[str]]:
    """The sets of modules of which each leads to each other."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            for target in graph[waiting.pop()] - seen:
                seen.add(target)
                waiting.append(target)
        reached[module] = seen
    found = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }
    return sorted(found, key=sorted)


def main() -> int:
    """0 where every arrow points down, but for the circles that stand."""
    graph = arrows()
    found = circles(graph)
    new = [circle for circle in found if not any(standing <= circle for standing in STANDING)]
    for circle in new:
        way = " -> ".join(way_back(graph, min(circle)))
        print(f"{len(circle)} modules import each other: {way}")
    gone = [standing for standing in STANDING if not any(standing <= circle for circle in found)]
    for pair in gone:
        print(f"{' and '.join(sorted(pair))} import each other no more: take them out of ci/arrows.py")
    if not new and not gone:
        standing = f", but for {sum(map(len, found))} modules in circles that stand" if found else ""
        print(f"arrows: all point down{standing}")
    return int(bool(new or gone))


if __name__ == "__main__":
    sys.exit(main())
