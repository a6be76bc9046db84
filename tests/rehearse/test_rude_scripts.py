"""Scripts that observers do not expect: their run is what it is without a rehearsal, and each fault of ours is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from process_marks import alive_after

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("rude_script.py")


class Twice(NamedTuple):
    """The results of the script alone and rehearsed, the rehearsal, and the daemon's process id in it."""

    alone: dict[str, Any]
    rehearsed: dict[str, Any]
    run: Any
    daemon: int


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Twice:
    from validate_ddp.testing import rehearse

    folders = [tmp_path_factory.mktemp(name) for name in ("alone", "rehearsed")]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    subprocess.run([sys.executable, str(SCRIPT)], cwd=folders[0], env={**os.environ, **alone}, check=True, timeout=60)
    os.kill(int((folders[0] / "elsewhere" / "daemon").read_text()), 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folders[1])
        run = rehearse(SCRIPT, nproc=1, timeout=60)
    results = [json.loads((folder / "elsewhere" / "result.json").read_text()) for folder in folders]
    return Twice(results[0], results[1], run, int((folders[1] / "elsewhere" / "daemon").read_text()))


def test_what_the_script_computes_and_writes_is_unchanged(twice: Twice) -> None:
    assert twice.run.outcome == "finished", str(twice.run)
    assert twice.rehearsed == twice.alone
    assert len(twice.alone["losses"]) == 2 and twice.alone["calls"].count("backward") == 2


def test_a_folder_that_changes_does_not_change_the_paths_of_findings(twice: Twice) -> None:
    assert twice.run.world_size == 1 and twice.run.optimizer_steps == 2
    assert all(os.path.basename(each.path) == SCRIPT.name for each in twice.run.findings)


def test_standard_output_stays_where_the_script_sends_it(twice: Twice) -> None:
    assert twice.rehearsed["printed"] == "to a file of its own\n"


def test_a_fork_is_the_scripts_own(twice: Twice) -> None:
    assert twice.rehearsed["child"] == 3


def test_functions_that_the_script_replaces_stay_replaced(twice: Twice) -> None:
    assert "save last.pt" in twice.rehearsed["calls"]


def test_an_observer_that_raises_is_an_event_and_nothing_else(twice: Twice) -> None:
    assert [each for each in twice.run.faults if "nobody is to look at this batch" in each]
    assert "fault of validate-ddp itself" in str(twice.run)


def test_a_daemon_does_not_outlive_the_rehearsal(twice: Twice) -> None:
    assert not alive_after(5, twice.daemon)
