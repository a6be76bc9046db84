"""The curves of a run: the values that were logged, of a long log some, of a resumed one the last."""

from __future__ import annotations

from itertools import pairwise

from reference_trainer.records import RankLog, curves, log_path

from .monitored import logged


def test_curves_are_the_values_that_were_logged(tmp_path):
    found = curves(logged(tmp_path, [3.0, 2.0]))
    assert found["intervals"]["step"] == [10, 20] and found["intervals"]["metrics"]["loss"] == [3.0, 2.0]
    assert found["evaluations"]["validation"] == {
        "step": [20], "time": found["evaluations"]["validation"]["time"], "lr": [None], "samples_per_second": [None],
        "metrics": {"loss": [0.25], "accuracy": [0.5]},
    }  # fmt: skip


def test_a_long_log_is_thinned_evenly_and_keeps_its_ends(tmp_path):
    found = curves(logged(tmp_path, [float(each) for each in range(1001)]), most=100)["intervals"]["step"]
    assert (found[0], found[-1]) == (10, 10_010) and len(found) <= 102
    assert len({after - before for before, after in pairwise(found[:-1])}) == 1


def test_steps_that_come_again_after_a_resume_replace_those_before(tmp_path):
    logged(tmp_path, [3.0, 2.0, 1.0])
    log = RankLog(tmp_path, 0)
    log.write("interval", 20, metrics={"loss": 9.0}, lr=0.1, samples_per_second=1.0)
    log.close()
    found = curves(tmp_path)["intervals"]
    assert (found["step"], found["metrics"]["loss"]) == ([10, 20], [3.0, 9.0])


def test_half_a_line_and_a_log_that_is_not_there_are_left_out(tmp_path):
    logged(tmp_path, [3.0])
    with open(log_path(tmp_path, 0), "a") as file:
        file.write('{"kind": "interval", "st')
    assert curves(tmp_path)["intervals"]["step"] == [10]
    assert curves(tmp_path / "nothing")["intervals"]["step"] == []
