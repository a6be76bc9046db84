"""Rehearses both halves of the fixture pairs for real, and prints whether the run shows the code on its line.

    python -m ci.bench.rehearsals [PAIR ...]

Needs torch. A pair whose rules no run can show counts only for what is found beside it. Exit code 1: a finding is
missing, or one is too many.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from validate_ddp.catalogue.registry import every, load
from validate_ddp.rehearse.rules import judges

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
NODES = {
    "b27": ("--nnodes", "2", "--nproc-per-node", "1"),
    "ddp103": ("--nnodes", "2", "--nproc-per-node", "1"),
    "ddp104": ("--nnodes", "2", "--nproc-per-node", "1"),
    "ddp503": ("--nnodes", "2"),
}
"""What only several nodes show."""
UNSHOWN = {"showcase": {"DDP103"}}
"""Of a pair that has other defects to show on one node."""
_EXPECT = re.compile(r"#\s*expect(?: info)?:\s*(DDP\d+(?:\s*,\s*DDP\d+)*)")


def expected(script: Path) -> set[tuple[str, int]]:
    """Codes and lines that the script's comments name, of rules that a run can show."""
    shown = set(judges()) - UNSHOWN.get(script.parent.name, set())
    return {
        (code.strip(), number)
        for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1)
        for match in _EXPECT.finditer(line)
        for code in match[1].split(",")
        if code.strip() in shown
    }


def rehearse(script: Path, folder: Path, *options: str) -> tuple[dict[str, Any], int, float]:
    """The report of a run as JSON, its exit code, and seconds."""
    report = folder / "report.json"
    command = [
        sys.executable,
        "-m",
        "validate_ddp",
        "run",
        "--no-static",
        "--timeout",
        "90",
        *options,
        "--report",
        str(report),
    ]
    began = time.monotonic()
    done = subprocess.run([*command, str(script)], cwd=folder, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if not report.exists():
        raise SystemExit(f"{script}: no report: {done.stderr[-500:]}")
    return json.loads(report.read_text(encoding="utf-8")), done.returncode, seconds


def main(names: list[str]) -> int:
    """Prints a line for each half, then a summary."""
    severities = {stub.code: load(stub).SEVERITIES for stub in every()}
    folders = sorted(path.parent for path in FIXTURES.glob("*/*buggy.py"))
    right = wanted = alarms = 0
    for folder in folders:
        if names and not any(folder.name.startswith(name) for name in names):
            continue
        for script in sorted(folder.glob("*buggy.py")) + sorted(folder.glob("*fixed.py")):
            options = NODES.get(folder.name.partition("_")[0], ())
            with tempfile.TemporaryDirectory() as scratch:
                report, code, seconds = rehearse(script, Path(scratch), *options)
            found = {(each["code"], each["line"]): each["severity"] for each in report["findings"]}
            assert all(severity in severities[key[0]] for key, severity in found.items()), found
            want = expected(script)
            extra = {key: severity for key, severity in found.items() if key not in want and severity != "info"}
            wanted, right, alarms = wanted + len(want), right + len(want & set(found)), alarms + len(extra)
            missing = want - set(found)
            word = f"MISSING {sorted(missing)}" if missing else ("shown" if want else "-")
            more = f" TOO MANY {extra}" if extra else ""
            faults = f" FAULTS {report['faults']}" if report["faults"] else ""
            shown = f"{folder.name}/{script.name}".ljust(58)
            print(f"{shown} exit {code} {seconds:5.1f} s {report['outcome']:9} {word}{more}{faults}", flush=True)
    print(f"{right} of {wanted} expected findings shown, {alarms} too many")
    return int(right < wanted or alarms > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
