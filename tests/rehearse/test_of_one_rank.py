"""What only one rank does or learns and all of them need, seen in real runs: DDP319 and DDP321."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("of_one_rank_script.py")


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("part", ["buffers", "averages", "gradients"])
def test_what_one_rank_alone_does_is_named_at_its_line(tmp_path: Path, part: str, right: bool) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "validate_ddp", "run", "--no-static", "--no-partition", "--report", str(report)]
    words = [*command, "--nproc-per-node", "2", str(SCRIPT), part, *(["right"] if right else [])]
    # What counts lines goes before what looks on line by line.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    document = json.loads(report.read_text())
    assert document["faults"] == []
    found = {(each["code"], each["line"]) for each in document["findings"]}
    rows = list(enumerate(SCRIPT.read_text().splitlines(), 1))
    first = next(line for line, row in rows if row.startswith("class Codes" if part == "buffers" else f"def {part}"))
    marked = next((row.rpartition(": ")[2], line) for line, row in rows if line > first and "# observe: " in row)
    assert found == (set() if right else {marked}), done.stderr
