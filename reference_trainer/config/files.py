"""Configuration files: YAML (and so JSON), composed of other files, each value with the line that it comes from.

    defaults: [base.yaml, small.yaml]   # beside this file; the later one wins, and this file wins over all
    objective: disentangle
    optim: {lr: 3e-4}                   # or optim.lr: 3e-4

Torch-free. Every error is a ``ConfigError`` with file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .error import ConfigError
from .fields import Raw, nearest, read_as

if TYPE_CHECKING:
    from yaml import Node

__all__ = ["RIVALS", "Layer", "Setting", "merged", "read_layers", "typed"]

RIVALS = {"steps": "epochs", "epochs": "steps", "global_batch": "batch_size", "batch_size": "global_batch"}
"""Of which one is given and the other follows: a later one takes the place of an earlier one."""


@dataclass(frozen=True)
class Setting:
    """A value, and where it was given: "runs/base.yaml:3", "command line"."""

    value: Any
    place: str


Layer = dict[str, Setting]
"""What one file, or the command line, sets: by dotted names."""


def read_layers(path: Path, sections: Sequence[str], chain: tuple[Path, ...] = ()) -> Iterator[Layer]:
    """The settings of a file and of the files that it is composed of, in the order in which later ones win. Local.

    sections: names under which settings may lie. The values are ``Raw``.
    """
    if path.resolve() in [each.resolve() for each in chain]:
        raise ConfigError(f"{chain[-1]}: its defaults go round: {' -> '.join(str(each) for each in (*chain, path))}")
    root = _compose(path, chain)
    layer: Layer = {}
    if root is None:
        return
    if root.id != "mapping":
        raise ConfigError(f"{_place(path, root)}: settings are wanted, such as `steps: 100`")
    for key, value in root.value:
        if key.value == "defaults":
            for name in _defaults(value, path):
                yield from read_layers(path.parent / name, sections, (*chain, path))
    for name, setting in _flat(root, path, sections):
        if name in layer:
            raise ConfigError(f"{setting.place}: {name} is given twice, first in {layer[name].place}")
        if name != "defaults":
            layer[name] = setting
    yield layer


def typed(layer: Layer, types: Mapping[str, Any], older: Mapping[str, str]) -> Layer:
    """The layer with its values as their fields want them; an unknown name is refused. Local.

    older: names that may have been meant, with today's.
    """
    found: Layer = {}
    for name, setting in layer.items():
        if name not in types:
            meant = older.get(name.rpartition(".")[2])
            hint = f"did you mean {meant}?" if meant in types else nearest(name, list(types))
            raise ConfigError(f"{setting.place}: there is no setting {name}; {hint}")
        try:
            found[name] = Setting(read_as(setting.value, types[name]), setting.place)
        except ValueError as error:
            shown = "nothing" if setting.value is None else repr(setting.value)
            raise ConfigError(f"{setting.place}: {name} is {shown}; {error}") from None
    return found


def merged(layers: Sequence[Layer]) -> Layer:
    """All layers as one: later ones win. Local."""
    found: Layer = {}
    for layer in layers:
        for name, setting in layer.items():
            rival = RIVALS.get(name, "")
            if setting.value is not None and rival not in layer:
                found.pop(rival, None)
        found |= layer
    return found


def _compose(path: Path, chain: tuple[Path, ...]) -> Node | None:
    """The file as YAML's tree of nodes, which know their lines. None: it is empty."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("PyYAML missing: pip install 'validate-ddp[trainer]'") from error
    asked = f"{chain[-1]}: its defaults name " if chain else ""
    try:
        return yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"{asked}{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not a text in UTF-8") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: it is nested too deeply") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path}{line}: it is not YAML: {problem}") from error


def _defaults(node: Node, path: Path) -> list[str]:
    """The names of the files that a file begins with."""
    raw = _raw(node, path, "defaults")
    names = [raw] if isinstance(raw, str) else raw
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{_place(path, node)}: defaults must be a list of files, such as [base.yaml]")
    return [name if Path(name).suffix else f"{name}.yaml" for name in names if name]


def _flat(node: Node, path: Path, sections: Sequence[str], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """The settings of a mapping by dotted names, as they are written."""
    for key, value in node.value:
        if key.id != "scalar":
            raise ConfigError(f"{_place(path, key)}: a name is wanted, such as `steps`")
        name = prefix + key.value
        if value.id == "mapping":
            if name not in sections:
                raise ConfigError(f"{_place(path, key)}: there is no section {name}; {nearest(name, sections)}")
            yield from _flat(value, path, sections, f"{name}.")
            continue
        raw = _raw(value, path, name)
        if name not in sections:
            yield name, Setting(raw, _place(path, key))
        elif raw is not None:  # a section whose lines are all commented out is nothing
            raise ConfigError(f"{_place(path, key)}: {name} is a section; give its settings under it")


def _raw(node: Node, path: Path, name: str) -> Raw:
    """A scalar as it is written, or a list of these."""
    scalar: Callable[[Node], str | None] = _scalar
    if node.id == "sequence" and all(each.id == "scalar" for each in node.value):
        return [scalar(each) for each in node.value]
    if node.id == "scalar":
        return scalar(node)
    raise ConfigError(f"{_place(path, node)}: {name} must be a value, or a list of values")


def _scalar(node: Node) -> str | None:
    """The text, or None for YAML's null. JSON writes one character beyond the first 65,536 as two halves."""
    if node.tag == "tag:yaml.org,2002:null":
        return None
    text: str = node.value
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _place(path: Path, node: Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"
