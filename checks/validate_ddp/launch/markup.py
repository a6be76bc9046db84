"""YAML and JSON: Accelerate's and DeepSpeed's configuration, jobs of SkyPilot and Kubernetes, commands in any other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from validate_ddp.launch.kinds import DEEPSPEED
from validate_ddp.launch.origin import Origin, Segment, Spot
from validate_ddp.launch.records import Config, DeepSpeed, Given, Job, Launch, Setting, Word
from validate_ddp.launch.shell import Script, starts_in
from validate_ddp.source.text import FOREIGN, UNREADABLE, Problem

_ACCELERATE = frozenset(("compute_environment", "distributed_type", "num_processes", "num_machines"))
_COMMANDS = ("command", "args", "cmd", "entrypoint")
_LAUNCHES = re.compile(r"torchrun|torch\.distributed\.|accelerate|deepspeed|export\s|srun")
_TEMPLATE = re.compile(r"\{\{|\{%|<%")
"""Of Helm, Jinja and their like; of a project that has such files a hook hands them over, maybe alone: they are told of
as every other file that is named and is of another kind."""
_DEEPEST = 100
_MOST = 20_000
"""Nodes of a document that are looked at; aliases of YAML can make more of a few lines."""


def of_markup(path: str, text: str, origin: Origin) -> Launch | Problem:
    """The facts of a YAML or JSON file; JSON is YAML, but for tabs, which nothing of ours has."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    whole = _Markup(text, origin)
    try:
        if _is_too_deep(text, loader):
            return Problem(path, 1, 1, "is nested too deeply to be checked", UNREADABLE)
        for document in yaml.compose_all(text, Loader=loader):
            if document is not None:
                whole.document(document)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        said = " ".join(str(getattr(error, "problem", None) or error).split())[:120]
        if _TEMPLATE.search(text):
            message = f"is a template, and no YAML before it is filled in: it is not read ({said})"
            return Problem(path, line, column, message, UNREADABLE, cause=FOREIGN)
        return Problem(path, line, column, f"is no YAML that can be read: {said}", UNREADABLE)
    script = whole.script
    return Launch(path, text, script.records, script.comments, frozenset(script.used))


