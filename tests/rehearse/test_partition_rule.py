"""DDP319 over readings that are made by hand: which are wrong, how that is told, and what is not judged."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.record.partition import reduced_at, replicas, told_of
from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed.partition.tape import close, summary

HALVES = (0.5, 0.5)


def reading(kind: str, coefficients: tuple[float, ...], *names: str, target: str = "rank", rank: int = 0) -> Any:
    size = len(coefficients) // 2
    return {
        "optimizer": 0, "target": target, "rank": rank, "kind": kind, "factor": 1.0, "coefficients": list(coefficients),
        "tapes": [0] * size + [1] * size, "backwards": [*range(size), *range(size)], "residual": 0.0,
        "names": list(names),
    }  # fmt: skip


def ranks(kind: str, coefficients: tuple[float, ...], *names: str) -> list[Any]:
    """On both ranks alike."""
    return [reading(kind, coefficients, *names, rank=rank) for rank in (0, 1)]


def compared(run: Any, *readings: Any, **fields: Any) -> Any:
    values = {
        "compared": True, "float64": True, "world_size": 2, "tapes": [0, 1], "readings": list(readings),
        "union": ["w"], "apart": "", "place": ["/project/train.py", 25, "train", False], **fields,
    }  # fmt: skip
    run.events.append({"event": "partition", **values})
    return run.judged()


@pytest.mark.parametrize(("apart", "told"), [("", ["error"]), (None, ["warning"]), ("losses differ", [])])
def test_an_error_rests_on_ranks_that_do_the_same_where_they_are_given_the_same(
    training: Any, apart: str | None, told: list[str]
) -> None:
    union = reading("mean", HALVES, "w", target="union")
    judged = compared(training, *ranks("factor", (1.0, 1.0), "w"), union, apart=apart)
    assert [each.severity for each in judged.findings] == told


@pytest.mark.parametrize(("names", "told"), [(("w",), ["warning"]), (("w", "head"), [])])
def test_ranks_with_work_of_their_own_may_have_parts_of_their_own_but_not_all(
    training: Any, names: tuple[str, ...], told: list[str]
) -> None:
    own = [reading("own", (1.0, 0.0), "w"), reading("own", (0.0, 1.0), "w", rank=1)]
    judged = compared(training, *own, apart="losses differ", parameters=len(names))
    assert [each.severity for each in judged.findings] == told


@pytest.mark.parametrize(
    ("kind", "coefficients", "told"),
    [("factor", (0.5, 0.0), ["error"]), ("factor", (1.0, 0.0), []), ("coupled", (), [])],
)
def test_a_factor_that_other_batches_do_not_have_is_a_choice_by_the_data(
    training: Any, kind: str, coefficients: tuple[float, ...], told: list[str]
) -> None:
    dup = {**reading(kind, coefficients, "w", target="dup"), "tapes": [0, 1], "backwards": [0, 0]}
    judged = compared(training, *ranks("factor", (0.25, 0.25), "w"), dup)
    assert [each.severity for each in judged.findings] == told


def test_the_mean_of_the_ranks_is_held(training: Any) -> None:
    union = reading("mean", HALVES, "w", target="union")
    assert compared(training, *ranks("mean", HALVES, "w"), union).verdicts["DDP319"].word == "held"


@pytest.mark.parametrize(
    ("kind", "coefficients", "words"),
    [
        ("factor", (1.0, 1.0), "is 2 times the average of the ranks': summed over the ranks, never divided"),
        ("factor", (0.25, 0.25), "is 0.5 times the average"),
        ("mixed", (0.9, 1.1), "is 2 times the average"),
        ("mixed", (0.5, 0.5, 0.5, 0.7), "counts its micro-batches 1, 1.2 times"),
    ],
)
def test_a_factor_is_an_error_and_told_in_words(
    training: Any, kind: str, coefficients: tuple[float, ...], words: str
) -> None:
    union = reading("mean", tuple(0.5 for _ in coefficients), "w", target="union")
    (finding,) = compared(training, *ranks(kind, coefficients, "w"), union).findings
    assert (finding.code, finding.line, finding.severity) == ("DDP319", 25, "error") and words in finding.message


@pytest.mark.parametrize(
    ("target", "kind", "factor", "told"),
    [
        ("copies", "mean", 1.0, ["error"]),
        ("copies", "factor", 2.0, []),  # a loss that is a sum: its gradients are to be added up
        ("copies", "coupled", 0.0, ["warning"]),
        ("union", "coupled", 0.0, ["warning"]),
        ("union", "factor", 2.0, []),
    ],
)
def test_a_sum_of_the_ranks_is_an_error_where_one_process_shows_that_the_loss_is_a_mean(
    training: Any, target: str, kind: str, factor: float, told: list[str]
) -> None:
    parts = (factor, 0.0) if target == "copies" else (factor / 2, factor / 2)
    other = reading(kind, () if kind == "coupled" else parts, "w", target=target)
    findings = compared(training, *ranks("factor", (1.0, 1.0), "w"), other).findings
    assert [each.severity for each in findings] == told


@pytest.mark.parametrize(("factor", "severity"), [(1.0, "warning"), (0.25, "error")])
def test_without_a_joined_batch_only_a_factor_that_no_loss_has_is_an_error(
    training: Any, factor: float, severity: str
) -> None:
    (finding,) = compared(training, *ranks("factor", (factor, factor), "w"), union=None).findings
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("fields", "told"),
    [({}, ["error"]), ({"replicas": "warning"}, ["warning"]), ({"replicas": ""}, []), ({"averages": True}, [])],
)
def test_ranks_that_are_not_one_model_after_each_step_need_no_reduction(
    training: Any, fields: Any, told: list[str]
) -> None:
    own = [reading("own", (1.0, 0.0), "w"), reading("own", (0.0, 1.0), "w", rank=1)]
    assert [each.severity for each in compared(training, *own, **fields).findings] == told


def test_the_gradient_of_one_rank_on_all_of_them_is_not_called_unreduced(training: Any) -> None:
    union = reading("mean", HALVES, "w", target="union")
    same = [reading("own", (1.0, 0.0), "w"), reading("mixed", (1.0, 0.0), "w", rank=1)]
    (finding,) = compared(training, *same, union).findings
    assert finding.severity == "warning" and finding.message.endswith("in that of one process on all of them")


def test_means_of_groups_of_ranks_are_not_judged(training: Any) -> None:
    def of(rank: int, *coefficients: float) -> Any:
        return {**reading("mixed", coefficients, "w", rank=rank), "tapes": [0, 1, 2, 3], "backwards": [0] * 4}

    one, other = (0.5, 0.5, 0.0, 0.0), (0.0, 0.0, 0.5, 0.5)
    union = {**of(0, 0.25, 0.25, 0.25, 0.25), "target": "union"}
    groups = [of(0, *one), of(1, *one), of(2, *other), of(3, *other)]
    assert not compared(training, *groups, union, tapes=[0, 1, 2, 3], world_size=4).findings


def averages_late(run: Any, rewritten: bool) -> Any:
    """Steps on gradients of the rank's own, and after each of them something as large as the model is summed up."""
    run.wrapper()
    run.loader()
    run.optimizer()
    for _ in range(3):
        for rank in (0, 1):
            run.train_on(rank, sync=False, grads=[rank, 5], params=[rank, 8])
            run.events[-1]["rewritten"] = rewritten
        for rank in (0, 1, 0, 1):
            run.call(rank, "all_reduce", 40, shape=[2], dtype="float32", reduce="SUM")
    return Run(run.told(finished=True))


