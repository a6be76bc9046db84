"""The plan of a large world: least times over links, what of a run's events becomes rows, and the page of sizes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from validate_ddp.console import UsageError
from validate_ddp.rehearse.at_size import in_words
from validate_ddp.rehearse.child.validate_ddp_rehearsed.simulated import files
from validate_ddp.rehearse.links import Links, least_seconds, shares
from validate_ddp.rehearse.options import read
from validate_ddp.rehearse.page.sizes import as_html, bars
from validate_ddp.rehearse.simulated import hide
from validate_ddp.rehearse.sizes import as_table

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")


@given(op=st.sampled_from(OPS), nodes=st.integers(1, 64), members=st.integers(1, 8))
def test_a_rank_moves_no_more_than_a_ring_would_have_it_move(op: str, nodes: int, members: int) -> None:
    ranks = nodes * members
    within, across = shares(op, ranks, nodes)
    ring = (2 if op == "all_reduce" else 1) * ((ranks - 1) / ranks if op not in ("broadcast", "reduce") else ranks > 1)
    assert 0 <= max(within, across) <= ring + 1e-12
    assert (across > 0) is (nodes > 1) and (within > 0) is (members > 1)
    if nodes == 1:
        assert within == pytest.approx(ring)  # of one node a ring is the best there is
    if members == 1:
        assert across == pytest.approx(ring)


def test_the_slower_of_both_links_counts_and_what_is_on_it_adds_up() -> None:
    calls = [("all_reduce", 8 * 10**9, 16, 2), ("all_gather", 4 * 10**9, 8, 1)]
    # Within a node 2 * 7/8 * 8 GB and 7/8 * 4 GB, across two nodes 2 * 1/2 * 8 GB over the links of eight ranks.
    assert least_seconds(calls, Links(intra=100.0, inter=100.0)) == pytest.approx((14 + 3.5) / 100)
    assert least_seconds(calls, Links(intra=100.0, inter=1.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("said", ["intra=450", "intra=450,inter=0", "intra=fast,inter=1", "intra=1,inter=2,other=3"])
def test_links_that_say_too_little_are_refused_in_one_line(said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match="intra=GB/s,inter=GB/s"):
        read(["--as-world", "64", "--link", said, str(tmp_path / "train.py")])


@pytest.mark.parametrize(("count", "words"), [(0, "0 bytes"), (1536, "1.5 KiB"), (200 << 20, "200 MiB")])
def test_bytes_are_said_in_the_unit_that_fits(count: int, words: str) -> None:
    assert in_words(count) == words


def planned(record: Any, nodes: int) -> Any:
    """Two steps of two ranks of a world of eight a node."""
    made = record(2, ranks=[0, 1], link=[["intra", 100], ["inter", 10]])
    for event in made.events:
        if event["event"] == "group":
            event["world_size"] = 8 * nodes
    for step in (1, 2, 3):
        made.every("moved", op="all_reduce", bytes=8000, group="0", size=8 * nodes, nodes=nodes)
        made.every("moved", op="all_gather", bytes=64, group="1", size=2)
        held = {"parameters": 4096, "buffers": 0, "gradients": 4096, "buckets": 0, "state": 8192}
        made.every("memory", optimizer=0, activations=100 * step, **held)
        made.every("step", optimizer=0, count=step, site=made.site(30), grads=None, params=None, rates=[0.1])
    return made


def test_the_facts_tell_what_a_step_moves_and_what_a_rank_holds(record: Any) -> None:
    told = planned(record, 2).judged().facts["at_size"]
    assert told is not None
    assert told["traffic"] == [
        {"op": "all_gather", "ranks": 2, "nodes": 1, "calls": 1, "bytes": 64},
        {"op": "all_reduce", "ranks": 16, "nodes": 2, "calls": 1, "bytes": 8000},
    ]
    assert told["seconds"] == pytest.approx((2 * 7 / 8 * 8000 + 1 / 2 * 64) / 100e9)
    assert told["memory"] == {
        "parameters": 4096, "gradients": 4096, "buckets": 0, "state": 8192, "buffers": 0, "activations": 300,
    }  # fmt: skip


def test_several_sizes_have_a_column_and_a_bar_each(record: Any) -> None:
    judged = [planned(record, nodes).judged() for nodes in (1, 2)]
    rows = {row.split("  ")[0]: row.split("  ")[1:] for row in as_table(judged).splitlines()}
    assert [cell.strip() for cell in rows["memory of a rank: optimizer state"] if cell] == ["8.0 KiB", "8.0 KiB"]
    page = as_html(judged)
    assert page.count("<svg") == 3 and "optimizer state: 8.0 KiB" in page and "<script" not in page
    assert re.findall(r"<title>all_reduce (\w+)", page) == ["within", "across"]  # on one node, on two


def test_bars_of_nothing_are_not_drawn() -> None:
    assert bars("x", ["8"], [{}], str) == "" and bars("x", ["8"], [{"a": 0.0}], str) == ""


def test_what_a_rank_has_made_is_taken_away_and_put_back_beside_what_the_next_has_made(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (theirs / "saves").mkdir(parents=True)
    ours.mkdir()
    (theirs / "saves" / "first.pt").write_text("of rank 0")
    (theirs / "saves" / "log").write_text("of rank 0")
    made = [[str(theirs / "saves"), 3], [str(theirs / "saves" / "first.pt"), 3], [str(theirs / "gone"), 1]]
    (ours / files.MADE).write_text("".join(json.dumps(row) + "\n" for row in made))
    hidden = hide(str(ours), str(ours))
    assert [(path, met) for _, path, met in hidden] == [(str(theirs / "saves"), 3)] and not any(theirs.iterdir())
    assert [tuple(row) for row in json.loads((ours / files.HIDDEN).read_text())] == hidden
    (theirs / "saves").mkdir()
    (theirs / "saves" / "log").write_text("of rank 1")
    for place, path, _ in hidden * 2:
        files.put_back(place, path)
    assert {each.name: each.read_text() for each in (theirs / "saves").iterdir()} == {
        "first.pt": "of rank 0", "log": "of rank 1",
    }  # fmt: skip


SCRIPT = Path(__file__).with_name("plan_script.py")


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "sharded"])
def test_bytes_and_memory_are_those_of_real_ranks(kind: str, tmp_path: Path) -> None:
    """Bytes as PyTorch's flight recorder has them, memory as malloc has it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "MEASURED": str(tmp_path), "TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(SCRIPT), kind], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "validate_ddp", "run", "--no-static", "--as-world", "2", "--as-ranks", "0,1"]
    done = subprocess.run(
        [*command, "--log", "log.jsonl", "--report", str(report), str(SCRIPT), kind],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    memory = json.loads(report.read_text())["facts"]["at_size"]["memory"]
    counted = sum(count for name, count in memory.items() if name != "activations")
    moved: dict[int, dict[str, int]] = {}
    for line in (tmp_path / "log.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "moved":
            # gloo reduces whole and keeps a part.
            kind_of = event["op"].replace("reduce_scatter", "all_reduce")
            sums = moved.setdefault(event["rank_of"], {})
            sums[kind_of] = sums.get(kind_of, 0) + event["bytes"]
    for rank in (0, 1):
        real = json.loads((tmp_path / f"{rank}.json").read_text())
        assert moved[rank] == real["moved"]
        assert counted == pytest.approx(real["held"], rel=0.02)
