"""The rule on the first gradient beside that of one process, over a comparison that is made by hand."""

from __future__ import annotations

from typing import Any


def compared(run: Any, **fields: Any) -> Any:
    """The run, with a comparison of its first gradient."""
    values = {
        "compared": True, "float64": True, "relative": 1e-7, "factor": 1.0, "beside": 1e-7, "world_size": 2,
        "worst": "w", "batch_norms": 0, "place": ["/project/train.py", 25, "train", False],
    }  # fmt: skip
    run.events.append({"event": "differential", **values, **fields})
    return run.judged()


def test_the_gradient_of_one_process_is_held(training: Any) -> None:
    assert compared(training).verdicts["DDP316"].word == "held"


def test_a_gradient_that_is_a_multiple_names_the_factor(training: Any) -> None:
    (finding,) = compared(training, relative=1.0, factor=2.0).findings
    assert (finding.code, finding.line, finding.severity) == ("DDP316", 25, "warning")
    assert "is 2 times that of one process" in finding.message


def test_a_gradient_that_differs_names_the_parameter(training: Any) -> None:
    (finding,) = compared(training, relative=0.3, factor=0.9, beside=0.28, worst="head.weight").findings
    assert "0.3 of its norm away" in finding.message and "`head.weight`" in finding.message


def test_batch_norms_of_each_rank_explain_a_difference(training: Any) -> None:
    (finding,) = compared(training, relative=0.3, beside=0.3, batch_norms=4).findings
    assert finding.severity == "info" and "4 BatchNorm modules" in finding.message


def test_what_could_not_be_compared_is_not_observed(training: Any) -> None:
    judged = compared(training, compared=False, why="the script draws random numbers while it trains")
    assert judged.verdicts["DDP316"].word == "not observed" and not judged.findings