def test_parameters_that_are_rewritten_between_steps_from_what_ranks_send_are_averaged(record: Any) -> None:
    assert (replicas(averages_late(record(), True)), replicas(averages_late(record(), False))) == ("", "error")
    assert replicas(averages_late(record(max_steps=3), False)) == "warning"


def test_parameters_that_are_not_reduced_are_named(training: Any) -> None:
    own = [reading("own", (1.0, 0.0), "out.bias"), reading("own", (0.0, 1.0), "out.bias", rank=1)]
    (finding,) = compared(training, *ranks("mean", HALVES, "w"), *own).findings
    assert finding.severity == "error" and "the gradient of `out.bias` is each rank's own" in finding.message


def test_micro_batches_of_which_one_is_not_reduced_are_not_reduced(training: Any) -> None:
    parts = [reading("mixed", (0.5, 1, 0.5, 0), "w"), reading("mixed", (0.5, 0, 0.5, 1), "w", rank=1)]
    (finding,) = compared(training, *parts).findings
    assert "each rank's own" in finding.message


def test_other_shares_than_those_of_one_process_are_a_warning(training: Any) -> None:
    union = reading("mixed", (0.47, 0.53), "w", target="union")
    (finding,) = compared(training, *ranks("mean", HALVES, "w"), union).findings
    assert finding.severity == "warning" and "0.5, 0.5 in the gradient, and 0.47, 0.53" in finding.message


def test_a_sum_as_loss_is_no_other_share(training: Any) -> None:
    union = reading("factor", (1.0, 1.0), "w", target="union")
    assert not compared(training, *ranks("mean", HALVES, "w"), union).findings


def test_just_what_one_process_has_on_all_batches_is_right_whatever_it_is_made_of(training: Any) -> None:
    assert not compared(training, *ranks("factor", (1.0, 1.0), "w"), union=[]).findings


