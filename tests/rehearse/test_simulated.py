"""A few ranks of a large world, each alone: what only many ranks show, and that real ranks call the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from validate_ddp.record.run import Run
from validate_ddp.rehearse import log as logs
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("many_script.py")
RANKS = "0,7,8,511,1023"
PAIRS = {
    "uneven_last_batches": {"DDP408"},
    "drop_last": {"DDP607"},
    "empty_shards": {"DDP607"},
    "fewer_batches_than_accumulated": {"DDP607"},
    "name_by_local_rank": {"DDP502", "DDP503"},
    "saved_once_a_node": {"DDP503"},
    "long_warmup": {"DDP602"},
    "schedule_of_one_process": {"DDP602"},
    "first_node_only": {"DDP401"},
    "groups_made_by_members": {"DDP407"},
    "root_of_each_node": {"DDP407"},
    "ranks_without_data_leave": {"DDP401"},
    "validation_of_unequal_shares": {"DDP401"},
    "predictions_of_unequal_length": {"DDP407"},
    "claimed_of_one_node": {"DDP604"},
    "a_collective_of_the_last_node": {"DDP401"},
    "fewer_chunks_than_ranks": set[str](),
}
"""By name, what is shown of the buggy half; the last one fails on late ranks."""


def simulated(folder: Path, *words: str) -> dict[str, Any]:
    """The report of a run of the script as if on 1,024 ranks."""
    report = folder / "report.json"
    command = ["run", "--no-static", "--as-world", "1024", "--as-ranks", RANKS, "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "validate_ddp", *command, str(SCRIPT), *words],
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert report.exists(), done.stderr
    document: dict[str, Any] = json.loads(report.read_text())
    assert document["faults"] == []
    document["code"] = done.returncode
    return document


@pytest.mark.parametrize("name", PAIRS)
def test_what_only_many_ranks_show_is_found(name: str, tmp_path: Path) -> None:
    buggy = simulated(tmp_path, name, "buggy")
    assert {finding["code"] for finding in buggy["findings"]} == PAIRS[name]
    assert (buggy["code"] == 3) is (name == "fewer_chunks_than_ranks")
    fixed = simulated(tmp_path, name, "fixed")
    assert (fixed["code"], fixed["findings"]) == (0, [])


def called(folder: Path, script: Path, *words: str) -> list[list[tuple[object, ...]]]:
    """What each rank calls of its groups, in order, with what ranks must agree on."""
    log = folder / "log.jsonl"
    command = ["run", "--no-static", "--log", str(log), *words, str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "validate_ddp", *command], cwd=folder, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    run = Run(logs.read(str(log)))
    found = []
    for rank in run.ranks:
        calls = [call for call in run.of(rank, protocol.GroupCall) if call.sequence]
        given = ("dtype", "shape", "reduce", "root", "asynchronous")
        rows = [tuple(str(getattr(call, name, None)) for name in given) for call in calls]
        found.append([(call.called, list(call.ranks), call.meets, call.site.lines, *row)
                      for call, row in zip(calls, rows, strict=True)])  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("script", "size"),
    [
        ("b05_local_fallback", 2),
        ("b17_rank_zeros_loss", 2),
        ("ddp304_accumulation_without_no_sync", 2),
        ("ddp302_detached_gather", 4),
        ("b20_steps_of_one_process", 4),
    ],
)
def test_ranks_that_are_run_alone_call_what_real_ranks_call(script: str, size: int, tmp_path: Path) -> None:
    fixed = Path(__file__).resolve().parents[2] / "fixtures" / script / "fixed.py"
    real = called(tmp_path, fixed, "--nproc-per-node", str(size))
    ranks = ",".join(map(str, range(size)))
    assert called(tmp_path, fixed, "--as-world", str(size), "--as-ranks", ranks) == real
    assert len(real) == size and all(len(calls) > 5 for calls in real)


def test_what_a_call_answered_by_assumption_is_no_error(tmp_path: Path) -> None:
    document = simulated(tmp_path, "decided_by_an_answer", "fixed")
    assert (document["code"], {finding["severity"] for finding in document["findings"]}) == (0, {"info"})
    assert document["facts"]["at_size"]["decisions"] == ["many_script.py:156"]


def test_the_table_has_a_column_for_each_size(tmp_path: Path) -> None:
    command = ["run", "--no-static", "--as-world", "16,1024", "--as-ranks", "0,15", str(SCRIPT), "drop_last", "buggy"]
    done = subprocess.run(
        [sys.executable, "-m", "validate_ddp", *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    rows = {row[:30].strip(): row[30:].split() for row in done.stdout.splitlines() if row}
    assert done.returncode == 1 and rows["findings"] == ["0", "1"], done.stdout + done.stderr
    assert "error DDP607 at" in done.stdout and done.stdout.rstrip().endswith("on 1,024 ranks")


RESUMED = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
if not os.path.exists("last.pt"):
    dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    torch.save({}, "last.pt")
dist.barrier()
assert os.path.exists("last.pt")
dist.destroy_process_group()
"""


def test_what_rank_zero_saves_is_there_for_others_from_where_they_have_met_it(tmp_path: Path) -> None:
    (tmp_path / "resumed.py").write_text(RESUMED)
    command = ["run", "--no-static", "--as-world", "64", "--as-ranks", "0,63", "resumed.py"]
    done = subprocess.run(
        [sys.executable, "-m", "validate_ddp", *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "no findings" in done.stdout, done.stdout + done.stderr
