"""What the checker, and the validator that greps, say about one script."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from validate_ddp.catalogue import every, load
from validate_ddp.config import Settings
from validate_ddp.lint import check


class Said(NamedTuple):
    """One finding: path within the script, line, code, severity."""

    path: str
    line: int
    code: str
    severity: str


Validator = Callable[[dict[str, str], str, Path], list[Said]]


def rules() -> dict[str, tuple[str, ...]]:
    """The codes that have a rule, with the severities it can give."""
    return {stub.code: load(stub).SEVERITIES for stub in every() if "S" in load(stub).EVIDENCE and stub.code >= "DDP1"}


def run_checker(texts: dict[str, str], entry: str, folder: Path) -> list[Said]:
    """The findings of ``validate-ddp ENTRY`` on a script whose files are written into an empty folder."""
    for path, text in texts.items():
        (folder / path).write_text(text, encoding="utf-8")
    settings = Settings(cache_dir=None, jobs=1, respect_gitignore=False)
    outcome = check([str(folder / entry)], settings)
    root = os.path.realpath(folder)
    return [
        Said(os.path.relpath(os.path.realpath(found.path), root), found.line, found.code, found.severity)
        for found in outcome.findings
    ]
