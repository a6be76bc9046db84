"""Reports go over nothing that is read: neither over a source, nor over what the command line names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from validate_ddp import cli, console
from validate_ddp.output_files import objection
from validate_ddp.rehearse.options import read

BUGGY = Path(__file__).resolve().parents[1] / "fixtures" / "showcase" / "train_buggy.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("b.py", "other.py", "launch", "config.json"):
        Path(name).write_bytes(BUGGY.read_bytes())
    Path("sub").mkdir()
    Path("report.json").write_text("an older report")
    Path("link").symlink_to("b.py")
    Path("link.json").symlink_to("launch")
    os.link("launch", "launch2")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--output-file", "b.py", "b.py"], "is a source file"),
        (["b.py", "--output-file=sub/../b.py"], "is a source file"),
        (["--output-file", "link", "b.py"], "is a source file"),
        (["--output-file", "other.py", "b.py"], "is a source file"),
        (["--fix", "--output-file", "other.py", "b.py"], "is a source file"),
        (["--diff", "--output-file", "b.py", "."], "is a source file"),
        (["--statistics", "--output-file", "b.py", "."], "is a source file"),
        (["--output-file", "./launch", "launch"], "is read by this command"),
        (["--output-file", "launch2", "launch"], "is read by this command"),
        (["--output-file", "link.json", "launch"], "is read by this command"),
        (["--output-file", "config.json", "--config", "config.json", "b.py"], "is read by this command"),
        (["--output-file", "sub", "b.py"], "is a folder"),
        (["--output-file", "", "b.py"], "is not a path"),
    ],
)
def test_the_output_file_is_refused_before_anything_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    before = contents(folder)
    assert cli.main(["--no-cache", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("validate-ddp: error: --output-file ") and why in err and err.count("\n") == 1
    assert contents(folder) == before


def test_an_older_report_is_replaced_and_a_link_to_it_stays(folder: Path) -> None:
    Path("latest").symlink_to("report.json")
    for name in ("report.json", "latest", "new.json", "/dev/null"):
        assert cli.main(["--no-cache", "--output-file", name, "--output-format", "json", "b.py"]) == 1
    assert Path("latest").is_symlink() and Path("report.json").read_text().startswith("{")
    assert Path("new.json").read_text() == Path("report.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--log", "b.py", "b.py"], "--log b.py: is a source file"),
        (["--log", "launch", "launch"], "--log launch: is read by this command"),
        (["--log", "link.json", "launch"], "--log link.json: is read by this command"),
        (["--log", "sub", "b.py"], "--log sub: is a folder"),
        (["--report", "link.json", "launch"], "--report link.json: is read by this command"),
        (["--report", "config.json", "b.py", "--config", "config.json"], "--report config.json: is read"),
        (["--report", "config.json", "b.py", "--config=config.json"], "--report config.json: is read"),
        (["--report", "a.json", "--log", "./a.json", "b.py"], "--report a.json: is the file of --log too"),
        (["--replay", "report.json", "--report", "report.json"], "--report report.json: is read"),
        (["--log", "b.py", "--", "torchrun", "--nproc-per-node", "2", "b.py"], "--log b.py: is a source file"),
        (["--log", "link", "-m", "b"], "--log link: is a source file"),
    ],
)
def test_report_and_log_of_a_rehearsal_are_refused_alike(folder: Path, arguments: list[str], why: str) -> None:
    before = contents(folder)
    with pytest.raises(console.UsageError, match="^" + why):
        read(arguments)
    assert contents(folder) == before


def test_what_is_no_plain_file_is_no_objection(folder: Path) -> None:
    os.mkfifo("pipe")
    for path in ("pipe", "/dev/stdout", "new.py", "report.json"):
        assert objection("--output-file", path, ["b.py", "-", "\0", "missing"]) is None
