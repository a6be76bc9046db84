"""The curves of a run: the values that were logged, of a long log some, of a resumed one the last."""

from __future__ import annotations

from itertools import pairwise

from reference_trainer.records import Curves, RankLog, log_path

from .monitored import logged


def test_curves_are_the_values_that_were_logged(tmp_path):
    found = Curves(logged(tmp_path, [3.0, 2.0])).read()
    assert found["intervals"]["step"] == [10, 20] and found["intervals"]["metrics"]["loss"] == [3.0, 2.0]
    assert found["evaluations"]["validation"] == {
        "step": [20], "time": found["evaluations"]["validation"]["time"], "lr": [None], "samples_per_second": [None],
        "metrics": {"loss": [0.25], "accuracy": [0.5]},
    }  # fmt: skip


def test_a_long_log_is_thinned_evenly_and_keeps_its_ends(tmp_path):
    found = Curves(logged(tmp_path, [float(each) for each in range(1001)])).read(most=100)["intervals"]["step"]
    assert (found[0], found[-1]) == (10, 10_010) and len(found) <= 102
    assert len({after - before for before, after in pairwise(found[:-1])}) == 1


def test_a_look_reads_what_is_new_and_steps_that_come_again_replace_those_before(tmp_path, monkeypatch):
    found, read = Curves(logged(tmp_path, [3.0, 2.0, 1.0])), []
    assert found.read()["intervals"]["step"] == [10, 20, 30]
    new = Curves._new
    monkeypatch.setattr(Curves, "_new", lambda self: read.append(new(self)) or read[-1])
    log = RankLog(tmp_path, 0)  # of a run that goes on from a checkpoint
    log.write("interval", 20, metrics={"loss": 9.0}, lr=0.1, samples_per_second=1.0)
    with open(log.path, "a") as file:
        file.write('{"kind": "interval", "st')
    intervals = found.read()["intervals"]
    assert (intervals["step"], intervals["metrics"]["loss"]) == ([10, 20], [3.0, 9.0])
    found.read()
    assert [each.count(b"\n") for each in read] == [1, 0]


def test_another_log_in_its_place_is_read_from_its_beginning(tmp_path):
    found = Curves(logged(tmp_path, [3.0, 2.0, 1.0]))
    found.read()
    log_path(tmp_path, 0).unlink()
    logged(tmp_path, [5.0])
    assert found.read()["intervals"]["metrics"]["loss"] == [5.0]


def test_a_log_that_is_not_there_has_no_curves(tmp_path):
    assert Curves(tmp_path / "nothing").read()["intervals"]["step"] == []
