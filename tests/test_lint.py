"""The check end to end: what becomes of targets, entries, suppressions and faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from process_marks import alive_after

BUGGY = "import torch.distributed as dist\n\ndist.init_process_group('gloo')\n"
ENGINE = "import torch\n\n\ndef save(model, rank):\n    torch.save(model.state_dict(), 'model.pt')\n"
TRAIN = (
    "import torch\nimport torch.distributed as dist\nfrom engine import save\n\ndist.init_process_group('gloo')\n"
    "save(torch.nn.Linear(1, 1), dist.get_rank())\ndist.destroy_process_group()\n"
)


def test_a_finding_in_an_imported_module_names_its_entry(lint: Any) -> None:
    lint.write(train=TRAIN, engine=ENGINE)
    (finding,) = lint.run("train.py")
    assert (finding.code, finding.path, finding.line, finding.entry) == ("DDP502", "engine.py", 5, "train.py")
    assert [place.path for place in finding.evidence] == ["train.py"]


def test_one_finding_for_each_place_however_many_entries_reach_it(lint: Any) -> None:
    lint.write(train=TRAIN, train_large=TRAIN, engine=ENGINE)
    assert lint.run(".").places == [("DDP502", "engine.py")]


def test_a_library_that_nobody_calls_is_not_accused(lint: Any) -> None:
    lint.write(engine=ENGINE + "# torch.distributed\n")
    assert lint.run(".") == []


def test_a_script_is_found_in_a_src_layout_and_through_a_package(lint: Any) -> None:
    package = {"__init__.py": "from .engine import save as write_model\n", "engine.py": ENGINE}
    lint.write({f"src/project/{name}": text for name, text in package.items()})
    lint.write({"tools/train.py": TRAIN.replace("from engine import save", "from project import write_model as save")})
    assert [finding.path for finding in lint.run("tools/train.py")] == ["src/project/engine.py"]


def test_standard_input_is_checked_under_its_name(lint: Any) -> None:
    assert lint.run("-", stdin=BUGGY.encode(), stdin_filename="x/train.py").places == [("DDP101", "x/train.py")]
    assert lint.run("-", stdin=b"def (:\n").codes == {"DDP002"}


def test_a_notebook_is_checked_by_its_cells(lint: Any) -> None:
    imports = ["%matplotlib inline\n", "import torch.distributed as dist"]
    work = ["def work(rank):\n", "    dist.init_process_group('gloo')"]
    spawn = "from torch import multiprocessing as mp\nmp.spawn(work, nprocs=2)"
    lint.write({"train.ipynb": lint.notebook(imports, work, spawn, text="# training")})
    (finding,) = lint.run("train.ipynb")
    assert (finding.code, finding.line) == ("DDP101", 2)
    assert finding.cell is not None


@pytest.mark.parametrize(
    "line",
    [
        "dist.init_process_group('gloo')  # noqa: DDP101",
        "dist.init_process_group('gloo')  # validate-ddp: ignore[missing-destroy-process-group]",
        "# validate-ddp: ignore[DDP101] one process\ndist.init_process_group('gloo')",
        "dist.init_process_group(\n    'gloo',\n)  # noqa: DDP101",
        "# validate-ddp: off[DDP101]\ndist.init_process_group('gloo')\n# validate-ddp: on",
        "# validate-ddp: ignore-file\ndist.init_process_group('gloo')",
    ],
)
def test_a_suppression_silences_its_finding(lint: Any, line: str) -> None:
    lint.write(train="import torch.distributed as dist\n\n" + line + "\n")
    assert lint.run("train.py") == []


def test_an_idle_suppression_is_reported(lint: Any) -> None:
    lint.write(train=BUGGY + "dist.destroy_process_group()  # noqa: DDP101\n")
    assert [(finding.code, finding.line) for finding in lint.run("train.py")] == [("DDP003", 4)]


def test_rules_are_selected_and_ignored_by_file(lint: Any) -> None:
    lint.write(train=TRAIN, engine=ENGINE)
    assert lint.run("train.py", select=("DDP1",)) == []
    assert lint.run("train.py", ignore=("save-on-every-rank",)) == []
    assert lint.run("train.py", per_file_ignores=(("engine.py", ("DDP502",)),), root=os.getcwd()) == []
    assert len(lint.run("train.py", select=("DDP502",))) == 1


def test_a_fault_in_one_file_leaves_the_others_checked(lint: Any) -> None:
    lint.write(train=BUGGY, broken="import torch.distributed\ndef (:\n")
    Path("folder.py").mkdir()
    os.symlink(".", "loop")
    found = lint.run("train.py", "broken.py", "missing.py", "folder.py", ".")
    assert set(found.places) == {
        ("DDP101", "train.py"),
        ("DDP002", "broken.py"),
        ("DDP001", "missing.py"),
    }


def test_a_rule_that_fails_is_told_and_costs_only_its_script(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from validate_ddp import scripts
    from validate_ddp.catalogue import Stub, load

    class Failing:
        @staticmethod
        def check(program: object) -> object:
            if "broken" in program.entry:  # type: ignore[attr-defined]
                raise KeyError("x")
            return load(original).check(program)

    original = next(stub for stub in scripts.every() if stub.code == "DDP101")

    def failing(stub: Stub) -> object:
        return Failing if stub.code == "DDP101" else load(stub)

    monkeypatch.setattr(scripts, "load", failing)
    lint.write(train=BUGGY, broken=BUGGY)
    with pytest.raises(KeyError, match="x") as raised:
        lint.run("broken.py")  # in the project's own tests
    assert raised.traceback[-1].name == "check"
    monkeypatch.setattr(scripts, "own_fault", lint.own_fault)
    found = lint.run("train.py", "broken.py")
    assert set(found.places) == {("DDP101", "train.py"), ("DDP001", "broken.py")}
    assert "please report" in found.of("DDP001")[0].message


def test_many_scripts_in_processes_give_what_one_process_gives(lint: Any) -> None:
    lint.write(engine=ENGINE, **{f"train{number}": BUGGY if number % 2 else TRAIN for number in range(60)})
    assert lint.run(".", jobs=2) == lint.run(".", jobs=1)
    assert len(lint.run(".", jobs=2)) == 31


KILLED = """
import multiprocessing, os, sys, time
multiprocessing.set_start_method("fork")
from validate_ddp import scripts
from validate_ddp.cli import main

def examined(*arguments):
    open(f"pid-{os.getpid()}", "w").close()
    time.sleep(1000)

scripts._examined = examined
main(["--no-cache", "--jobs", "3", "."])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_check_that_is_killed_leaves_none_of_its_processes(lint: Any, number: signal.Signals) -> None:
    lint.write(**{f"train{each}": BUGGY for each in range(60)})
    with subprocess.Popen([sys.executable, "-c", KILLED]) as process:
        deadline = time.monotonic() + 30
        while len(list(Path().glob("pid-*"))) < 3:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
    pids = [path.name.removeprefix("pid-") for path in Path().glob("pid-*")]
    assert not alive_after(deadline - time.monotonic(), *pids)
