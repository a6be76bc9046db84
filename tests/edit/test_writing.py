"""Files are replaced whole, with nothing left over, and none that a link leads to from where the user has sent us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from validate_ddp import fixing, output_files
from validate_ddp.config import Settings
from validate_ddp.edit.writing import is_led_out

SHOWCASE = Path(__file__).resolve().parents[2] / "fixtures" / "showcase"
BUGGY = (SHOWCASE / "train_buggy.py").read_bytes()

posix = pytest.mark.skipif(os.name == "nt", reason="signals and modes")

KILLED_AMID = """
import os, sys
sync = os.fsync
def interrupted(handle):
    sync(handle)
    os.kill(os.getpid(), {number})
os.fsync = interrupted
from validate_ddp.cli import main
sys.exit(main(sys.argv[1:]))
"""


def interrupted(number: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command, to which the signal comes after it has written a file under its temporary name."""
    code = KILLED_AMID.format(number=int(number))
    line = [sys.executable, "-c", code, "--no-cache", "--isolated", *arguments]
    return subprocess.run(line, capture_output=True, text=True, cwd=folder, check=False, timeout=60)


@posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"])
def test_a_signal_leaves_no_file_of_ours_behind(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    (tmp_path / "train.py").write_bytes(BUGGY)
    done = interrupted(number, tmp_path, "--fix", "train.py")
    assert done.returncode == (130 if name == "SIGINT" else -number)
    assert os.listdir(tmp_path) == ["train.py"]
    assert b"set_epoch(" in (tmp_path / "train.py").read_bytes() != BUGGY
    done = interrupted(number, tmp_path, "--output-file", "report.txt", "train.py")
    assert sorted(os.listdir(tmp_path)) == ["report.txt", "train.py"]
    assert (tmp_path / "report.txt").read_text().endswith("fixable with --fix --unsafe-fixes\n")


@posix
def test_after_a_kill_the_file_is_the_old_one_and_what_is_left_is_named_after_us(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(BUGGY)
    interrupted(signal.SIGKILL, tmp_path, "--fix", "train.py")
    assert (tmp_path / "train.py").read_bytes() == BUGGY
    [left] = set(os.listdir(tmp_path)) - {"train.py"}
    assert left.startswith(".validate-ddp-") and left.endswith(".tmp")


@posix
def test_mode_owner_and_other_names_stay(tmp_path: Path) -> None:
    path, other = tmp_path / "a.py", tmp_path / "b.py"
    path.write_text("old\n")
    os.chmod(path, 0o4750)
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
        os.chmod(path, 0o4750)
    os.link(path, other)
    before = path.stat()
    output_files.replace(str(path), b"new\n")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert (path.read_text(), other.read_text()) == ("new\n", "old\n")


@posix
def test_a_new_report_has_the_mode_that_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    output_files.write_report(str(tmp_path / "report"), b"x")
    assert (tmp_path / "report").stat().st_mode == (tmp_path / "any").stat().st_mode


@posix
def test_a_pipe_and_a_file_that_is_mounted_by_itself_are_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    output_files.write_report(f"/dev/fd/{writer}", b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)

    def busy(*paths: str) -> None:
        raise OSError(16, "Device or resource busy")

    (tmp_path / "mounted").write_text("a longer one")
    monkeypatch.setattr(os, "replace", busy)
    output_files.write_report(str(tmp_path / "mounted"), b"new")
    assert os.listdir(tmp_path) == ["mounted"] and (tmp_path / "mounted").read_text() == "new"


def test_a_full_disk_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "report").write_text("the old one")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        output_files.write_report(str(tmp_path / "report"), b"new")
    assert os.listdir(tmp_path) == ["report"] and (tmp_path / "report").read_text() == "the old one"


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder to be fixed, which is the working directory, and one outside of it."""
    inside, outside = tmp_path / "project", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "theirs.py").write_bytes(BUGGY)
    monkeypatch.chdir(inside)
    return inside, outside


def fix(*targets: str, stdin: bytes | None = None, name: str = "stdin.py") -> fixing.Fixed:
    settings = Settings(cache_dir=None, stdin_filename=name)
    return fixing.fix(targets, settings, stdin, unsafe=False, write=True)


def test_a_link_in_the_tree_that_leads_out_of_it_is_not_followed(trees: tuple[Path, Path]) -> None:
    inside, outside = trees
    (inside / "ours.py").write_bytes(BUGGY)
    (inside / "link.py").symlink_to(outside / "theirs.py")
    result = fix(".")
    assert (outside / "theirs.py").read_bytes() == BUGGY and (inside / "ours.py").read_bytes() != BUGGY
    assert [change.path for change in result.changes] == ["ours.py"]
    assert result.problems == ("link.py: not fixed: a link leads to it, out of what is checked; name the file itself",)
    assert any(finding.path == "link.py" for finding in result.outcome.findings)


def test_a_link_that_is_named_itself_is_followed_and_stays_one(trees: tuple[Path, Path]) -> None:
    inside, outside = trees
    (inside / "link.py").symlink_to(outside / "theirs.py")
    result = fix("link.py")
    assert (outside / "theirs.py").read_bytes() != BUGGY and (inside / "link.py").is_symlink()
    assert result.problems == () and os.listdir(outside) == ["theirs.py"]


def test_what_a_script_imports_over_a_link_is_not_changed(trees: tuple[Path, Path]) -> None:
    inside, outside = trees
    helper = b"import torch\ndef keep(model):\n    torch.save(model.state_dict(), 'm.pt')\n"
    (outside / "saving.py").write_bytes(helper)
    (inside / "lib").symlink_to(outside)
    script = BUGGY.replace(b"def save_checkpoint", b"from lib.saving import keep\ndef save_checkpoint")
    (inside / "train.py").write_bytes(script.replace(b"torch.save(model.state_dict(), path)", b"keep(model)"))
    result = fix("train.py")
    assert (outside / "saving.py").read_bytes() == helper
    assert [line.partition(":")[0] for line in result.problems] == ["lib/saving.py"]
    assert (inside / "train.py").read_bytes() != script
    fix("train.py", "lib")
    assert (outside / "saving.py").read_bytes() != helper


@pytest.mark.parametrize(
    ("path", "targets", "led_out"),
    [
        ("project/a.py", ["project"], False),
        ("project/link.py", ["project"], True),
        ("project/link.py", ["project/link.py"], False),
        ("project/link.py", ["project/a.py"], True),
        ("project/link.py", ["project", "outside"], False),
        ("project/folder/b.py", ["project/a.py"], True),
        ("project/sub/c.py", ["project/sub"], False),
        ("project/a.py", ["project/sub/c.py"], False),
        ("project/link.py", ["project/sub/c.py"], True),
        ("project/a.py", ["entry"], False),
        ("entry/a.py", ["entry"], False),
        ("entry/link.py", ["entry"], True),
    ],
)
def test_what_a_link_leads_out_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, targets: list[str], led_out: bool
) -> None:
    for file in ("outside/b.py", "project/a.py", "project/sub/c.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "project/link.py").symlink_to("../outside/b.py")
    (tmp_path / "project/folder").symlink_to("../outside")
    (tmp_path / "entry").symlink_to("project")
    monkeypatch.chdir(tmp_path)
    assert is_led_out(path, targets) is led_out


@pytest.mark.parametrize("name", ["train.py", "./train.py", "{}/train.py"])
def test_with_standard_input_no_file_is_changed(trees: tuple[Path, Path], name: str) -> None:
    """By whatever name an editor gives it; not those that the script imports either."""
    inside, _ = trees
    helper = b"import torch\ndef keep(model):\n    torch.save(model.state_dict(), 'm.pt')\n"
    script = BUGGY.replace(b"def save_checkpoint", b"from a_saving import keep\ndef save_checkpoint")
    script = script.replace(b"torch.save(model.state_dict(), path)", b"keep(model)")
    (inside / "a_saving.py").write_bytes(helper)
    (inside / "train.py").write_bytes(script)
    result = fix("-", stdin=script, name=name.format(inside))
    assert (inside / "train.py").read_bytes() == script and (inside / "a_saving.py").read_bytes() == helper
    fixed = fixing.fixed_stdin(result, script)
    assert b"sampler.set_epoch(epoch)" in fixed and b"def keep" not in fixed
    assert any((finding.path, finding.code) == ("a_saving.py", "DDP502") for finding in result.outcome.findings)
