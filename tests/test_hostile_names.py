"""Names of files as strangers choose them: on no line that is printed do they move the cursor or give a command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="names that Windows does not take")

BUGGY = Path(__file__).resolve().parents[1] / "fixtures" / "showcase" / "train_buggy.py"
NAMES = [
    b"a\n::error::x.py",
    b"bad\r\n::set-output name=a::b.py",
    b"::error::y.py",
    b"  ::warning::z.py",
    b"\x1b[31mred.py",
    "c1\u009b31m.py".encode(),
    "\u202egnol\u2028.py".encode(),
    b"\xff\xfe.py",
    b'q"uote\\.py',
    b"per%0Acent,comma:x.py",
    b"tab\t.py",
    b"--fix.py",
    b"-.py",
    b"sp ace .py",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a buggy script under each name, and with what cannot be checked under some."""
    folder = tmp_path / "tree"
    folder.mkdir()
    for name in NAMES:
        try:
            with open(os.path.join(os.fsencode(folder), name), "wb") as file:
                file.write(BUGGY.read_bytes())
        except OSError:  # a file system that takes no such name
            continue
    (folder / "syn\n::error::s.py").write_text("import torch.distributed\ndef (:\n")
    (folder / "dir\n::error::d").mkdir()
    (folder / "dir\n::error::d" / "t.py").write_bytes(BUGGY.read_bytes())
    return folder


def call(folder: Path, *arguments: str) -> tuple[bytes, list[str]]:
    """Standard output, and the lines that the command has printed on it and on standard error, without our colours."""
    line = [sys.executable, "-m", "validate_ddp", *arguments]
    done = subprocess.run(line, capture_output=True, cwd=folder, timeout=60, check=False)
    assert b"Traceback" not in done.stderr
    text = (done.stdout + done.stderr).decode("utf-8", "surrogateescape")
    return done.stdout, [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.split("\n")]


def assert_harmless(lines: list[str]) -> None:
    assert [line for line in lines if not line.isprintable() or line.lstrip().startswith("::")] == []


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--output-format", "concise"],
        ["--explain-evidence", "--color", "always"],
        ["--statistics"],
        ["--output-format", "json"],
        ["--fix"],
        ["--diff"],
    ],
)
def test_no_name_gives_a_command(tree: Path, options: list[str]) -> None:
    out, lines = call(tree, "--no-cache", *options, ".")
    assert_harmless(lines)
    assert "--statistics" in options or out.count(b"::error::x.py") > 1


def test_github_reads_back_each_name_from_our_own_commands(tree: Path) -> None:
    _, lines = call(tree, "--no-cache", "--output-format", "github", ".")
    assert all(line.isprintable() and re.match(r"::(error|warning|notice) title=|$", line) for line in lines)
    assert any(",file=a%0A%3A%3Aerror%3A%3Ax.py," in line for line in lines)


def test_problems_and_usage_errors_are_one_harmless_line(tree: Path) -> None:
    hostile = "\x1b[2J\n::error::x"
    for arguments in (
        ["--config", hostile],
        ["--output-file", f"no{hostile}/x", "--", "-.py"],
        ["--fail-on", hostile],
        [hostile],
        ["run", hostile],
        ["run", "--report", f"no{hostile}/x.json", "./-.py"],
        ["run", "--replay", hostile],
        ["run", "--fake-data", f"text:{hostile}/x\0", "./-.py"],
        ["explain", hostile],
    ):
        if any("\0" in word for word in arguments):
            arguments = [word.replace("\0", "") for word in arguments]
            (tree / "\x1b[2J\n::error::x").write_text("no folder")
        _, lines = call(tree, "--no-cache", *arguments) if arguments[0].startswith("-") else call(tree, *arguments)
        assert_harmless(lines)
        assert sum("error" in line for line in lines) >= 1, arguments


def test_what_cannot_be_written_is_told_harmlessly(tree: Path) -> None:
    outside = tree.parent / "outside.py"
    outside.write_bytes(BUGGY.read_bytes())
    (tree / "link\n::error::l.py").symlink_to(outside)
    _, lines = call(tree, "--no-cache", "--fix", ".")
    assert_harmless(lines)
    assert any(line.startswith("validate-ddp: link\\n::error::l.py: not fixed: ") for line in lines)


@pytest.mark.parametrize("tool", ["git", pytest.param("patch", marks=pytest.mark.slow)])
def test_a_diff_of_any_name_can_be_applied(tree: Path, tool: str) -> None:
    if not shutil.which(tool):
        pytest.skip(f"no {tool}")
    shown, _ = call(tree, "--no-cache", "--diff", ".")
    copy = tree.parent / "copy"
    shutil.copytree(tree, copy)
    apply = ["git", "apply", "-p0", "-"] if tool == "git" else ["patch", "-p0", "-s"]
    subprocess.run(apply, input=shown, cwd=copy, check=True, timeout=60)
    call(tree, "--no-cache", "--fix", ".")
    for folder, _, files in os.walk(os.fsencode(tree)):
        for name in files:
            path = os.path.join(folder, name)
            twin = path.replace(os.fsencode(tree), os.fsencode(copy), 1)
            with open(path, "rb") as fixed, open(twin, "rb") as patched:
                assert fixed.read() == patched.read(), name


def test_on_a_terminal_the_lines_of_a_diff_are_harmless_too(tmp_path: Path) -> None:
    import pty

    source = BUGGY.read_bytes().replace(b"def train(", b"# \x1b[2J\x9b31m\ndef train(").replace(b"\n", b"\r\n")
    (tmp_path / "train.py").write_bytes(source.replace(b"\x9b", "\x9b".encode()))
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "validate_ddp", "--no-cache", "--diff", "train.py"]
    with subprocess.Popen(line, stdout=theirs, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # Linux says so where the other end is closed
                break
            if not data:
                break
            shown += data
    os.close(ours)
    assert process.returncode == 1
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    assert "+        sampler.set_epoch(epoch)" in lines and all(line.isprintable() for line in lines)
    piped, _ = call(tmp_path, "--no-cache", "--diff", "train.py")
    assert b"+        sampler.set_epoch(epoch)\r\n" in piped
