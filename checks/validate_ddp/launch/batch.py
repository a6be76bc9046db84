"""The directives of a batch script: ``#SBATCH``, as Slurm reads them."""

from __future__ import annotations

import re

from validate_ddp.launch.options import SLURM
from validate_ddp.launch.origin import Origin
from validate_ddp.launch.records import Given, Job, Word

_DIRECTIVE = re.compile(rb"#SBATCH[ \t]+(.*)")
_OPTION = re.compile(rb"(--[\w-]+|-[A-Za-z])(?:=|[ \t]*)([^\s#-][^\s#]*)?")


def job(origin: Origin) -> Job | None:
    """What the script asks of Slurm, in the comments above its first command; None for one that asks nothing."""
    given: list[Given] = []
    position = 0
    first = None
    for line in origin.data.splitlines(keepends=True):
        found = _DIRECTIVE.match(line)
        if found:
            first = position if first is None else first
            for option in _OPTION.finditer(found.group(1)):
                given.append(_given(origin, position + found.start(1), option))
        elif line.strip() and not line.lstrip().startswith(b"#"):
            break  # Slurm reads no further
        position += len(line)
    return Job(tuple(given), origin.span(first, first + 1)) if first is not None else None


def _given(origin: Origin, base: int, option: re.Match[bytes]) -> Given:
    name = option.group(1).decode("utf-8", "replace").lstrip("-").replace("-", "_")
    start, end = base + option.start(), base + option.end()
    raw = option.group().decode("utf-8", "replace").strip()
    whole = Word(raw, (raw,), False, origin.span(start, end))
    if option.group(2) is None:
        return Given(SLURM.get(name, name), None, whole)
    text = option.group(2).decode("utf-8", "replace").strip("\"'")
    value = Word(text, (text,), False, origin.span(base + option.start(2), base + option.end(2)))
    return Given(SLURM.get(name, name), value, whole)
