"""What scripts do by hand: norms of shards, squares that are added up, counts by which gradients are weighed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def rescaled(run: Any, *times: float, count: int = 0) -> None:
    for rank, value in enumerate(times):
        run.add(rank, "rescaled", count=count, times=value, ranks=[0, 1], site=run.site(30))


@pytest.mark.parametrize(
    ("times", "word"),
    [((1.0, 0.8), "violated"), ((0.8, 0.8), "held"), ((0.8, 0.0), "not observed"), ((0.8,), "not observed")],
)
def test_ranks_scale_their_shards_by_one_number(training: Any, times: tuple[float, ...], word: str) -> None:
    rescaled(training, 0.5, 0.5) if word == "violated" else None
    rescaled(training, *times, count=1)
    assert training.judged().verdicts["DDP317"].word == word


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        # gradients of parameters whose norms are 1, 6 on one rank, and 1, 7 on the other
        ((3.0, 4.0), (3.0, 5.0), "1 gradients that ranks 0, 1 hold alike"),
        ((3.0, 4.0), (3.0, 4.0), ""),  # replicas of a whole model
        ((3.0, 4.0), (2.0, 5.0), ""),  # shards of all of it
        ((3.0, 4.0), (3.0, 4.001), ""),
        ((0.0, 4.0), (0.0, 5.0), ""),
        ((3.0, 4.0), (3.0,), ""),
        ((3.0, None), (3.0, 5.0), "1 gradients"),
    ],
)
def test_squares_of_what_ranks_hold_alike_are_not_added_up_over_them(
    training: Any, one: tuple[float | None, ...], other: tuple[float | None, ...], told: str
) -> None:
    for rank, norms in enumerate((one, other)):
        weights = [1.0, 6.0 + rank][: len(norms)]
        training.add(rank, "squares", count=0, norms=list(norms), weights=weights, ranks=[0, 1], site=training.site(31))
    found = [each for each in training.judged().findings if each.code == "DDP317"]
    assert [(each.severity, each.line) for each in found] == ([("warning", 31)] if told else [])
    assert all(told in each.message for each in found)


@pytest.mark.parametrize("weights", [((1.0, 6.0), (1.0, 6.0)), ((1.0, 6.0), (2.0, 7.0))])
def test_replicas_have_other_gradients_and_parts_may_have_gradients_of_one_size(training: Any, weights: Any) -> None:
    for rank, norms in enumerate(([3.0, 4.0], [3.0, 5.0])):
        each = {"count": 0, "norms": norms, "weights": list(weights[rank]), "ranks": [0, 1]}
        training.add(rank, "squares", site=training.site(31), **each)
    assert training.word("DDP317") == "held"


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("shards", "DDP317"), ("parts", "DDP317"), ("counts", "DDP311")])
def test_what_a_script_does_by_hand_is_followed(name: str, code: str, tmp_path: Path) -> None:
    assert found(tmp_path, name, "wrong") == {code}
    assert found(tmp_path, name) == set()


@pytest.mark.runtime
@pytest.mark.slow
def test_what_is_dealt_out_is_no_shard_where_it_is_a_whole_layer_or_no_gradient(tmp_path: Path) -> None:
    assert found(tmp_path, "layers") == set()


def found(folder: Path, *words: str) -> set[str]:
    """The codes of what a rehearsal of the script shows."""
    script, report = Path(__file__).with_name("by_hand_script.py"), folder / "report.json"
    options = ["--no-partition", "--no-live", "--nproc-per-node", "2", "--report", str(report)]
    command = [sys.executable, "-m", "validate_ddp", "run", *options, str(script), *words]
    subprocess.run(command, cwd=folder, capture_output=True, timeout=200)
    document = json.loads(report.read_text())
    assert document["faults"] == []
    return {each["code"] for each in document["findings"] if each["severity"] != "info"}
