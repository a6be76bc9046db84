"""What the command line of ``validate-ddp [check]`` says, read without ``argparse`` where it is as plain as mostly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Arguments(NamedTuple):
    """The options of ``validate-ddp [check]``; None where the settings of the file, or their defaults, decide."""

    paths: Sequence[str] = (".",)
    select: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    extend_select: Sequence[str] | None = None
    per_file_ignores: Sequence[tuple[str, tuple[str, ...]]] | None = None
    fail_on: str | None = None
    exclude: Sequence[str] | None = None
    extend_exclude: Sequence[str] | None = None
    respect_gitignore: bool | None = None
    stdin_filename: str | None = None
    config: str | None = None
    isolated: bool = False
    cache_dir: str | None = None
    no_cache: bool = False
    jobs: int | None = None
    output_format: str = "text"
    output_file: str | None = None
    explain_evidence: bool = False
    statistics: bool = False
    quiet: bool = False
    color: str = "auto"
    fix: bool = False
    unsafe_fixes: bool = False
    diff: bool = False


SWITCHES = {
    "--isolated": "isolated",
    "--no-cache": "no_cache",
    "--explain-evidence": "explain_evidence",
    "--statistics": "statistics",
    "--quiet": "quiet",
    "-q": "quiet",
    "--fix": "fix",
    "--unsafe-fixes": "unsafe_fixes",
    "--diff": "diff",
}
"""Options without a value."""


def plain(arguments: Sequence[str]) -> Arguments | None:
    """The arguments where they are paths and switches only, else None: then ``options`` has to read them.

    The import of ``argparse`` would be an eighth of the time in which a clean script is checked.
    """
    paths = []
    switched: dict[str, bool] = {}
    for argument in arguments:
        if argument in SWITCHES:
            switched[SWITCHES[argument]] = True
        elif argument.startswith("-") and argument != "-":
            return None
        else:
            paths.append(argument)
    return Arguments(paths=tuple(paths) or (".",))._replace(**switched)  # type: ignore[arg-type]
