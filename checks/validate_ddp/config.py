"""Settings: what ``[tool.validate-ddp]`` of a pyproject.toml and the command line say together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from validate_ddp import catalogue
from validate_ddp.findings import SEVERITIES

FAIL_ON = (*reversed(SEVERITIES), "never")
ALWAYS_ON = frozenset(("DDP001", "DDP002"))
"""A file that was not checked is always reported; to leave a file out there is ``exclude``."""


class ConfigError(ValueError):
    """Settings that cannot be used; the message is one line which names the key, the file and what is allowed."""


class Settings(NamedTuple):
    """What to check and how. Patterns are gitignore-style, relative to ``root``.

    select, ignore, extend_select: selectors as ``catalogue.catalogue.codes_matching`` reads them.
    fail_on: the least severity that gives exit code 1, or "never".
    per_file_ignores: pairs of a pattern and selectors.
    exclude: replaces the built-in excludes; None keeps them. extend_exclude adds to either.
    cache_dir: folder of the cache, "" for the user's cache directory, None for no cache.
    jobs: processes; 0 lets the tool choose.
    root: folder of the pyproject.toml that was read, or the working directory.
    stdin_filename: path under which the text of ``-`` is reported.
    """

    select: tuple[str, ...] = ("ALL",)
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    fail_on: str = "error"
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    respect_gitignore: bool = True
    cache_dir: str | None = ""
    jobs: int = 0
    root: str = ""
    stdin_filename: str = "stdin.py"

    def enabled(self) -> frozenset[str]:
        """The codes that this run reports. A narrower selector wins over a wider one, and on a tie ``ignore`` does."""
        chosen: set[str] = set()
        wanted = (*self.select, *self.extend_select)
        for level in range(7):
            for selector in wanted:
                if catalogue.specificity(selector) == level:
                    chosen |= catalogue.codes_matching(selector)
            for selector in self.ignore:
                if catalogue.specificity(selector) == level:
                    chosen -= catalogue.codes_matching(selector)
        return frozenset(chosen) | ALWAYS_ON

    def ignored_in(self, path: str) -> frozenset[str]:
        """The codes that ``per-file-ignores`` takes out of one file."""
        codes: set[str] = set()
        if self.per_file_ignores:
            absolute = os.path.abspath(path)
            for pattern, selectors in self.per_file_ignores:
                if _matches(pattern, absolute, self.root or os.getcwd()):
                    for selector in selectors:
                        codes |= catalogue.codes_matching(selector)
        return frozenset(codes) - ALWAYS_ON


def _matches(pattern: str, absolute: str, root: str) -> bool:
    """As ruff: a pattern is tried on the file's name, and on its path from ``root``; ``!`` in front turns it round."""
    import fnmatch

    negated = pattern.startswith("!")
    pattern = (pattern[1:] if negated else pattern).replace(os.sep, "/").rstrip("/")
    pattern = pattern[2:] if pattern.startswith("./") else pattern
    path = absolute if os.path.isabs(pattern) else _relative(absolute, root)
    path = path.replace(os.sep, "/")
    # `**/` also stands for no folder at all, which fnmatch does not know.
    hit = fnmatch.fnmatchcase(os.path.basename(absolute), pattern) or any(
        fnmatch.fnmatchcase(path, candidate) or fnmatch.fnmatchcase(path, candidate + "/*")
        for candidate in (pattern, pattern.replace("**/", ""))
    )
    return hit is not negated


def _relative(absolute: str, root: str) -> str:
    try:
        return os.path.relpath(absolute, root)
    except ValueError:  # another drive, on Windows
        return absolute


def read(target: str, *, config: str | None = None, isolated: bool = False) -> Settings:
    """Settings from the file ``config``, or from the nearest pyproject.toml upward from ``target`` that has our table.

    isolated: no file is read. Raises ConfigError for a table that cannot be used.
    """
    if isolated:
        return Settings(root=os.getcwd())
    if config is not None:
        table = _table(config, required=True)
        return _settings(table or {}, config)
    folder = os.path.abspath(target if target != "-" else ".")
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    while True:
        path = os.path.join(folder, "pyproject.toml")
        table = _table(path, required=False)
        if table is not None:
            return _settings(table, path)
        parent = os.path.dirname(folder)
        if parent == folder:
            return Settings(root=os.getcwd())
        folder = parent


def _table(path: str, required: bool) -> dict[str, Any] | None:
    if not required and not os.path.isfile(path):  # a pipe of that name would be waited for, for ever
        return None
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        if required:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        return None
    if b"validate-ddp" not in data:  # spares the import of a TOML parser in most projects
        if required:
            raise ConfigError(f"{path}: holds no [tool.validate-ddp] table")
        return None
    document = _parse_toml(data, path)
    tool = document.get("tool")
    table = tool.get("validate-ddp") if isinstance(tool, dict) else None
    if table is None and required:
        raise ConfigError(f"{path}: holds no [tool.validate-ddp] table")
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: `tool.validate-ddp` must be a table")
    return table


