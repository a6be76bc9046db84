"""The lines of a run's log, RUN/metrics/rank00000.jsonl, written and read back; docs/monitor.md has them. Torch-free.

Numbers that are not finite are the strings "nan", "inf" and "-inf", which JSON lacks; reading turns them back.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .config import ConfigError

VERSION = 1  # Of the lines; a change that a reader has to know of makes it 2.


def log_path(folder: Path, rank: int) -> Path:
    return folder / "metrics" / f"rank{rank:05}.jsonl"


class RankLog:
    """The JSONL file of one rank: a line is on its way to the disk when ``write`` returns. Local."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank, self.path = rank, log_path(folder, rank)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_file():  # half a line, of a job that was killed: the next would be joined to it
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def write(self, kind: str, step: int, **fields: Any) -> None:
        """One line. fields: what JSON holds; numbers that are not finite included."""
        head = {"version": VERSION, "rank": self.rank, "time": round(time.time(), 3), "step": step, "kind": kind}
        try:
            self._file.write(as_json({**head, **fields}))
        except OSError as error:
            told = f"{self.path} cannot be written: {error.strerror or error}; free space, and the same command goes on"
            raise ConfigError(f"{told} from the last checkpoint") from error

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a rank's file; a line that is none (the rank was killed in it) is left out. Local."""
    with open(path, "rb") as file:
        for line in file:
            with suppress(ValueError):
                record = numbers(json.loads(line))
                if line.endswith(b"\n") and isinstance(record, dict):
                    yield record


def as_json(value: Any) -> bytes:
    """A line."""
    return json.dumps(finite(value), allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """With numbers that are not finite as strings."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def numbers(value: Any) -> Any:
    """The strings of ``finite`` as numbers."""
    if isinstance(value, dict):
        return {name: numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [numbers(each) for each in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
