"""Options, each described once: the command line, its help, a file's keys, their schema and their page come from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from validate_ddp.console import UsageError

if TYPE_CHECKING:
    import argparse

    Values = TypeVar("Values", bound=NamedTuple)


class ConfigError(UsageError):
    """Settings that cannot be used; the message is one line which names the key, the file and what is allowed."""


class Kind(NamedTuple):
    """What a value may be. told: in words. schema: as a JSON schema. read: what a word of the command line means; it
    raises ValueError, with a message, or gives a number that the schema refuses."""

    told: str
    schema: Mapping[str, Any]
    metavar: str | None = None
    read: Callable[[str], Any] = str


class Option(NamedTuple):
    """A field of options, as the metadata of its type.

    no_key: the one word that says why no file may hold it. alias: another flag. adds: to what the file says, instead of
    replacing it. clears: fields of which the file's value no longer counts. name, default: those of the field.
    """

    kind: Kind
    help: str
    group: str = ""
    no_key: str = ""
    alias: str = ""
    adds: bool = False
    clears: tuple[str, ...] = ()
    name: str = ""
    default: Any = None

    @property
    def key(self) -> str:
        """The name in a file."""
        return self.name.replace("_", "-")

    @property
    def flags(self) -> list[str]:
        """The names on the command line; that of a switch says what is not so without it."""
        if self.group == POSITIONAL:
            return []
        return sorted(filter(None, (f"--{'no-' * (self.default is True)}{self.key}", self.alias)), key=len)


def _comma_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _ignores(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """``pattern:RULE,RULE,pattern:RULE`` as pairs; an item without a colon belongs to the pattern before it."""
    pairs: list[tuple[str, tuple[str, ...]]] = []
    for item in _comma_list(text):
        pattern, colon, selector = item.rpartition(":")
        if colon and pattern and selector:
            pairs.append((pattern.strip(), (selector.strip(),)))
        elif not colon and pairs:
            pairs[-1] = (pairs[-1][0], (*pairs[-1][1], item))
        else:
            raise ValueError(f"`{item}` is not PATTERN:RULE, such as `tests/*:DDP201`")
    return pairs


def _pair(text: str) -> list[tuple[str, str]]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"`{text}` is not NAME=VALUE")
    return [(name, value)]


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _wholes(text: str) -> list[int]:
    found = [_whole(item) for item in _comma_list(text)]
    if not found or min(found) < 0:
        raise ValueError(f"`{text}` is not a list of whole numbers, such as 0,7,8")
    return found


def _links(text: str) -> list[tuple[str, float]]:
    pairs = [(name.strip(), _number(value)) for name, _, value in (item.partition("=") for item in _comma_list(text))]
    if sorted(name for name, _ in pairs) != ["inter", "intra"] or min(value for _, value in pairs) <= 0:
        raise ValueError(f"`{text}` is not intra=GB/s,inter=GB/s, such as intra=450,inter=50")
    return pairs


def choice(*words: str) -> Kind:
    """One of some words."""
    return Kind("one of " + ", ".join(words), {"enum": list(words)})


def _table_of(values: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values, **more}


_TYPES = {"array": list, "object": dict, "string": str, "boolean": bool, "integer": int, "number": int | float}
POSITIONAL = "positional"
RULE = {"type": "string", "title": "rule"}
_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}
_SET = {"type": "string", "pattern": "^[^\\u0000]*$"}
_NAMED = {"type": "string", "pattern": "^[^=\\u0000]+$"}
SWITCH = Kind("true or false", {"type": "boolean"})
_RULES = {"type": "array", "items": RULE}
SELECTORS = Kind("a list of selectors", _RULES, "RULES", _comma_list)
PATTERNS = Kind("a list of patterns", _STRINGS, "PATTERNS", _comma_list)
IGNORES = Kind("a table of pattern = list of selectors", _table_of(_RULES), "PATTERN:RULE", _ignores)
CACHE = Kind('a folder, or "off"', {"type": "string", "pattern": "^[^\\u0000]+$"}, "DIR")
BASELINE = Kind('a file, or "off"', {"type": "string", "pattern": "^[^\\u0000]+$"}, "FILE")
REVISION = Kind("a revision of git", _STRING, "REV")
JOBS = Kind("a whole number, 0 for automatic", {"type": "integer", "minimum": 0, "maximum": 9999}, "N", _whole)
NUMBER = Kind("a whole number above 0", {"type": "integer", "minimum": 1, "maximum": 10**9}, "N", _whole)
NUMBERS = Kind(
    "a list of whole numbers", {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1 << 20}}, "N,N",
    _wholes,
)  # fmt: skip
SECONDS = Kind("a number of seconds above 0", {"type": "number", "exclusiveMinimum": 0, "maximum": 10**9}, "S", _number)
LINKS = Kind(
    "a table of intra and inter = GB/s above 0",
    _table_of({"type": "number", "exclusiveMinimum": 0, "maximum": 10**6}, propertyNames={"enum": ["intra", "inter"]}),
    "intra=GB/s,inter=GB/s", _links,
)  # fmt: skip
VARIABLES = Kind('a table of NAME = "VALUE"', _table_of(_SET, propertyNames=_NAMED), "NAME=VALUE", _pair)
DATA = Kind("a list of KIND:PATH", _STRINGS, "KIND:PATH", lambda text: [text])
COLORS = choice("auto", "always", "never")
FILE, PATH, LOG = (Kind("a path", _STRING, metavar) for metavar in ("FILE", "PATH", "LOG"))
WORDS = Kind("arguments", _STRING, "ARGS")
PATHS, RULES, DUMPS = (Kind("a list", _STRINGS, metavar) for metavar in ("PATH", "RULE", "DUMP"))


def table(of: type[NamedTuple]) -> dict[str, Option]:
    """The options that these fields are."""
    return {
        name: note.__metadata__[0]._replace(name=name, default=of._field_defaults.get(name))
        for name, note in of.__annotations__.items()
        if hasattr(note, "__metadata__")
    }


def said(of: type[NamedTuple], arguments: Sequence[str], **about: Any) -> dict[str, Any]:
    """What a command line says, by field; ``about`` is for the parser. Raises UsageError.

    Positional words may stand anywhere between the options, and after ``--`` all are positional. The import of
    ``argparse`` would be an eighth of the time in which a clean script is checked: it is spared where all is plain.
    """
    options = table(of)
    switches = {flag: each for each in options.values() if each.kind is SWITCH for flag in each.flags}
    words = [word for word in arguments if word not in switches]
    positional = next((name for name, each in options.items() if each.group == POSITIONAL), "")
    if any(word.startswith("-") and word != "-" for word in words) or (words and not positional):
        after = arguments.index("--") if positional and "--" in arguments else len(arguments)
        found = vars(parser(of, **about).parse_intermixed_args(list(arguments[:after])))
        words = [*found.pop(positional, ()), *arguments[after + 1 :]]
    else:
        found = {switches[word].name: not switches[word].default for word in arguments if word in switches}
    if positional and words:
        found[positional] = words
    return {name: _frozen(value) for name, value in found.items()}


def parser(of: type[NamedTuple], prog: str, **about: Any) -> argparse.ArgumentParser:
    """A parser that knows only what is said, whose errors are one line, as all of ours."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise UsageError(f"{message} (see `{self.prog} --help`)")

    raw = argparse.RawDescriptionHelpFormatter
    built = Parser(prog, formatter_class=raw, allow_abbrev=False, argument_default=argparse.SUPPRESS, **about)
    groups: dict[str, Any] = {"": built, POSITIONAL: built}
    for each in table(of).values():
        if each.group not in groups:
            groups[each.group] = built.add_argument_group(each.group)
        if each.kind is SWITCH:
            const: dict[str, Any] = {"dest": each.name, "action": "store_const"}
            groups[each.group].add_argument(*each.flags, **const, const=not each.default, help=each.help)
            if not each.no_key:  # what a file switches on, the command line can switch off
                off = f"--{'no-' * (not each.default)}{each.key}"
                built.add_argument(off, **const, const=bool(each.default), help=argparse.SUPPRESS)
            continue
        more: dict[str, Any] = {"metavar": each.kind.metavar, "help": each.help or None}
        if each.group == POSITIONAL:
            built.add_argument(each.name, nargs="*", **more)
            if prog == "validate-ddp":
                from validate_ddp import __version__

                built.add_argument("-V", "--version", action="version", version=f"validate-ddp {__version__}")
            continue
        if each.kind.schema.get("type") in ("array", "object"):
            more["action"] = "extend"
        groups[each.group].add_argument(
            *each.flags, type=_word(each.kind), choices=each.kind.schema.get("enum"), **more
        )
    return built


