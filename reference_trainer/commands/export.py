"""`reference-trainer export`: the weights of a run as one .safetensors file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .parse import OK, needs, parse

__all__ = ["ExportOptions", "run"]


@dataclass(frozen=True)
class ExportOptions:
    """Copies the weights of a run's latest checkpoint to one .safetensors file."""

    run: str
    """A run directory, or one of its checkpoints; also as the first word."""
    out: str
    """The file to write, which must not be there; also as the second word."""
    ema: bool = False
    """The averaged weights."""


def run(words: list[str]) -> int:
    """Writes the file; returns the exit code. Local."""
    for place, name in enumerate(("--run", "--out")):
        if len(words) > 2 * place and not words[2 * place].startswith("-"):
            words = [*words[: 2 * place], name, *words[2 * place :]]
    options = parse(ExportOptions, words, "export")
    needs("torch", "numpy", "safetensors")
    from ..checkpoint import export

    source = export(Path(options.run), Path(options.out), ema=options.ema)
    print(f"{options.out}: {'averaged ' * options.ema}weights of {source}")
    return OK
