"""What the cache keeps of a check: a second run looks at nothing anew, says the same, and believes only its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from validate_ddp import scripts
from validate_ddp.config import Settings
from validate_ddp.findings import Finding
from validate_ddp.lint import check
from validate_ddp.source.cache import _check

BUGGY = "import torch.distributed as dist\n\ndist.init_process_group('gloo')\n"
SAVING = (
    "import torch\nimport torch.distributed as dist\nfrom parts.engine import save\n\ndist.init_process_group('gloo')\n"
    "save(torch.nn.Linear(1, 1), dist.get_rank())\ndist.destroy_process_group()\n"
)
ENGINE = "import torch\n\n\ndef save(model, rank):\n    torch.save(model.state_dict(), 'model.pt')\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that were looked at anew."""
    seen: list[str] = []
    examine = scripts._examine

    def spy(script: str, *rest: Any) -> Any:
        seen.append(os.path.basename(script))
        return examine(script, *rest)

    monkeypatch.setattr(scripts, "_examine", spy)
    return seen


def run(*targets: str, **settings: Any) -> list[Finding]:
    values = {"cache_dir": os.path.abspath("../cache"), "jobs": 1, **settings}
    return list(check(list(targets or (".",)), Settings(**values)).findings)


def records(kind: str) -> list[Path]:
    return sorted(path for path in Path("../cache").rglob("*.json") if path.parent.parent.name == kind)


def rewrite(path: Path, change: Any) -> None:
    """Put other content into a record, with the check that belongs to it: it needs no secret."""
    value = change(json.loads(path.read_bytes().partition(b"\n")[2]))
    payload = json.dumps(value).encode()
    path.write_bytes(_check(path.parent.parent.name, path.stem, payload) + b"\n" + payload)


def test_scripts_beside_a_broken_file_are_remembered_and_it_is_told_again(examined: list[str]) -> None:
    Path("train.py").write_text(BUGGY)
    Path("broken.py").write_text("import torch.distributed\ndef (:\n")
    Path("uses_broken.py").write_text("from broken import f\n" + BUGGY + "f()\n")
    Path("data.py").write_bytes(b"torch.distributed \xff")
    first = run()
    assert {finding.code for finding in first} == {"DDP001", "DDP002", "DDP101"}
    examined.clear()
    assert run() == first
    assert "train.py" not in examined and "uses_broken.py" not in examined


def test_a_problem_that_only_a_remembered_script_meets_is_told_again(examined: list[str]) -> None:
    Path("parts").mkdir()
    Path("parts/engine.py").write_text("import torch.distributed\n" + ENGINE + "def (:\n")
    Path("train.py").write_text(SAVING)
    first = run("train.py", "parts")
    assert {(finding.path, finding.code) for finding in first} == {("parts/engine.py", "DDP002")}
    examined.clear()
    assert run("train.py", "parts") == first
    assert examined == []


def test_a_script_that_imports_a_folder_without_init_is_remembered(examined: list[str]) -> None:
    Path("parts").mkdir()
    Path("parts/engine.py").write_text(ENGINE)
    Path("train.py").write_text(
        SAVING.replace("from parts.engine import save", "import parts.engine").replace(
            "save(torch.nn", "parts.engine.save(torch.nn"
        )
    )
    first = run()
    assert [finding.path for finding in first] == ["parts/engine.py"]
    examined.clear()
    assert run() == first and examined == []


@pytest.mark.parametrize("name", ["parts/engine.py", "parts/engine/__init__.py"])
def test_a_module_that_appears_is_looked_at(examined: list[str], name: str) -> None:
    Path("train.py").write_text(SAVING)
    assert run() == []
    Path(name).parent.mkdir(parents=True)
    Path(name).write_text(ENGINE)
    examined.clear()
    run()
    assert "train.py" in examined


def test_a_module_that_changes_is_looked_at() -> None:
    Path("parts").mkdir()
    Path("train.py").write_text(SAVING)
    Path("parts/engine.py").write_text("def save(model, rank):\n    print(rank)\n    print(1)\n    print(2)\n")
    assert run() == []
    Path("parts/engine.py").write_text(ENGINE)
    assert [finding.code for finding in run()] == ["DDP502"]


def test_no_record_of_what_was_confirmed_takes_a_finding_away() -> None:
    Path("train.py").write_text(BUGGY)
    first = run()
    (path,) = records("confirmed")
    for wrong in ([], None, {}, 1, [[]], ["x"], [True, True], [None], "DDP101", [0]):
        rewrite(path, lambda _, wrong=wrong: wrong)
        assert run() == first, wrong
    rewrite(path, lambda known: [not sure for sure in known])
    (finding,) = run()
    assert (finding.code, finding.message, finding.severity) == (first[0].code, first[0].message, first[0].severity)


def test_a_record_that_tells_of_another_script_is_a_miss() -> None:
    Path("train.py").write_text(BUGGY)
    first = run()
    (path,) = records("proposals")
    for part in ("files", "program", "absent", "proposals", "problems"):
        for wrong in (None, 1, "x"):
            rewrite(path, lambda record, part=part, wrong=wrong: {**record, part: wrong})
            assert run() == first, (part, wrong)
    rewrite(path, lambda record: {**record, "files": {}, "program": [], "proposals": []})
    assert run() == first


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no such owners")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_record_that_others_may_write_is_a_miss(mode: int) -> None:
    Path("train.py").write_text(BUGGY)
    first = run()
    (path,) = records("proposals")
    rewrite(path, lambda record: {**record, "proposals": []})
    assert run() == []  # what this user writes is believed
    rewrite(path, lambda record: {**record, "proposals": []})
    path.chmod(mode)
    assert run() == first


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no such owners")
def test_a_record_that_somebody_else_owns_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").write_text(BUGGY)
    first = run()
    (path,) = records("proposals")
    rewrite(path, lambda record: {**record, "proposals": []})
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert run() == first


def test_an_edit_of_the_tool_in_a_checkout_is_another_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from validate_ddp.source import cache

    package = tmp_path / "checkout" / "checks" / "validate_ddp"
    (package / "source").mkdir(parents=True)
    (package / "rules").mkdir()
    (package / "rules" / "one.py").write_text("")
    monkeypatch.setattr(cache, "__file__", str(package / "source" / "cache.py"))
    assert cache._edited() == ""  # installed: its version tells
    (tmp_path / "checkout" / "pyproject.toml").write_text("")
    before = cache._edited()
    os.utime(package / "rules" / "one.py", ns=(1, 2**62))
    assert before and cache._edited() != before


def test_many_scripts_are_looked_at_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("parts").mkdir()
    Path("parts/engine.py").write_text(ENGINE)
    for number in range(12):
        Path(f"train{number}.py").write_text(BUGGY if number % 2 else SAVING)
    first = run(cache_dir=None)
    monkeypatch.setattr(scripts, "_BETWEEN_COLLECTIONS", 2)  # modules are forgotten, and read again
    monkeypatch.setattr(scripts, "_MOST_BLOCKS", 0)
    assert run(cache_dir=None) == first


def test_the_lines_of_a_file_are_told_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from validate_ddp.source import positions

    Path("train.py").write_text(
        BUGGY + "".join(f"if dist.get_rank() == 0:\n    dist.barrier({n})\n" for n in range(30))
    )
    told = []
    starts = positions.line_starts
    monkeypatch.setattr(positions, "line_starts", lambda text: told.append(text) or starts(text))
    assert len(run(cache_dir=None)) == 31
    assert len(told) <= 3
