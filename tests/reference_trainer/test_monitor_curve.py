"""The curve of a run's loss, read on from where it was."""

from __future__ import annotations

import re
from pathlib import Path

from reference_trainer.monitor.records import RankLog, log_path
from reference_trainer.monitor.server import HEIGHT, WIDTH, Curve


def logged(folder: Path, *losses: tuple[int, float]) -> None:
    log = RankLog(folder, 0)
    for step, loss in losses:
        log.write("interval", step, metrics={"loss": loss})
    log.close()


def drawn(curve: Curve) -> list[tuple[float, float]]:
    points = re.search('points="([^"]*)"', curve.svg())
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in points[1].split())] if points else []


def test_a_curve_goes_from_the_first_step_to_the_last_and_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    logged(tmp_path, (10, 4.0), (20, 2.0), (30, 3.0))
    curve = Curve(tmp_path)
    curve.read()
    assert drawn(curve) == [(0, 0), (WIDTH / 2, HEIGHT), (WIDTH, HEIGHT / 2)]
    assert "loss 4 to 2, steps 10 to 30; now 3" in curve.svg()


def test_it_reads_on_and_a_run_that_went_back_is_drawn_anew_from_there(tmp_path: Path) -> None:
    curve = Curve(tmp_path)
    curve.read()
    assert curve.svg() == ""
    logged(tmp_path, (10, 4.0), (20, 2.0), (30, float("nan")))
    curve.read()
    assert curve.points == [(10, 4.0), (20, 2.0)]
    with open(log_path(tmp_path, 0), "ab") as file:
        file.write(b'{"kind": "interval", "step": 40, "metr')
    curve.read()
    logged(tmp_path, (20, 1.0), (30, 0.5))  # half a line goes
    curve.read()
    assert curve.points == [(10, 4.0), (20, 1.0), (30, 0.5)]


def test_what_is_damaged_is_left_out_and_thousands_of_points_are_thinned(tmp_path: Path) -> None:
    logged(tmp_path, *((step, 1.0) for step in range(1, 5001)))
    with open(log_path(tmp_path, 0), "ab") as file:
        file.write(b'{"kind": "interval", "metrics": []}\nno JSON "interval"\n')
    curve = Curve(tmp_path)
    curve.read()
    assert len(curve.points) == 5000 and 2 < len(drawn(curve)) <= 2 * WIDTH and drawn(curve)[-1][0] == WIDTH
