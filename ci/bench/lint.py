"""Measures the checker's speed beside TorchFix and ruff: CPU seconds on one corpus, in one run, as ratios.

    python ci/bench/lint.py CORPUS_DIR [--peers-venv DIR] [--runs N] [--without-torchfix]

CPU is user plus system time of the whole process tree. The commands take turns, and medians are compared, so that a
busy machine disturbs all alike. Goals are printed beside the measured ratios, never asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

CLEAN_SCRIPT = ROOT / "fixtures" / "ddp201_missing_set_epoch" / "fixed.py"
"""A clean DDP script that survives the prefilter."""

MIB = 1024 * 1024


class Usage(NamedTuple):
    """What one run of a command took: seconds of CPU and of wall clock, and the peak memory of its largest process."""

    cpu: float
    wall: float
    peak_rss: int
    exit_code: int


def measure(command: list[str]) -> Usage:
    """Runs a command to its end, its output thrown away."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux counts the peak in KiB, macOS in bytes.
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Usage(usage.ru_utime + usage.ru_stime, wall, peak, process.returncode)


def median(usages: list[Usage]) -> Usage:
    """The median of each quantity."""
    return Usage(
        statistics.median(usage.cpu for usage in usages),
        statistics.median(usage.wall for usage in usages),
        int(statistics.median(usage.peak_rss for usage in usages)),
        max(usage.exit_code for usage in usages),
    )


