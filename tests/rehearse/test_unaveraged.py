"""Replicas without a wrapper: gradients that nothing averages, or not all of them; and ranks that differ by design."""

from __future__ import annotations

from typing import Any

import pytest


def shares(run: Any, sampler: bool = True, rows: Any = None) -> None:
    """Every rank is given a batch of its own share of the data."""
    run.loader(shuffle=True if sampler else None, length=8)
    for rank in range(run.world_size):
        levels = [{"kind": "DistributedSampler", "known": True, "replicas": run.world_size, "rank": rank, "seed": 0}]
        run.add(rank, "iteration", loader=0, turn=0, site=run.site(19), samplers=levels if sampler else [])
        indices = [rank + run.world_size * each for each in range(4)]
        run.batch(rank, 0, 0, indices, rows=rows(rank) if rows else None)


def steps(run: Any, grads: Any, params: Any, count: int = 3, before: Any = None, **fields: Any) -> None:
    """Steps on every rank. grads, params: by rank. before: what is called between a backward and its step."""
    for _ in range(count):
        for rank in range(run.world_size):
            run.backward(rank, armed=False)
            if before is not None:
                before(rank)
            run.step(rank, grads=grads(rank), params=params(rank))
            run.events[-1].update({name: value(rank) for name, value in fields.items()})


def reduces(run: Any, **fields: Any) -> Any:
    """Calls all_reduce on something shaped like a parameter."""
    return lambda rank: run.call(rank, "all_reduce", 26, shape=[2], dtype="float32", reduce="SUM", **fields)


APART: Any = {"grads": lambda rank: [4, 5 + rank], "params": lambda rank: [7, 8 + rank]}
ALL_APART: Any = {"grads": lambda rank: [3 + rank, 5 + rank], "params": lambda rank: [6 + rank, 8 + rank]}


@pytest.fixture
def unwrapped(recorded: Any) -> Any:
    recorded.optimizer(names=(None, None))
    return recorded


def test_gradients_that_nothing_averages_are_named_at_the_step(unwrapped: Any) -> None:
    shares(unwrapped)
    steps(unwrapped, **ALL_APART)
    assert unwrapped.rated() == [("DDP303", 27, "error")]
    (finding,) = unwrapped.judged().findings
    assert "gradients are never averaged" in finding.message and "from step 1 on" in finding.message
    assert [place.span.line for place in finding.evidence] == [11]  # the sampler that shares the data out


def test_a_run_that_was_cut_short_may_not_have_come_to_an_average(record: Any) -> None:
    run = record(max_steps=3)
    run.optimizer(names=(None, None))
    shares(run)
    steps(run, **ALL_APART)
    assert run.rated() == [("DDP303", 27, "warning")]


def test_metrics_that_are_averaged_are_no_gradients(unwrapped: Any) -> None:
    shares(unwrapped)
    steps(unwrapped, **ALL_APART, before=lambda rank: unwrapped.call(rank, "all_reduce", 40, shape=[], dtype="float32"))
    assert unwrapped.rated() == [("DDP303", 27, "error")]


def test_parameters_that_are_summed_up_once_in_the_end_may_be_averaged(unwrapped: Any) -> None:
    shares(unwrapped)
    steps(unwrapped, **ALL_APART)
    for rank in (0, 1, 0, 1):
        reduces(unwrapped)(rank)
    (finding,) = unwrapped.judged().findings
    assert (finding.code, finding.severity) == ("DDP303", "warning") and "after the last step" in finding.message


@pytest.mark.parametrize("fields", [{"reduce": "MAX"}, {"shape": []}])
def test_what_compares_the_ranks_in_the_end_averages_nothing(unwrapped: Any, fields: Any) -> None:
    shares(unwrapped)
    steps(unwrapped, **ALL_APART)
    for rank in (0, 1, 0, 1):
        unwrapped.call(rank, "all_reduce", 40, **{"shape": [2], "dtype": "float32", "reduce": "SUM", **fields})
    assert unwrapped.rated() == [("DDP303", 27, "error")]


def test_gradients_that_are_averaged_after_their_step_are_told(unwrapped: Any) -> None:
    shares(unwrapped)
    for _ in range(3):
        steps(unwrapped, **ALL_APART, count=1, norms=lambda rank: [1.0, 1.0 + rank])
        for rank in (0, 1):
            reduces(unwrapped)(rank)
    (finding,) = unwrapped.judged().findings
    assert (finding.code, finding.line, finding.severity) == ("DDP303", 27, "warning")
    assert "not sent between a backward and its step" in finding.message


def test_a_parameter_that_is_left_out_is_named(unwrapped: Any) -> None:
    shares(unwrapped)
    steps(unwrapped, **APART, before=reduces(unwrapped), norms=lambda rank: [1.0, 1.0 + rank])
    assert unwrapped.rated() == [("DDP303", 27, "error")]
    assert "the gradients of 1 of 2 parameters ((2,)) are not averaged" in unwrapped.judged().findings[0].message


