"""What the cache keeps of a check: a second run looks at nothing anew, says the same, and believes only its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from validate_ddp import scripts
from validate_ddp.source.cache import _check

BUGGY = "import torch.distributed as dist\n\ndist.init_process_group('gloo')\n"
SAVING = (
    "import torch\nimport torch.distributed as dist\nfrom parts.engine import save\n\ndist.init_process_group('gloo')\n"
    "save(torch.nn.Linear(1, 1), dist.get_rank())\ndist.destroy_process_group()\n"
)
ENGINE = "import torch\n\n\ndef save(model, rank):\n    torch.save(model.state_dict(), 'model.pt')\n"


@pytest.fixture
def lint(tmp_path: Path, lint: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Checks this folder, and remembers beside it."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    lint.settings |= {"cache_dir": str(tmp_path / "cache"), "root": ""}
    return lint


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


def records(kind: str) -> list[Path]:
    return sorted(path for path in Path("../cache").rglob("*.json") if path.parent.parent.name == kind)


def rewrite(path: Path, change: Any) -> None:
    """Put other content into a record, with the check that belongs to it: it needs no secret."""
    value = change(json.loads(path.read_bytes().partition(b"\n")[2]))
    payload = json.dumps(value).encode()
    path.write_bytes(_check(path.parent.parent.name, path.stem, payload) + b"\n" + payload)


def test_scripts_beside_a_broken_file_are_remembered_and_it_is_told_again(lint: Any, examined: list[str]) -> None:
    lint.write(train=BUGGY)
    lint.write(broken="import torch.distributed\ndef (:\n")
    lint.write(uses_broken="from broken import f\n" + BUGGY + "f()\n")
    Path("data.py").write_bytes(b"torch.distributed \xff")
    first = lint.run()
    assert {finding.code for finding in first} == {"DDP001", "DDP002", "DDP101"}
    examined.clear()
    assert lint.run() == first
    assert "train.py" not in examined and "uses_broken.py" not in examined


def test_a_problem_that_only_a_remembered_script_meets_is_told_again(lint: Any, examined: list[str]) -> None:
    lint.write({"parts/engine.py": "import torch.distributed\n" + ENGINE + "def (:\n"})
    lint.write(train=SAVING)
    first = lint.run("train.py", "parts")
    assert {(finding.path, finding.code) for finding in first} == {("parts/engine.py", "DDP002")}
    examined.clear()
    assert lint.run("train.py", "parts") == first
    assert examined == []


def test_a_script_that_imports_a_folder_without_init_is_remembered(lint: Any, examined: list[str]) -> None:
    lint.write({"parts/engine.py": ENGINE})
    Path("train.py").write_text(
        SAVING.replace("from parts.engine import save", "import parts.engine").replace(
            "save(torch.nn", "parts.engine.save(torch.nn"
        )
    )
    first = lint.run()
    assert [finding.path for finding in first] == ["parts/engine.py"]
    examined.clear()
    assert lint.run() == first and examined == []


@pytest.mark.parametrize("name", ["parts/engine.py", "parts/engine/__init__.py"])
def test_a_module_that_appears_is_looked_at(lint: Any, examined: list[str], name: str) -> None:
    lint.write(train=SAVING)
    assert lint.run() == []
    lint.write({name: ENGINE})
    examined.clear()
    assert lint.run().codes == {"DDP502"} and "train.py" in examined


def test_a_script_that_changes_is_looked_at(lint: Any) -> None:
    for end, codes in (("", {"DDP101"}), ("dist.destroy_process_group()\n", set())):
        lint.write(train=BUGGY + end)
        assert lint.run().codes == codes


def test_a_module_that_changes_is_looked_at(lint: Any) -> None:
    lint.write(train=SAVING)
    lint.write({"parts/engine.py": "def save(model, rank):\n    print(rank)\n    print(1)\n    print(2)\n"})
    assert lint.run() == []
    lint.write({"parts/engine.py": ENGINE})
    assert [finding.code for finding in lint.run()] == ["DDP502"]


def test_no_record_of_what_was_confirmed_takes_a_finding_away(lint: Any) -> None:
    lint.write(train=BUGGY)
    first = lint.run()
    (path,) = records("confirmed")
    for wrong in ([], None, {}, 1, [[]], ["x"], [True, True], [None], "DDP101", [0]):
        rewrite(path, lambda _, wrong=wrong: wrong)
        assert lint.run() == first, wrong
    rewrite(path, lambda known: [not sure for sure in known])
    (finding,) = lint.run()
    assert (finding.code, finding.message, finding.severity) == (first[0].code, first[0].message, first[0].severity)


def test_a_record_that_tells_of_another_script_is_a_miss(lint: Any) -> None:
    lint.write(train=BUGGY)
    first = lint.run()
    (path,) = records("proposals")
    for part in ("files", "program", "absent", "proposals", "problems"):
        for wrong in (None, 1, "x"):
            rewrite(path, lambda record, part=part, wrong=wrong: {**record, part: wrong})
            assert lint.run() == first, (part, wrong)
    rewrite(path, lambda record: {**record, "files": {}, "program": [], "proposals": []})
    assert lint.run() == first


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no such owners")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_record_that_others_may_write_is_a_miss(lint: Any, mode: int) -> None:
    lint.write(train=BUGGY)
    first = lint.run()
    (path,) = records("proposals")
    rewrite(path, lambda record: {**record, "proposals": []})
    assert lint.run() == []  # what this user writes is believed
    rewrite(path, lambda record: {**record, "proposals": []})
    path.chmod(mode)
    assert lint.run() == first


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no such owners")
def test_a_record_that_somebody_else_owns_is_a_miss(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lint.write(train=BUGGY)
    first = lint.run()
    (path,) = records("proposals")
    rewrite(path, lambda record: {**record, "proposals": []})
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert lint.run() == first


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


def test_many_scripts_are_looked_at_as_few_are(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lint.write({"parts/engine.py": ENGINE})
    lint.write(**{f"train{number}": BUGGY if number % 2 else SAVING for number in range(12)})
    first = lint.run(cache_dir=None)
    monkeypatch.setattr(scripts, "_BETWEEN_COLLECTIONS", 2)  # modules are forgotten, and read again
    monkeypatch.setattr(scripts, "_MOST_BLOCKS", 0)
    assert lint.run(cache_dir=None) == first


def test_the_lines_of_a_file_are_told_apart_once(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from validate_ddp.source import positions

    Path("train.py").write_text(
        BUGGY + "".join(f"if dist.get_rank() == 0:\n    dist.barrier()  # {n}\n" for n in range(30))
    )
    told = []
    starts = positions.line_starts
    monkeypatch.setattr(positions, "line_starts", lambda text: told.append(text) or starts(text))
    assert len(lint.run(cache_dir=None)) == 31
    assert len(told) <= 3