def _word(kind: Kind) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        from argparse import ArgumentTypeError

        try:
            value = kind.read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error
        if isinstance(value, int | float) and not fits(value, kind.schema):
            raise ArgumentTypeError(_wrong(kind, text))
        return value

    return read


def _wrong(kind: Kind, value: object) -> str:
    shown = ascii(value)
    return f"must be {kind.told}, not {shown if len(shown) <= 60 else shown[:57] + '...'}"


def filed(of: type[NamedTuple], values: Mapping[str, Any], path: str, title: str) -> dict[str, Any]:
    """What a table of a file says, by field. Raises ConfigError."""
    keys = {each.key: each for each in table(of).values() if not each.no_key}
    for key, value in values.items():
        if key not in keys:
            raise ConfigError(f"{path}: unknown key `{key}` in [{title}]: the keys are {', '.join(keys)}")
        if not fits(value, keys[key].kind.schema):
            raise ConfigError(f"{path}: `{key}` in [{title}] {_wrong(keys[key].kind, value)}")
    return {keys[key].name: _frozen(value) for key, value in values.items()}


def fits(value: object, schema: Mapping[str, Any]) -> bool:
    """Whether a value is as a schema of ours says."""
    if "enum" in schema:
        return value in schema["enum"]
    if not isinstance(value, _TYPES[schema["type"]]) or isinstance(value, bool) is not (schema["type"] == "boolean"):
        return False
    if isinstance(value, list):
        return all(fits(item, schema["items"]) for item in value)
    if isinstance(value, dict):
        names, values = schema.get("propertyNames", _STRING), schema["additionalProperties"]
        return all(fits(name, names) and fits(item, values) for name, item in value.items())
    if isinstance(value, str):
        import re

        return re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, bool):
        return True
    return schema.get("minimum", 0) <= value <= schema["maximum"] and value != schema.get("exclusiveMinimum")


def _frozen(value: Any) -> Any:
    """A list as a tuple, a table as pairs."""
    if isinstance(value, dict):
        value = list(value.items())
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def combined(below: Values, above: Mapping[str, Any]) -> Values:
    """The values of a file or the defaults, with what was said on top."""
    options = table(type(below))
    below = below._replace(**{other: options[other].default for name in above for other in options[name].clears})
    return below._replace(
        **{name: (*getattr(below, name), *value) if options[name].adds else value for name, value in above.items()}
    )