def take_turns(commands: dict[str, list[str]], runs: int) -> dict[str, Usage]:
    """Medians by name; one run of each command, then the next of each."""
    usages: dict[str, list[Usage]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            usages[name].append(measure(command))
    return {name: median(several) for name, several in usages.items()}


def environment(folder: Path, packages: list[str]) -> Path:
    """The `bin` folder of a virtual environment with these packages, made where it is missing."""
    scripts = folder / "bin"
    stamp = folder / "complete"
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"installing {', '.join(packages)} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(scripts / "python"), "-m", "pip", "install", "--quiet", *packages], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return scripts


def outcome(ours: str, corpus: Path) -> str:
    """What our checker says of the corpus, in words: a fast run that looked at nothing would prove nothing.

    Raises SystemExit where it ends in another way than with a report.
    """
    command = [ours, "--isolated", "--no-cache", "--output-format", "json", str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    try:
        summary = json.loads(done.stdout)["summary"]
    except (json.JSONDecodeError, KeyError) as error:
        last = (done.stderr.strip().splitlines() or ["nothing on standard error"])[-1]
        raise SystemExit(f"error: {ours} gave no report (exit code {done.returncode}): {last}") from error
    return f"{summary['files']} files looked at, {summary['findings']} findings"


def version(command: list[str]) -> str:
    """What a tool says to `--version`."""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip()


def copy_files(files: list[Path], corpus: Path, folder: Path, count: int) -> Path:
    """A folder with about ``count`` of the corpus's files, evenly spread."""
    step = max(1, len(files) // count)
    for number, file in enumerate(files[::step][:count]):
        target = folder / f"{number:03}" / file.relative_to(corpus).name
        target.parent.mkdir(parents=True)
        shutil.copyfile(file, target)
    return folder


def row(what: str, measured: str, ratio: str, goal: str, met: bool | None) -> None:
    """One line of the table."""
    mark = {True: "met", False: "MISSED", None: ""}[met]
    print(f"  {what:<44}{measured:>14}  {ratio:<26}{goal:<26}{mark}")


def compare_with_peers(ours: str, peers: Path, corpus: Path, runs: int, with_torchfix: bool) -> None:
    """CPU beside TorchFix and ruff, each with all its rules."""
    commands = {
        "validate-ddp": [ours, "--isolated", "--no-cache", "--fail-on", "never", str(corpus)],
        "ruff": [str(peers / "ruff"), "check", "--isolated", "--select", "ALL", "--no-cache", "--quiet", str(corpus)],
        "torchfix": [str(peers / "torchfix"), "--select=ALL", str(corpus)],
    }
    # The first runs read the files from disk; nobody shall pay for another's.
    for name in ("validate-ddp", "ruff"):
        measure(commands[name])
    usages = take_turns({name: commands[name] for name in ("validate-ddp", "ruff")}, runs)
    if with_torchfix:
        # It takes minutes, so its turn comes once, between ours.
        usages["torchfix"] = measure(commands["torchfix"])
    again = take_turns({name: commands[name] for name in ("validate-ddp", "ruff")}, runs)
    mine = (usages["validate-ddp"].cpu + again["validate-ddp"].cpu) / 2
    ruff = (usages["ruff"].cpu + again["ruff"].cpu) / 2
    row("validate-ddp, whole corpus, no cache", f"{mine:.2f} s CPU", "1", "", None)
    if with_torchfix:
        other = usages["torchfix"].cpu
        row(
            "TorchFix --select=ALL", f"{other:.2f} s CPU", f"{other / mine:.0f} x ours", ">= 100 x", other >= 100 * mine
        )
    row("ruff check --select ALL --no-cache", f"{ruff:.2f} s CPU", f"{ruff / mine:.2f} x ours", ">= 1 x", ruff >= mine)
    for name, usage in usages.items():
        if usage.exit_code not in (0, 1):
            print(f"    note: {name} ended with exit code {usage.exit_code}")


def cold_and_warm(ours: str, corpus: Path, runs: int) -> None:
    """The same check with an empty and with a filled cache."""
    cold, warm = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            command = [ours, "--isolated", "--cache-dir", cache, "--fail-on", "never", str(corpus)]
            cold.append(measure(command))
            warm.append(measure(command))
    first, second = median(cold), median(warm)
    row("cold cache, whole corpus", f"{first.cpu:.2f} s CPU", f"{first.wall:.2f} s wall", "", None)
    row(
        "warm cache, whole corpus",
        f"{second.cpu:.2f} s CPU",
        f"1/{first.cpu / second.cpu:.1f} of cold",
        "<= 1/5 of cold",
        second.cpu * 5 <= first.cpu,
    )


def small_runs(ours: str, corpus: Path, files: list[Path], runs: int) -> None:
    """What somebody waits for: fifty files, one file, the version."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as caches:
        fifty = copy_files(files, corpus, Path(folder), 50)
        usages = median(
            [
                measure([ours, "--isolated", "--cache-dir", f"{caches}/{n}", "--fail-on", "never", str(fifty)])
                for n in range(runs)
            ]
        )
    row("50 files, cold cache", f"{usages.wall:.2f} s wall", f"{usages.cpu:.2f} s CPU", "<= 0.6 s", usages.wall <= 0.6)

    several = take_turns(
        {
            "version": [ours, "--version"],
            "clean": [ours, "--isolated", "--no-cache", str(CLEAN_SCRIPT)],
            "python": [str(Path(ours).with_name("python")), "-c", "pass"],
        },
        max(runs * 4, 20),
    )
    bare, asked, clean = several["python"], several["version"], several["clean"]
    row("python -c pass", f"{1000 * bare.cpu:.0f} ms CPU", "", "", None)
    row("--version", f"{1000 * asked.cpu:.0f} ms CPU", "", "<= 40 ms", asked.cpu <= 0.040)
    row("a clean DDP script", f"{1000 * clean.cpu:.0f} ms CPU", "", "<= 80 ms", clean.cpu <= 0.080)
    row("a clean DDP script, peak memory", f"{clean.peak_rss / MIB:.0f} MB", "", "<= 60 MB", clean.peak_rss <= 60 * MIB)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a folder of Python files, at least 400 for numbers worth quoting")
    parser.add_argument("--peers-venv", type=Path, default=ROOT / "build" / "bench" / "peers")
    parser.add_argument("--command", default=str(Path(sys.executable).with_name("validate-ddp")), help="ours")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--without-torchfix", action="store_true", help="leave out what takes minutes")
    args = parser.parse_args()
    corpus = args.corpus.resolve()
    files = sorted(path for path in corpus.rglob("*.py") if path.is_file())
    if not files:
        print(f"error: no Python files under {args.corpus}; give a folder which has some", file=sys.stderr)
        return 2
    if not Path(args.command).exists():
        print(f"error: {args.command} does not exist; install the project or give --command", file=sys.stderr)
        return 2
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    peers = environment(args.peers_venv, ["torchfix", "ruff"])
    print(f"{len(files)} files, {lines} lines; Python {platform.python_version()}, {os.cpu_count()} cores")
    tools = ([args.command], [str(peers / "ruff")], [str(peers / "torchfix")])
    print("; ".join(version(command).replace("\n", " ") for command in tools))
    print(f"validate-ddp: {outcome(args.command, corpus)}")
    print()
    row("what", "measured", "beside", "goal", None)
    compare_with_peers(args.command, peers, corpus, args.runs, not args.without_torchfix)
    cold_and_warm(args.command, corpus, args.runs)
    small_runs(args.command, corpus, files, args.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
