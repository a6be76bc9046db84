"""An EMA and its model on two sides of the wrapping, over recorded events: DDP310. An attribute that the
wrapper lacks: DDP324."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.rehearse.child.validate_ddp_rehearsed.observers.saves import _twins

WRAPPED = ["module.a", "module.b", "module.mean"]
TWINS = [["ema", False, "model", True, 4]]


def save(run: Any, twins: Any, wrapped: int = 4) -> None:
    """A checkpoint of rank zero, at line 40."""
    run.wrapper()
    run.add(
        0, "save", path="/project/last.pt", tensors=8, wrapped=wrapped, twins=twins, site=run.site(40)
    )  # fmt: skip


def test_a_file_with_both_kinds_of_names_is_one_finding(recorded: Any) -> None:
    save(recorded, TWINS)
    (finding,) = recorded.judged().findings
    assert (finding.code, finding.line, finding.severity) == ("DDP310", 40, "warning")
    assert "but `model` with `module.` in front" in finding.message  # and DDP501 says nothing of the same save


def test_it_is_meant_so_where_the_run_loads_into_a_wrapper(recorded: Any) -> None:
    save(recorded, TWINS)
    recorded.every("load", wrapped=True, site=recorded.site(38))
    assert [(each.code, each.severity) for each in recorded.judged().findings] == [("DDP310", "info")]


def test_two_dictionaries_of_the_same_side_are_held(recorded: Any) -> None:
    save(recorded, [["ema", False, "model", False, 4]], wrapped=0)
    assert recorded.word("DDP310") == "held"


@pytest.mark.parametrize("twins", [[], None])  # None: a log from before it was looked at
def test_a_file_of_one_model_says_nothing(recorded: Any, twins: Any) -> None:
    save(recorded, twins, wrapped=0)
    assert recorded.judged().verdicts["DDP310"].word == "not observed"


def fail(run: Any, **fields: Any) -> None:
    """A KeyError on every rank, at line 21."""
    stack = [["/project/train.py", 21, "update", False], ["/project/train.py", 45, "main", False]]
    run.every("exception", kind="KeyError", message="'module.0.weight'", stack=stack, traceback="KeyError", **fields)
    run.outcome = "failed"


def test_a_name_that_is_there_without_the_prefix_is_named(recorded: Any) -> None:
    fail(recorded, missing="module.0.weight", present="0.weight")
    (finding,) = recorded.judged().findings
    assert (finding.code, finding.line) == ("DDP310", 21)
    assert "no `module.0.weight` here, but `0.weight`" in finding.message


def test_a_name_that_is_not_there_at_all_is_another_matter(recorded: Any) -> None:
    fail(recorded)
    assert not recorded.judged().findings


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (["a", "b", "mean"], [["ema", False, "model", True, 3]]),
        (["a", "b"], [["ema", False, "model", True, 2]]),  # an average of the parameters alone
        (WRAPPED, [["ema", True, "model", True, 3]]),
        (["a", "c"], []),  # another model
        (["n_averaged", *WRAPPED], []),  # torch's AveragedModel has names of its own
    ],
)
def test_dictionaries_are_compared_by_their_names(other: list[str], found: list[Any]) -> None:
    assert list(map(list, _twins([("model", WRAPPED), ("ema", other)]))) == found


def test_states_of_an_optimizer_are_no_models() -> None:
    moments = ["exp_avg", "exp_avg_sq"]
    assert _twins([("optimizer.state.0", moments), ("optimizer.state.1", moments)]) == []


def test_what_the_wrapper_was_asked_for_in_vain_is_told(recorded: Any) -> None:
    stack = [["/project/train.py", 33, "main", False]]
    message = "'DistributedDataParallel' object has no attribute 'generate'"
    recorded.wrapper()
    recorded.add(0, "exception", kind="AttributeError", message=message, stack=stack, traceback="")
    recorded.outcome = "failed"
    (finding,) = [each for each in recorded.judged().findings if each.code == "DDP324"]
    assert (finding.line, finding.severity) == (33, "error")
    assert "no `generate`" in finding.message