def test_what_is_coupled_is_judged_by_both_other_references(training: Any, record: Any) -> None:
    (finding,) = compared(training, *ranks("coupled", (), "w"), dup=["w"]).findings
    assert finding.severity == "warning"
    for fields in ({"dup": None}, {"dup": []}, {"dup": ["w"], "batch_norms": 1}, {"dup": ["w"], "exchanges": False}):
        other = record()
        other.trains()
        assert not compared(other, *ranks("coupled", (), "w"), **fields).findings


def test_what_is_coupled_is_coupled_where_all_are_given_one_batch(training: Any) -> None:
    readings = [{**reading("coupled", (), "w", target=each), "tapes": [0, 1], "backwards": [0, 0]}
                for each in ("rank", "dup")]  # fmt: skip
    (finding,) = compared(training, *readings, dup=["w"]).findings
    assert finding.severity == "warning"


def test_tokens_dealt_to_experts_need_no_joined_batch(training: Any, record: Any) -> None:
    (finding,) = compared(training, *ranks("coupled", (), "w"), union=None, dup=["w"], deals=True).findings
    assert finding.severity == "warning"
    for fields in ({"deals": False, "dup": ["w"]}, {"deals": True, "dup": []}):
        other = record()
        other.trains()
        assert not compared(other, *ranks("coupled", (), "w"), union=None, **fields).findings


def test_nothing_is_said_of_what_does_not_repeat_or_was_not_compared(training: Any, record: Any) -> None:
    assert (
        compared(training, *ranks("factor", (1.0, 1.0), "w"), repeats=False).verdicts["DDP319"].word == "not observed"
    )
    other = record()
    judged = compared(other, compared=False, why="the script writes /a before its first step")
    assert judged.verdicts["DDP319"].word == "not observed" and not judged.findings


def test_a_number_of_ranks_that_stands_in_the_script_is_no_factor(training: Any) -> None:
    assert not compared(training, *ranks("factor", (1.0, 1.0), "w"), scale=0.5).findings


def test_a_sum_at_a_learning_rate_that_is_divided_is_no_factor(training: Any, record: Any) -> None:
    assert not compared(training, *ranks("factor", (1.0, 1.0), "w"), rate=0.5).findings
    other = record()
    other.trains()
    assert compared(other, *ranks("factor", (0.25, 0.25), "w"), rate=4.0).findings


def test_factors_are_not_judged_where_the_script_scales_by_the_size_of_its_gradients(training: Any) -> None:
    union = reading("mixed", (0.47, 0.53), "w", target="union")
    assert not compared(training, *ranks("mixed", (0.7, 0.9), "w"), union, scaled=True).findings


@pytest.mark.parametrize(("fields", "told"), [({"as_one": ["w"]}, []), ({"alike": ["w"]}, ["error"]), ({}, ["error"])])
def test_a_factor_that_a_step_of_the_scripts_own_undoes_is_none(training: Any, fields: Any, told: list[str]) -> None:
    union = reading("mean", HALVES, "w", target="union")
    judged = compared(training, *ranks("factor", (1.0, 1.0), "w"), union, **fields)
    assert [each.severity for each in judged.findings] == told


@pytest.mark.parametrize(
    ("fields", "told"),
    [({"alike": ["w", "b"]}, []), ({"alike": ["w"]}, ["error"]), ({"as_one": ["w", "b"]}, ["error"])],
)
def test_what_a_step_of_the_scripts_own_changes_alike_on_all_ranks_is_reduced(
    training: Any, fields: Any, told: list[str]
) -> None:
    own = [reading("own", (1.0, 0.0), "w", "b"), reading("own", (0.0, 1.0), "w", "b", rank=1)]
    assert [each.severity for each in compared(training, *own, **fields).findings] == told


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (([2], INF, NAN), ([2], INF, NAN), True),
        (([2], INF, 1.0), ([2], INF, 1.0), True),
        (([2], INF, 1.0), ([2], INF, 2.0), False),
        (([2], INF, 1.0), ([2], 3.0, 1.0), False),
        (([2], NAN, NAN), ([2], 3.0, 1.0), False),
        (([2], 3.0, 1.0), ([2], 3.0, 1.00001), True),
        (([2], 3.0, 1.0), ([1], 3.0, 1.0), False),
        (None, None, True),
        (None, ([2], 3.0, 1.0), False),
    ],
)
def test_what_two_calls_were_given_is_compared_past_infinities(one: object, other: object, same: bool) -> None:
    assert close([one], [other]) is same and close([other], [one]) is same
    assert summary(None) is None


