"""The rooms of the house and who imports whom, drawn from the imports as Mermaid, for ARCHITECTURE.md.

A room is a folder or a file right below ``validate_ddp``; what runs inside a rehearsed script is one too. An arrow that
follows from others (``cli`` to ``source`` by way of ``lint``) is left out, as are the files that everyone may import.
"""

from __future__ import annotations

from ci.arrows import Arrows, arrows

EVERYWHERE = ("console", "progress", "findings", "own_path", "output_files", "descendants")
"""Rooms at the bottom that import nothing of ours but each other: an arrow to them tells nothing."""


def room(module: str) -> str:
    """The room that a module of ``validate_ddp`` lies in; empty for one that is in none."""
    parts = module.split(".")[1:]
    if not parts or parts[0].startswith("__") or parts[0] in EVERYWHERE:
        return ""
    if parts[:2] == ["rehearse", "child"]:  # of the rehearsed script's process: it imports nothing of ours
        return "rehearse/child"
    return parts[0]


def between_rooms(graph: Arrows) -> Arrows:
    """Who imports whom, room by room."""
    found: Arrows = {}
    for module, targets in graph.items():
        if module.partition(".")[0] == "validate_ddp" and room(module):
            found.setdefault(room(module), set()).update(room(each) for each in targets)
    return {name: targets - {name, ""} for name, targets in found.items()}


def reduced(graph: Arrows) -> Arrows:
    """Without the arrows that follow from others. Raises ValueError where rooms import each other."""
    reached: Arrows = {}

    def reach(name: str, path: tuple[str, ...]) -> set[str]:
        if name in path:
            raise ValueError(f"rooms import each other: {' -> '.join((*path, name))}")
        if name not in reached:
            reached[name] = set(graph[name]).union(*(reach(each, (*path, name)) for each in graph[name]))
        return reached[name]

    for name in graph:
        reach(name, ())
    return {
        name: {each for each in targets if not any(each in reached[other] for other in targets - {each})}
        for name, targets in graph.items()
    }


def mermaid() -> str:
    """The picture, as a flow chart from the top to the bottom."""
    rows = [
        f"    {name.replace('/', '_')}[{name}] --> {each.replace('/', '_')}[{each}]"
        for name, targets in sorted(reduced(between_rooms(arrows())).items())
        for each in sorted(targets)
    ]
    return "\n".join(("```mermaid", "flowchart TD", *rows, "```", ""))


if __name__ == "__main__":
    print(mermaid())
