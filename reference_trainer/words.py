"""The words of a command as its options: files, `key=value`, `--name value`, and what their help says. Torch-free."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .config import Config, ConfigError
from .launch import detect
from .settings import flat, is_list, made, own_types, read_as, types_of

HELP = (
    "Settings come from, and the later one wins: the defaults shown here; --config FILE.yaml, which may begin with "
    "`defaults: [other.yaml]`; key=value, such as optim.lr=3e-4; the options shown here."
)
RIVALS = {"steps": "epochs", "epochs": "steps", "global_batch": "batch_size", "batch_size": "global_batch"}
"""Of which one is given and the other follows: a later one takes the place of an earlier one."""
OLDER_NAMES = {
    "enable_club_loss": "club.enabled",
    "club_lambda": "club.weight",
    "club_update_freq": "club.update_every",
    "club_training_steps": "club.inner_steps",
    "club_lr": "club.lr",
    "gradient_accumulation_steps": "accumulation",
    "num_epochs": "epochs",
    "lr": "optim.lr",
    "learning_rate": "optim.lr",
    "num_workers": "data.workers",
    "output_dir": "run_dir",
    "data_path": "data.path",
    "teacher_path": "distillation.teacher",
    "student_config": "distillation.student",
    "lora_rank": "lora.rank",
    "dataset_repeat": "repeat",
    "distributed.backend": "dist.backend",
}
"""Names in the trainers before this one, and the settings that they are now."""
SWITCHES = ("enable_club_loss", "multi_gpu", "distributed")  # On the command line without a value.
_MIXED = "distributed.mixed_precision"
_PRECISIONS = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}
_OVERRIDE = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
Layer = dict[str, Any]  # What one file, or the command line, sets: texts, or lists of texts, by dotted names.
T = TypeVar("T")


class UsageError(ConfigError):
    """A command line that cannot be carried out; the message is one line."""


class HelpShown(Exception):
    """The help of a command was asked for and printed."""


def needs(*packages: str) -> None:
    """Refuses, in one line, to begin without these packages; imports none of them. Local."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UsageError(f"{', '.join(missing)} missing: pip install 'validate-ddp[trainer]'")


class Words(NamedTuple):
    """The words of a command by kind."""

    files: list[str]
    overrides: Layer
    options: Layer


def parsed(words: Sequence[str], kinds: Mapping[str, Any], positional: Sequence[str] = (), run: bool = False) -> Words:
    """The words, by kind. kinds: types of the options; run: they describe a run, with --config and key=value. Local."""
    rest, places, found = list(words), list(positional), Words([], {}, {})
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if places and is_list(kinds[places[0]]):
                found.options.setdefault(places[0], []).append(word)
            elif places:
                found.options[places.pop(0)] = word
            elif run and (match := _OVERRIDE.fullmatch(word)):
                found.overrides[match[1]] = match[2]
            else:
                raise UsageError(f"{word} is no option; options begin with --, and a file is given as --config FILE")
            continue
        shown, equals, given = word.partition("=")
        name = shown.lstrip("-").replace("-", "_")
        name = "data.source" if run and name == "data" else name
        switch = kinds.get(name) is bool or (run and name in SWITCHES)
        off = re.sub(r"(^|\.)no_(?=\w+$)", r"\1", name)
        values = [given] if equals else []
        if not equals and switch and not (rest and rest[0] in ("true", "false")):
            values = ["true"]
        elif not equals and name not in kinds and kinds.get(off) is bool:
            name, values = off, ["false"]
        many = not values and is_list(kinds.get(name, str))
        while rest and not rest[0].startswith("--") and not equals and (not values or many):
            if values and _OVERRIDE.fullmatch(rest[0]):
                break
            values.append(rest.pop(0))
        if not values:
            raise UsageError(f"{word}: its value is missing")
        if run and name == "config":
            found.files.append(values[0])
        else:
            found.options[name] = values if values[1:] else values[0]
    return found