def _parse_toml(data: bytes, path: str) -> dict[str, Any]:
    try:
        import tomllib  # type: ignore[import-not-found,unused-ignore]  # Python 3.11 and newer
    except ModuleNotFoundError:
        import tomli as tomllib  # type: ignore[import-not-found,no-redef,unused-ignore]
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{path}: is no valid TOML: {first}") from error
    return document


_KEYS = {
    "select": "a list of selectors",
    "ignore": "a list of selectors",
    "extend-select": "a list of selectors",
    "fail-on": "one of " + ", ".join(FAIL_ON),
    "per-file-ignores": "a table of pattern = list of selectors",
    "exclude": "a list of patterns",
    "extend-exclude": "a list of patterns",
    "respect-gitignore": "true or false",
    "cache-dir": 'a folder, or "off"',
    "jobs": "a whole number, 0 for automatic",
}


def _settings(table: Mapping[str, Any], path: str) -> Settings:
    root = os.path.dirname(os.path.abspath(path))
    values: dict[str, Any] = {"root": root}
    for key, value in table.items():
        if key not in _KEYS:
            raise ConfigError(f"{path}: unknown key `{key}` in [tool.validate-ddp]: the keys are {', '.join(_KEYS)}")
        values[key.replace("-", "_")] = _value(key, value, path, root)
    settings = Settings(**values)
    check_selectors(settings, path)
    return settings


def _value(key: str, value: Any, path: str, root: str) -> Any:
    """One value in the form that ``Settings`` holds. Raises ConfigError for a wrong type."""
    wrong = ConfigError(f"{path}: `{key}` in [tool.validate-ddp] must be {_KEYS[key]}, not {_shown(value)}")
    if key == "per-file-ignores":
        if not isinstance(value, dict) or not all(_is_strings(selectors) for selectors in value.values()):
            raise wrong
        return tuple((pattern, tuple(selectors)) for pattern, selectors in value.items())
    if key == "fail-on":
        if value not in FAIL_ON:
            raise wrong
        return value
    if key == "respect-gitignore":
        if not isinstance(value, bool):
            raise wrong
        return value
    if key == "jobs":
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise wrong
        return value
    if key == "cache-dir":
        if not isinstance(value, str) or not value or "\0" in value:
            raise wrong
        return None if value == "off" else os.path.join(root, os.path.expanduser(value))
    if not _is_strings(value):
        raise wrong
    return tuple(value)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _shown(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def check_selectors(settings: Settings, where: str) -> None:
    """Raises ConfigError, naming ``where`` and the key, for the first selector that means nothing."""
    named: list[tuple[str, Iterable[str]]] = [
        ("select", settings.select),
        ("ignore", settings.ignore),
        ("extend-select", settings.extend_select),
        *(("per-file-ignores", selectors) for _, selectors in settings.per_file_ignores),
    ]
    for key, selectors in named:
        for selector in selectors:
            try:
                catalogue.codes_matching(selector)
            except ValueError as error:
                raise ConfigError(f"{where}: `{key}`: {error}") from error


def override(
    settings: Settings,
    *,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    extend_select: Sequence[str] = (),
    **rest: Any,
) -> Settings:
    """The settings with the command line's on top.

    A ``select`` of the command line starts afresh: what the file selects and ignores no longer counts. Without it,
    ``ignore`` and ``extend_select`` add to the file's. ``rest``: fields that replace, where not None; except
    ``per_file_ignores`` and ``extend_exclude``, which add, and ``no_cache``, which switches the cache off. Raises
    ConfigError for selectors that mean nothing.
    """
    if rest.pop("no_cache", False):
        settings = settings._replace(cache_dir=None)
        rest["cache_dir"] = None
    settings = settings._replace(
        per_file_ignores=(*settings.per_file_ignores, *(rest.pop("per_file_ignores", None) or ())),
        extend_exclude=(*settings.extend_exclude, *(rest.pop("extend_exclude", None) or ())),
    )
    given: dict[str, Any] = {key: value for key, value in rest.items() if value is not None}
    settings = settings._replace(**given)
    if select is not None:
        settings = settings._replace(select=tuple(select), ignore=(), extend_select=())
    settings = settings._replace(
        ignore=(*settings.ignore, *ignore), extend_select=(*settings.extend_select, *extend_select)
    )
    check_selectors(settings, "command line")
    return settings