def _is_too_deep(text: str, loader: Any) -> bool:
    """Whether the documents nest deeper than any that people write: composing them would exhaust the stack of C."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return False


class _Markup:
    """The walk of the documents of a file."""

    def __init__(self, text: str, origin: Origin) -> None:
        self.text = text
        self.origin = origin
        self.script = Script(origin)
        self.count = 0
        self.offsets: list[int] | None = None

    def document(self, root: Any) -> None:
        """One document, whatever it is."""
        keys = _keys(root)
        if len(_ACCELERATE & keys.keys()) >= 2:
            held = _keys(keys["deepspeed_config"][1]) if "deepspeed_config" in keys else {}
            given = tuple(
                Given(name, self._word(value) if value.id == "scalar" else None, self._word(key))
                for name, (key, value) in [*keys.items(), *((f"deepspeed_config.{name}", held[name]) for name in held)]
            )
            self.script.records.append(Config(given, self._span(root)))
            return
        if not keys.keys().isdisjoint(DEEPSPEED):
            self.script.records.append(DeepSpeed(tuple(self._inner(root, "")), self._span(root)))
            return
        if "run" in keys and keys["run"][1].id == "scalar" and ("resources" in keys or "num_nodes" in keys):
            nodes = keys.get("num_nodes")
            given = (Given("nodes", self._word(nodes[1]), self._word(nodes[0])),) if nodes else ()
            self.script.records.append(Job(given, self._span(root)))
        self._walk(root, ())

    def _inner(self, node: Any, before: str) -> Iterator[Given]:
        """The settings of a mapping and of those in it."""
        self.count += 1
        if self.count > _MOST:  # a few aliases of aliases are as many as one likes
            return
        for name, (key, value) in _keys(node).items():
            yield Given(before + name, self._word(value) if value.id == "scalar" else None, self._word(key))
            yield from self._inner(value, f"{before}{name}.")

    def _walk(self, node: Any, settings: tuple[Setting, ...]) -> None:
        self.count += 1
        if self.count > _MOST:
            return
        if node.id == "mapping":
            keys = _keys(node)
            settings = (*self._environment(keys), *settings)
            self._command(keys, settings)
            for name, (_, value) in keys.items():
                if value.id == "scalar" or name not in _COMMANDS:
                    self._walk(value, settings)
        elif node.id == "sequence":
            for each in node.value:
                self._walk(each, settings)
        elif _LAUNCHES.search(node.value):
            self._shell(node, settings)

    def _environment(self, keys: dict[str, tuple[Any, Any]]) -> list[Setting]:
        """``env:`` as a mapping (SkyPilot, workflows), or as a list of names and values (Kubernetes)."""
        found = []
        for name in ("env", "envs", "environment"):
            block = keys[name][1] if name in keys else None
            if block is None:
                continue
            pairs = list(_keys(block).values()) if block.id == "mapping" else []
            for each in block.value if block.id == "sequence" else ():
                held = _keys(each)
                if "name" in held and "value" in held:
                    pairs.append((held["name"][1], held["value"][1]))
            for key, value in pairs:
                if key.id == value.id == "scalar":
                    word, span = self._word(value), self._span(key)
                    found.append(Setting(str(key.value), word, "export", span, span))
        self.script.records += found
        return found

    def _command(self, keys: dict[str, tuple[Any, Any]], settings: tuple[Setting, ...]) -> None:
        """``command: [...]`` with ``args: [...]``, as Kubernetes has them."""
        listed = [
            item
            for name in _COMMANDS
            if name in keys and keys[name][1].id == "sequence"
            for item in keys[name][1].value
            if item.id == "scalar"
        ]
        if not listed:
            return
        scripts = [item for item in listed if "\n" in item.value or " " in item.value]
        for item in scripts:
            if _LAUNCHES.search(item.value):
                self._shell(item, settings)
        if not scripts:
            start = starts_in([self._word(item) for item in listed], settings)
            if start is not None:
                self.script.records.append(start)

    def _shell(self, node: Any, settings: tuple[Setting, ...]) -> None:
        """A scalar that is a script."""
        script = Script(self._inside(node), self.script)
        script.exported = [*settings]
        script.read()

    def _inside(self, node: Any) -> Origin:
        """The bytes of a scalar, each with its place in the file where it stands there as it is."""
        start, end = self._offset(node.start_mark.index), self._offset(node.end_mark.index)
        data = self.origin.data[start:end]
        value = node.value.encode("utf-8", "surrogatepass")
        if node.style not in ("|", ">"):
            at = data.find(value)
            return self.origin.part(value, (Segment(0, start + at),)) if at >= 0 else Spot(value, self._span(node))
        pieces: list[bytes] = []
        segments: list[Segment] = []
        length = 0
        position = start + data.find(b"\n") + 1
        for line in node.value.split("\n") if node.style == "|" else re.split(r"[\n ]", node.value):
            piece = line.encode("utf-8", "surrogatepass")
            at = self.origin.data.find(piece, position, end) if piece else position
            if at < 0:
                return Spot(value, self._span(node))
            segments.append(Segment(length, at))
            # A folded line ends in a space: as the newline that it is in the file, it would end the command.
            ending = (
                b"\n" if node.style == "|" or value[length + len(piece) : length + len(piece) + 1] == b"\n" else b" "
            )
            pieces += [piece, ending]
            length += len(piece) + 1
            position = at + len(piece)
        return self.origin.part(b"".join(pieces), tuple(segments))

    def _word(self, node: Any) -> Word:
        value = str(node.value) if node.id == "scalar" else ""
        shell = "$" in value
        return Word(value, () if shell else (value,), shell, self._span(node))

    def _span(self, node: Any) -> Any:
        start, end = self._offset(node.start_mark.index), self._offset(node.end_mark.index)
        if node.id != "scalar":
            end = start
        return self.origin.span(start, end)

    def _offset(self, index: int) -> int:
        """The byte of a character of the text."""
        if self.offsets is None and len(self.text) != len(self.origin.data):
            self.offsets = [0]
            for character in self.text:
                self.offsets.append(self.offsets[-1] + len(character.encode("utf-8", "surrogatepass")))
        if self.offsets is None:
            return min(index, len(self.text))
        return self.offsets[min(index, len(self.offsets) - 1)]


def _keys(node: Any) -> dict[str, tuple[Any, Any]]:
    """The keys of a mapping, with their nodes; none for another node."""
    if node.id != "mapping":
        return {}
    return {str(key.value): (key, value) for key, value in node.value if key.id == "scalar"}
