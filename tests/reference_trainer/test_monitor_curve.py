"""The curve of a run's loss."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reference_trainer.monitor import server
from reference_trainer.monitor.records import RankLog, log_path
from reference_trainer.monitor.server import HEIGHT, WIDTH, curve, losses


def logged(folder: Path, *losses: tuple[int, float]) -> None:
    log = RankLog(folder, 0)
    for step, loss in losses:
        log.write("interval", step, metrics={"loss": loss})
    log.close()


def points(folder: Path) -> list[tuple[int, float]]:
    path = log_path(folder, 0)
    return losses(path, path.stat().st_size)


def drawn(folder: Path) -> list[tuple[float, float]]:
    found = re.search('points="([^"]*)"', curve(folder))
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found[1].split())] if found else []


def test_a_curve_goes_from_the_first_step_to_the_last_and_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    logged(tmp_path, (10, 4.0), (20, 2.0), (30, 3.0))
    assert drawn(tmp_path) == [(0, 0), (WIDTH / 2, HEIGHT), (WIDTH, HEIGHT / 2)]
    assert "loss 4 to 2, steps 10 to 30; now 3" in curve(tmp_path)


def test_it_grows_with_the_log_and_a_run_that_went_back_is_drawn_anew_from_there(tmp_path: Path) -> None:
    assert curve(tmp_path) == ""
    logged(tmp_path, (10, 4.0), (20, 2.0), (30, float("nan")))
    assert points(tmp_path) == [(10, 4.0), (20, 2.0)]
    with open(log_path(tmp_path, 0), "ab") as file:
        file.write(b'{"kind": "interval", "step": 40, "metr')
    assert points(tmp_path) == [(10, 4.0), (20, 2.0)]
    logged(tmp_path, (20, 1.0), (30, 0.5))  # half a line goes
    assert points(tmp_path) == [(10, 4.0), (20, 1.0), (30, 0.5)]


def test_a_log_that_has_not_grown_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged(tmp_path, (10, 4.0), (20, 2.0))
    seen = curve(tmp_path)
    monkeypatch.setattr(server, "read_log", None)
    assert curve(tmp_path) == seen != ""


def test_what_is_damaged_is_left_out_and_thousands_of_points_are_thinned(tmp_path: Path) -> None:
    logged(tmp_path, *((step, 1.0) for step in range(1, 5001)))
    with open(log_path(tmp_path, 0), "ab") as file:
        file.write(b'{"kind": "interval", "metrics": []}\nno JSON "interval"\n{"kind": "interval", "step": "x"}\n')
    assert len(points(tmp_path)) == 5000
    assert 2 < len(drawn(tmp_path)) <= 2 * WIDTH and drawn(tmp_path)[-1][0] == WIDTH