@pytest.mark.parametrize(("norm", "severity"), [(1.5, "error"), (1.0, None), (None, "warning")])
def test_gradients_that_are_sent_and_differ_all_the_same(unwrapped: Any, norm: Any, severity: str | None) -> None:
    # Equal norms are rounding: ranks that add up in another order.
    shares(unwrapped)
    norms = (lambda rank: None) if norm is None else (lambda rank: [1.0, norm if rank else 1.0])
    steps(unwrapped, **ALL_APART, before=reduces(unwrapped), norms=norms)
    assert unwrapped.rated() == ([("DDP303", 27, severity)] if severity else [])


def test_equal_replicas_are_held_and_replicas_that_differ_by_design_are_not(unwrapped: Any) -> None:
    shares(unwrapped)
    steps(unwrapped, lambda rank: [4, 5], lambda rank: [7, 8], before=reduces(unwrapped))
    assert unwrapped.judged().verdicts["DDP303"].word == "held"
    steps(unwrapped, **ALL_APART, rewritten=lambda rank: True)
    assert unwrapped.word("DDP303") == "not observed"


def test_parameters_averaged_now_and_then_are_local_sgd(unwrapped: Any) -> None:
    shares(unwrapped)
    for _ in range(2):
        steps(unwrapped, **ALL_APART, rewritten=lambda rank: True)
        for rank in (0, 1):
            reduces(unwrapped)(rank)
    assert not unwrapped.rated()


def test_models_sent_as_objects_are_federated(unwrapped: Any) -> None:
    shares(unwrapped)
    for _ in range(2):
        steps(unwrapped, **ALL_APART, rewritten=lambda rank: True)
        for rank in (0, 1):
            unwrapped.call(rank, "all_gather_object", 30)
    assert not unwrapped.rated()


@pytest.mark.parametrize("op", ["all_to_all_single", "send"])
def test_models_that_lie_on_several_ranks_are_left_alone(unwrapped: Any, op: str) -> None:
    shares(unwrapped)
    steps(unwrapped, **APART, before=lambda rank: unwrapped.call(rank, op, 30, sequence=op != "send"))
    assert not unwrapped.rated()


def test_sharded_parameters_are_left_alone(unwrapped: Any) -> None:
    shares(unwrapped)
    unwrapped.every("sharded", kind="FullyShardedDataParallel", site=unwrapped.site(12))
    steps(unwrapped, **ALL_APART)
    assert not unwrapped.rated() and unwrapped.judged().facts["replicas"] is None


def test_parameters_without_a_gradient_on_some_ranks_are_theirs(unwrapped: Any) -> None:
    shares(unwrapped)
    steps(unwrapped, lambda rank: [4 if rank else None, None if rank else 5], lambda rank: [7 + rank, 8 + rank])
    assert not unwrapped.rated()


@pytest.mark.parametrize(("differ", "found"), [(True, [("DDP303", 27, "warning")]), (False, [])])
def test_ranks_without_a_sampler_that_read_other_samples_are_warned_of(
    unwrapped: Any, differ: bool, found: list[Any]
) -> None:
    shares(unwrapped, sampler=False, rows=lambda rank: [[each + 50 * rank * differ for each in range(4)]])
    steps(unwrapped, **ALL_APART)
    assert unwrapped.rated() == found


def test_the_rate_that_moves_equal_gradients_apart_is_named(unwrapped: Any) -> None:
    for rank in range(2):
        unwrapped.backward(rank, armed=False)
        unwrapped.step(rank, grads=[4, 5], params=[7 + rank, 8 + rank], rates=[0.1 * (rank + 1)])
    (finding,) = unwrapped.judged().findings
    assert finding.line == 14 and "the learning rate is another on each rank (0.1, 0.2)" in finding.message


@pytest.mark.parametrize(("lacking", "severity"), [(True, "error"), (False, None)])
def test_replicas_that_part_where_one_has_no_gradient_are_named_where_they_are_averaged(
    unwrapped: Any, lacking: bool, severity: str | None
) -> None:
    steps(unwrapped, lambda rank: [4, 5], lambda rank: [7, 8], before=reduces(unwrapped), count=2)
    theirs: Any = (lambda rank: [4, None if rank else 6]) if lacking else (lambda rank: [4, 6 + rank])
    steps(unwrapped, theirs, lambda rank: [9, 10 + rank], before=reduces(unwrapped), count=2)
    assert unwrapped.rated() == ([("DDP303", 26, severity)] if severity else [])


@pytest.mark.parametrize(("norm", "severity"), [(1.5, "error"), (1.0, None)])
def test_an_average_that_each_rank_changes_is_named_at_the_step(
    unwrapped: Any, norm: float, severity: str | None
) -> None:
    own: Any = {"reduced": lambda rank: [1], "norms": lambda rank: [1.0, norm if rank else 1.0]}
    steps(unwrapped, **APART, before=reduces(unwrapped), **own)
    assert unwrapped.rated() == ([("DDP303", 27, severity)] if severity else [])


def test_replicas_that_are_made_equal_again_have_not_parted(unwrapped: Any) -> None:
    steps(unwrapped, lambda rank: [4, 5], lambda rank: [7, 8], before=reduces(unwrapped), count=2)
    steps(unwrapped, lambda rank: [4, None if rank else 6], lambda rank: [9, 10 + rank], before=reduces(unwrapped))
    steps(unwrapped, lambda rank: [4, 5], lambda rank: [11, 12], before=reduces(unwrapped), count=1)
    assert not unwrapped.found()
