"""The log: what is kept, and what a replay refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from validate_ddp import cli
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.log import Log, read


def test_events_come_back_as_they_were_added(tmp_path: Path) -> None:
    path = str(tmp_path / "run.jsonl")
    log = Log(path)
    log.add(protocol.Start(version=protocol.VERSION))
    log.add(protocol.Parameters(optimizer=0, names=[None], before=[None], shapes=[[1]], process=1))
    log.close()
    assert read(path) == log.events


def test_a_line_that_was_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"event": "start", "version": protocol.VERSION}) + '\n{"event": "st')
    assert read(str(path)) == [protocol.Start(version=protocol.VERSION)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no log"),
        ('{"event": "step"}\n', "is no log"),
        ('{"event": "start", "version": 99}\n', "of version 99"),
        ('nothing\n{"event": "step"}\n', ":1: is no event"),
        ('{"event": "start", "version": 1}\n[]\n', ":2: is no event"),
        ('{"event": "start", "version": 1}\n{"event": "site", "process": 1}\n', "is damaged"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    path = tmp_path / "run.jsonl"
    if text is not None:
        path.write_text(text)
    assert cli.main(["run", "--replay", str(path)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1


def test_a_full_disk_ends_the_file_and_not_the_run() -> None:
    log = Log("/dev/full")
    for _ in range(3000):
        log.add(protocol.Shim(change="x" * 100))
    log.close()
    assert sum(isinstance(event, protocol.Shim) for event in log.events) == 3000
    assert any(isinstance(event, protocol.Fault) for event in log.events)


def test_a_replay_reports_and_gives_the_exit_code(
    recorded: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded.wrapper(line=33, nested=True)
    recorded.every("exit", initialized=False, site=recorded.site(5))
    path = tmp_path / "run.jsonl"
    events = [*recorded.events, {"event": "finish", "outcome": "finished", "seconds": 1.0}]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    report = tmp_path / "report.json"
    assert cli.main(["run", "--replay", str(path), "--report", str(report)]) == 1
    assert "train.py:33:1: error DDP312 double-wrap" in capsys.readouterr().out
    (tmp_path / "pyproject.toml").write_text('[tool.validate-ddp]\nfail-on = "never"\n')
    assert cli.main(["run", "--replay", str(path)]) == 0
    (tmp_path / "pyproject.toml").write_text('[tool.validate-ddp]\nignore = ["double-wrap"]\n')
    assert cli.main(["run", "--replay", str(path)]) == 0 and "no findings" in capsys.readouterr().out
    document = json.loads(report.read_text())
    assert [(each["code"], each["evidence_kinds"]) for each in document["findings"]] == [("DDP312", ["rehearsal"])]
    assert document["rules"]["DDP312"] == {"name": "double-wrap", "verdict": "violated"}
    assert document["facts"]["world_size"] == 2
