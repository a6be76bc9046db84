"""Everything the checker says about a body of code and recorded rehearsals, kept and compared.

    python -m ci.golden record OUT.jsonl [--trees FOLDER ...] [--logs FOLDER ...] [--command "validate-ddp"]
    python -m ci.golden compare BEFORE.jsonl AFTER.jsonl [--brief]

``record`` checks each of our fixtures, each mutant, and each folder within every FOLDER of ``--trees`` by itself, and
replays each ``*.jsonl`` within every FOLDER of ``--logs``. A line holds one finding, or one verdict of a rehearsal,
with all that a user could see of it. ``compare`` prints what went, came and changed; exit code 1 where anything did.
A refactoring is held to an empty comparison; any other change lists and explains it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ci.mutants.script import correct_scripts

ROOT = Path(__file__).resolve().parent.parent
_SAID_OF = ("of", "kind", "code", "path", "cell", "line")
"""What tells which finding is which: its other fields may change."""

Row = dict[str, Any]


def record(command: list[str], trees: list[Path], logs: list[Path]) -> Iterator[Row]:
    """All rows, in a fixed order."""
    for folder in sorted(path for path in (ROOT / "fixtures").rglob("*") if path.is_dir() and any(path.glob("*.py"))):
        yield from _checked(command, folder.relative_to(ROOT).as_posix(), folder)
    yield from _mutants(command)
    for tree in trees:
        for folder in sorted(path for path in tree.iterdir() if path.is_dir()):
            yield from _checked(command, f"{tree.name}/{folder.name}", folder)
    for place in logs:
        for log in sorted(place.glob("*.jsonl")):
            yield from _replayed(command, f"{place.name}/{log.name}", log)


def _mutants(command: list[str]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        for script in correct_scripts():
            variants = [("correct", script.texts)]
            variants += [(f"{number:03d}-{mutant.code}", mutant.texts) for number, mutant in enumerate(script.mutants)]
            for name, texts in variants:
                folder = Path(scratch, f"{script.name}-{name}")
                folder.mkdir()
                for path, text in texts.items():
                    (folder / path).write_text(text, encoding="utf-8")
        # One call for all: a process each would take minutes.
        yield from _checked(command, "mutants", Path(scratch))


def _checked(command: list[str], name: str, folder: Path) -> Iterator[Row]:
    done = subprocess.run(
        [*command, "--no-cache", "--isolated", "--no-respect-gitignore", "--output-format", "json", "."],
        cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    yield {"of": name, "kind": "exit", "code": done.returncode}
    for finding in json.loads(done.stdout or '{"findings": []}')["findings"]:
        yield {"of": name, "kind": "finding", **finding}


def _replayed(command: list[str], name: str, log: Path) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        done = subprocess.run(
            [*command, "run", "--replay", str(log), "--report", str(report)],
            cwd=scratch, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        yield {"of": name, "kind": "exit", "code": done.returncode, "text": done.stdout}
        document = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    for finding in document.pop("findings", ()):
        yield {"of": name, "kind": "finding", **finding}
    for key, value in document.items():
        yield {"of": name, "kind": key, "value": value}


def compare(before: list[Row], after: list[Row], brief: bool) -> bool:
    """Prints what differs; whether anything does."""
    groups = [_grouped(before), _grouped(after)]
    went = came = changed = 0
    for key in sorted(set(groups[0]) | set(groups[1]), key=str):
        old, new = groups[0].get(key, []), groups[1].get(key, [])
        same = [row for row in old if row in new]
        old, new = [row for row in old if row not in same], [row for row in new if row not in same]
        for one, other in zip(old, new, strict=False):
            changed += 1
            print(f"changed {_shown(one)}")
            for field in () if brief else sorted(set(one) | set(other)):
                if one.get(field) != other.get(field):
                    print(f"    {field}: {json.dumps(one.get(field))[:300]}")
                    print(f"    {' ' * len(field)}> {json.dumps(other.get(field))[:300]}")
        for row in old[len(new) :]:
            went += 1
            print(f"went    {_shown(row)}")
        for row in new[len(old) :]:
            came += 1
            print(f"came    {_shown(row)}")
    print(f"{len(before)} rows before, {len(after)} after: {went} went, {came} came, {changed} changed")
    return bool(went or came or changed)


def _grouped(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        fields = _SAID_OF if row["kind"] == "finding" else ("of", "kind")
        groups.setdefault(tuple(row.get(field) for field in fields), []).append(row)
    return groups


def _shown(row: Row) -> str:
    place = f"{row.get('path')}:{row.get('line')} {row.get('severity')} {row['code']}" if "path" in row else ""
    return f"{row['of']} {row['kind']} {place} {str(row.get('message', row.get('code', '')))[:120]}"


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    """0 where nothing differs, or everything was recorded."""
    parser = argparse.ArgumentParser(prog="python -m ci.golden", description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    keep = parts.add_parser("record")
    keep.add_argument("out", type=Path)
    keep.add_argument("--trees", type=Path, nargs="*", default=[], metavar="FOLDER")
    keep.add_argument("--logs", type=Path, nargs="*", default=[], metavar="FOLDER")
    keep.add_argument("--command", default=f"{Path(sys.executable).parent / 'validate-ddp'}")
    differ = parts.add_parser("compare")
    differ.add_argument("before", type=Path)
    differ.add_argument("after", type=Path)
    differ.add_argument("--brief", action="store_true", help="a line for each, without the fields that differ")
    options = parser.parse_args()
    if options.part == "compare":
        return int(compare(_read(options.before), _read(options.after), options.brief))
    rows = record(
        shlex.split(options.command),
        [path.resolve() for path in options.trees],
        [path.resolve() for path in options.logs],
    )
    with options.out.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
