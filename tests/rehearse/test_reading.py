"""The project's settings and comments hold for what a run shows, as for what is read; the script is read first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from validate_ddp.config import Settings
from validate_ddp.rehearse.outcome import judge
from validate_ddp.rehearse.reading import file_of, plain, read, wanted


@pytest.fixture
def saved_by_both(record: Any, tmp_path: Path) -> Any:
    """A run in which both ranks write one checkpoint, at line 3 of a script that is there."""
    run = record()
    run.events[0]["cwd"] = str(tmp_path)
    site = run.site(3, str(tmp_path / "train.py"))
    run.every("save", path=str(tmp_path / "last.pt"), tensors=2, wrapped=0, site=site)
    (tmp_path / "train.py").write_text("import torch\n\ntorch.save(state, path)\n")
    return run


def codes(run: Any, settings: Settings, folder: Path) -> list[str]:
    """What is reported of the run."""
    events = run.told(finished=True)
    return [each.finding.code for each in judge(events, wanted(settings, str(folder))).reported]


def test_a_rule_that_is_not_selected_is_not_reported(saved_by_both: Any, tmp_path: Path) -> None:
    assert codes(saved_by_both, Settings(), tmp_path) == ["DDP502"]
    assert codes(saved_by_both, Settings(ignore=("save-on-every-rank",)), tmp_path) == []


@pytest.mark.parametrize("comment", ["# noqa: DDP502", "# validate-ddp: ignore[save-on-every-rank] a disk each"])
def test_a_comment_at_the_line_silences_the_run_too(saved_by_both: Any, tmp_path: Path, comment: str) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n\ntorch.save(state, path)  {comment}\n")
    assert codes(saved_by_both, Settings(), tmp_path) == []


def test_what_is_read_travels_in_the_log(record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\n\ndist.init_process_group('gloo')  # noqa: DDP999\ndist.barrier()\n"
    )
    found = read("train.py", Settings(cache_dir=None))
    assert [(each.code, each.line) for each in found] == [("DDP101", 3)]  # and none on the idle comment
    run = record()
    run.events[0]["read"] = plain(found)
    assert run.said() == {("DDP101", 3): "not observed"}


def test_the_file_of_a_module_is_found_under_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("package/train.py", "package/inner/__main__.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert file_of(("-m", "package.train")) == "package/train.py"
    assert file_of(("-m", "package.inner")) == "package/inner/__main__.py"
    assert file_of(("-m", "http.server")) is None and file_of(("train.py",)) == "train.py" and file_of(()) is None