def test_a_gradient_that_is_not_the_slope_of_the_losses_is_told_without_a_process_to_compare(training: Any) -> None:
    judged = compared(training, compared=False, off_slope="0:up.weight", factor=2.0, others=1.0)
    (found,) = judged.findings
    assert (found.code, found.severity) == ("DDP319", "warning") and "`up.weight`" in found.message


def test_ranks_of_one_tape_have_the_whole_gradient_each(training: Any) -> None:
    parts = [reading("own", (0.3, 0.3), "norm"), reading("own", (0.7, 0.7), "norm", rank=1)]
    judged = compared(training, *ranks("mean", HALVES, "w"), *parts, tapes=[0, 0])
    assert [(each.severity, "`norm` is another on each rank" in each.message) for each in judged.findings] == [
        ("warning", True)
    ]


def test_what_a_sharded_model_has_whole_on_each_rank_is_told_where_nothing_could_be_compared(training: Any) -> None:
    (found,) = compared(training, compared=False, parts=["norm.weight"]).findings
    assert (found.code, found.severity) == ("DDP319", "warning")
    assert "`norm.weight` is another on each rank, and each holds all of it" in found.message


def test_micro_batches_that_the_ranks_share_out_and_nobody_counts_are_a_warning(training: Any) -> None:
    judged = compared(training, *ranks("factor", (0.25, 0.25), "w"), union=None, spread=True)
    told = [(each.severity, each.message) for each in judged.findings]
    assert [severity for severity, _ in told] == ["warning"] and "share them out" in told[0][1]


@pytest.mark.parametrize(("factor", "told"), [(0.9, ["warning"]), (2.0, ["warning"]), (0.5, []), (1.0, []), (-0.1, [])])
def test_one_process_that_is_given_the_global_batch_by_the_script_is_a_reference(
    training: Any, factor: float, told: list[str]
) -> None:
    """Half of it is an average over two ranks, of a loss that is a sum."""
    known = {"tapes": [0, 0], "union": None, "apart": None, "joined": True}
    one = [{**reading("factor", (factor,), "w", rank=rank), "tapes": [0], "backwards": [0]} for rank in (0, 1)]
    found = compared(training, *one, **known).findings
    assert [each.severity for each in found] == told
    assert all(f"is {factor:g} times that of one process on the global batch" in each.message for each in found)


@pytest.mark.parametrize(
    ("times", "backwards", "told"),
    [
        ([0.5], 1, "warning"),
        ([0.1, 0.5], 1, "warning"),
        ([0.25], 2, "warning"),  # two micro-batches and two ranks
        ([0.5, 0.5], 2, "warning"),
        ([0.5], 2, "error"),  # two micro-batches
        ([0.25], 1, "error"),
        ([], 1, "error"),
    ],
)
def test_a_number_by_which_the_loss_is_divided_may_stand_for_the_ranks(
    training: Any, times: list[float], backwards: int, told: str
) -> None:
    union = reading("mean", HALVES, "w", target="union")
    summed = ranks("factor", (1.0, 1.0), "w")
    (finding,) = compared(training, *summed, union, times=times, backwards=backwards).findings
    assert finding.severity == told
    assert ("; that is right only where the 2 by which the loss is divided" in finding.message) == (told == "warning")


@pytest.mark.parametrize(("times", "told"), [([2.0, 0.01], "warning"), ([0.5], "error")])
def test_a_number_by_which_the_loss_is_multiplied_may_stand_for_the_ranks(
    training: Any, times: list[float], told: str
) -> None:
    union = reading("mean", HALVES, "w", target="union")
    (finding,) = compared(training, *ranks("factor", (0.25, 0.25), "w"), union, times=times).findings
    assert finding.severity == told


def test_the_line_is_that_of_the_largest_reduction_after_the_last_backward(recorded: Any) -> None:
    recorded.backward(0, armed=False)
    for line, shape in ((30, [8, 6]), (30, [8]), (33, []), (34, [2])):
        recorded.call(0, "all_reduce", line, shape=shape, dtype="float32", reduce="SUM")
    place = reduced_at(Run(recorded.told(finished=True)))
    assert place is not None and place.line == 30


@pytest.mark.parametrize(
    ("rest", "words"),
    [((), "each rank's own, of which"), (("v",), "that of `w` is each rank's own, of which the optimizer's own step")],
)
def test_the_table_names_what_a_step_of_its_own_makes_one(training: Any, rest: Any, words: str) -> None:
    own = [reading("own", (1.0, 0.0), "w"), reading("own", (0.0, 1.0), "w", rank=1)]
    compared(training, *own, *(ranks("mean", HALVES, *rest) if rest else ()), alike=["w"])
    event = Run(training.told(finished=True)).partition
    assert event is not None and told_of(event).startswith(words)
