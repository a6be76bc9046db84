"""Writes every setting of the trainer, with default and reason, into docs/configuration.md: below its marker line.

python ci/configuration.py            the page is rewritten
python ci/configuration.py --check    nothing is; exit code 1 where the page is not current
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from reference_trainer.config import Config  # noqa: E402
from reference_trainer.settings import OLDER_NAMES, reasons  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"
MARKER = "<!-- Below: made by ci/configuration.py from the dataclasses. -->\n"


def page() -> str:
    """The page as it is to be: what people wrote above the marker, and all settings below it."""
    above, marker, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    if not marker:
        raise SystemExit(f"{PAGE}: it has no line {MARKER!r}")
    return above + MARKER + "\n".join(_settings(Config())) + "\n" + "\n".join(_older()) + "\n"


def _settings(instance: Any, section: str = "") -> Iterator[str]:
    """A table of a dataclass's own fields, then its sections."""
    kind, inside = type(instance), []
    yield f"\n### {f'`{section}`' if section else 'The run'}\n"
    yield f"{_text(kind.__doc__ or '')}\n"
    yield "| setting | default | values | what for |\n|---|---|---|---|"
    reasons, types = _reasons(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, value = f"{section}.{field.name}".lstrip("."), getattr(instance, field.name)
        if dataclasses.is_dataclass(value):
            inside.append((name, value))
        else:
            yield f"| `{name}` | {_default(value)} | {_kind(types[field.name])} | {_text(reasons[field.name])} |"
    for name, value in inside:
        yield from _settings(value, name)


def _reasons(kind: type) -> dict[str, str]:
    """The docstring under each field; a field without one is refused."""
    found = reasons(kind)
    sections = {name for name, hint in typing.get_type_hints(kind).items() if dataclasses.is_dataclass(hint)}
    missing = {field.name for field in dataclasses.fields(kind)} - set(found) - sections
    if missing:
        raise SystemExit(f"{kind.__name__}: {', '.join(sorted(missing))} without a docstring under it")
    return found


def _older() -> Iterator[str]:
    yield "\n### Older names\n\n| older name | setting |\n|---|---|"
    for older, name in OLDER_NAMES.items():
        yield f"| `{older}` | `{name}` |"


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(each) for each in value)}]`"
    return '`""`' if value == "" else f"`{value}`"


def _kind(hint: Any) -> str:
    """A type, as people read it."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{option}`" for option in options)
    if origin is tuple:
        if typing.get_origin(options[0]) is typing.Literal:
            return f"some of {_kind(options[0])}"
        return f"{_kind(options[0])}s" if options[-1] is Ellipsis else f"{len(options)} {_kind(options[0])}s"
    if options:
        return f"{_kind(next(option for option in options if option is not type(None)))}, or none"
    return {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}[hint]


def _text(docstring: str) -> str:
    """On one line of a table."""
    return " ".join(docstring.split()).replace("|", "\\|")


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    wanted = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not current: python ci/configuration.py", file=sys.stderr)
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