def read_layers(path: Path, chain: tuple[Path, ...] = ()) -> Iterator[tuple[str, Layer]]:
    """The settings of a file and of those it is composed of, each with its place; later ones win. Local."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("PyYAML missing: pip install 'validate-ddp[trainer]'") from error
    if path.resolve() in [each.resolve() for each in chain]:
        raise ConfigError(f"{chain[-1]}: its defaults go round: {' -> '.join(map(str, (*chain, path)))}")
    asked = f"{chain[-1]}: its defaults name " if chain else ""
    try:
        content = (
            yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) or {}
        )  # texts, as they are written
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        told = getattr(error, "strerror", None) or f"it is not YAML: {' '.join(str(error).split())}"
        raise ConfigError(f"{asked}{path}: {told}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: settings are wanted, such as `steps: 100`")
    names = content.pop("defaults", [])
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: defaults must be a name, or a list of names, such as `defaults: [base]`")
    for name in names:
        yield from read_layers(path.parent / (name if Path(name).suffix else f"{name}.yaml"), (*chain, path))
    yield str(path), flat(content)


def in_new_form(layer: Layer, place: str, *, launched: Callable[[], bool]) -> tuple[Layer, list[str]]:
    """The layer with today's names, and what was renamed; ``ConfigError``. Local.

    launched: a launcher has started this process, and so says how many there are.
    """
    found: Layer = {}
    for older, value in layer.items():
        if older in ("multi_gpu", "distributed") and (not _is_on(older, value, place) or launched()):
            continue
        if older == "distributed":
            told = "asks for several processes, and no launcher has started them: torchrun --nproc-per-node GPUS"
            raise ConfigError(f"{place}: distributed {told} -m reference_trainer train ...")
        if older == "multi_gpu":  # one process for all GPUs, as it was
            found["dist.strategy"] = "dp"
        elif not older.startswith(_MIXED):
            found[OLDER_NAMES.get(older, older)] = value
    if f"{_MIXED}.enabled" in layer or f"{_MIXED}.dtype" in layer:
        on = _is_on(f"{_MIXED}.enabled", layer.get(f"{_MIXED}.enabled"), place)
        dtype = layer.get(f"{_MIXED}.dtype")
        if on and (not isinstance(dtype, str) or dtype not in _PRECISIONS):
            raise ConfigError(f"{place}: {_MIXED}.dtype is {dtype}; it must be bf16 or fp16 where it is enabled")
        found["precision"] = _PRECISIONS[str(dtype)] if on else "float32"
    new = [f"{name} -> {OLDER_NAMES[name]}={layer[name]}" for name in layer if name in OLDER_NAMES]
    new += [f"{name} -> {told}" for name in SWITCHES[1:] if name in layer for told in [found.get("dist.strategy", "-")]]
    new += [f"{_MIXED} -> precision={found['precision']}"] if f"{_MIXED}.enabled" in layer else []
    return found, new


def _is_on(name: str, value: Any, place: str) -> bool:
    return bool(typed({name: value}, {name: bool}, place)[name])


def typed(layer: Layer, kinds: Mapping[str, Any], place: str = "command line") -> Layer:
    """The layer with its values as their fields want them; ``ConfigError`` for an unknown name. Local."""
    found: Layer = {}
    for name, value in layer.items():
        if name not in kinds and value == "" and any(each.startswith(f"{name}.") for each in kinds):
            continue  # a section whose lines are all commented out
        if name not in kinds:
            last = name.rpartition(".")[2]
            close = get_close_matches(name, list(kinds), 1) or [
                each for each in kinds if each.rpartition(".")[2] == last
            ]
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ConfigError(f"{place}: there is no setting {name}{hint}")
        try:
            found[name] = read_as(value, kinds[name])
        except ValueError as error:
            raise ConfigError(f"{place}: {name} is {value!r}; {error}") from None
    return found


def options_of(kind: type[T], words: Sequence[str], command: str, positional: Sequence[str] = ()) -> T:
    """The options as their dataclass. positional: fields that may be given without their name. Local."""
    if {"-h", "--help"} & set(words):
        show_help(kind, command, positional=positional)
    kinds = types_of(kind)
    values = typed(parsed(words, kinds, positional).options, kinds)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise UsageError(f"--{field.name.replace('_', '-')} is missing (reference-trainer {command} --help)")
    return made(kind(**{name: value for name, value in values.items() if "." not in name}), values)


def read_config(words: Sequence[str], environ: Mapping[str, str] | None = None) -> Config:
    """The configuration that words describe, or ``ConfigError``; rank zero tells older names. Local; every rank."""
    if {"-h", "--help"} & set(words):
        show_help(Config, "train", HELP)
    return config_of(parsed(words, types_of(Config), run=True), os.environ if environ is None else environ)


def config_of(given: Words, environ: Mapping[str, str]) -> Config:
    """The same, of words that were taken apart. Local."""
    kinds, values, renamed = types_of(Config), Layer(), list[str]()
    layers = [layer for file in given.files for layer in read_layers(Path(file))]
    layers += [("command line", given.overrides), ("command line", given.options)]
    named = {name: value for _, layer in layers for name, value in layer.items()}
    for setting, section in (("objective", "own"), ("data.source", "own_data")):
        if ":" in named.get(setting, ""):
            kinds |= own_types(named[setting], setting, section)
    for place, layer in layers:
        found, told = in_new_form(layer, place, launched=lambda: detect(environ).launcher != "single")
        renamed += told
        for name in set(RIVALS) & set(found):
            if RIVALS[name] not in found and found[name] != "null":
                values.pop(RIVALS[name], None)
        values |= typed(found, kinds, place)
    config = made(Config(), values)
    if renamed and detect(environ).rank == 0:
        print(f"reference-trainer: older names in their new form: {', '.join(renamed)}", file=sys.stderr)
    return config


def reasons(kind: type) -> dict[str, str]:
    """What each field of a dataclass is for: the comment behind it, or the docstring under it. Local."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    body, found = typing.cast(ast.ClassDef, ast.parse("\n".join(lines)).body[0]).body, {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = lines[statement.lineno - 1].partition("  # ")[2]
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = str(following.value.value)
            found[statement.target.id] = " ".join(text.split())
    return found


def show_help(kind: type, command: str, *more: str, positional: Sequence[str] = ()) -> typing.NoReturn:
    """Prints a command's options, lines before them; raises ``HelpShown``. Local."""
    width = min(120, shutil.get_terminal_size((120, 24)).columns)
    print(f"usage: reference-trainer {' '.join([command, *(each.upper() for each in positional)])} [OPTIONS]\n")
    for line in (" ".join((kind.__doc__ or "").split()), *more, *_described(kind)):
        print(textwrap.fill(line, width, subsequent_indent=" " * (6 if line.startswith("  ") else 0)))
    raise HelpShown


def _described(kind: type, section: str = "") -> Iterator[str]:
    told, hints, inside = reasons(kind), typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            inside.append(field.name)
            continue
        default = "" if field.default in (dataclasses.MISSING, "", None) else f" (default: {field.default})"
        yield f"  --{section}{field.name.replace('_', '-')}  {told[field.name]}{default}"
    for name in inside:
        yield f"\n{section}{name}: {hints[name].__doc__}"
        yield from _described(hints[name], f"{section}{name}.")
