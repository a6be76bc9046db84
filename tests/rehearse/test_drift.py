"""Parameters that drift apart between ranks, from recorded events: under DDP, and with gradients averaged by hand."""

from __future__ import annotations

from typing import Any

import pytest


def test_parameters_under_the_wrapper_that_drift_are_named_with_the_rates(training: Any) -> None:
    for rank in range(2):
        training.train_on(rank, params=[2, 2])
        training.train_on(rank, params=[3, 3 + rank], rates=[0.1 / (1 + rank)])
    judged = training.judged()
    (finding,) = judged.findings
    assert (finding.code, finding.line) == ("DDP303", 27) and "step 2" in finding.message
    assert "learning rate is another on each rank (0.1, 0.05)" in finding.message


def test_gradients_changed_after_the_reduction_are_named(training: Any) -> None:
    for rank in range(2):
        training.train_on(rank, grads=[1, 1 + rank], params=[2, 2 + rank])
    (finding,) = training.judged().findings
    assert finding.code == "DDP303" and "changed on some ranks" in finding.message


def test_parameters_frozen_under_the_wrapper_are_told_from_gradients_that_were_changed(training: Any) -> None:
    for rank in range(2):
        training.train_on(rank)
        training.train_on(rank, grads=[None, 1 + rank], params=[2, 2 + rank])
    (finding,) = training.judged().findings
    assert finding.code == "DDP303" and "not reduced, as 1 others under DDP have none" in finding.message


def test_drift_between_averages_is_local_sgd(training: Any) -> None:
    for rank in range(2):
        training.train_on(rank, sync=False, grads=[1, 1], params=[2, 2 + rank])
        training.train_on(rank, params=[5, 5])
    assert "DDP303" not in {code for code, _ in training.found()}


def test_ranks_with_one_gradient_and_several_models_are_named(recorded: Any) -> None:
    recorded.optimizer(names=(None, None))
    for event in recorded.events:
        if event["event"] == "parameters":
            event["before"] = [1, event["process"]]
    for rank in range(2):
        recorded.backward(rank, armed=False)
        recorded.step(rank, grads=[4, 5], params=[2, 2 + rank])
    assert recorded.found() == {("DDP303", 14)}


def test_ranks_with_models_of_their_own_are_left_alone(recorded: Any) -> None:
    recorded.optimizer(names=(None, None))
    for rank in range(2):
        recorded.backward(rank, armed=False)
        recorded.step(rank, grads=[4, 5 + rank], params=[2, 2 + rank])
    assert not recorded.found()


def test_steps_of_ranks_that_have_parted_are_not_compared(training: Any) -> None:
    for rank in range(2):
        training.train_on(rank, params=[2, 2 + rank])
    training.call(0, "all_reduce", 40)
    training.call(1, "barrier", 41)
    assert {code for code, _ in training.found()} & {"DDP401", "DDP407"}
    assert training.judged().verdicts["DDP303"].word == "not observed"


def test_parameters_that_join_the_optimizer_later_are_compared_from_then_on(training: Any) -> None:
    training.train(grads=[1, 1], params=[2, 2])
    training.every(
        "parameters", optimizer=0, names=[None], shapes=[[3]], before=[4], frozen=0, site=training.site(40),
    )  # fmt: skip
    for rank in range(2):
        training.train_on(rank, grads=[1, 1, 5 + rank], params=[3, 3, 6 + rank])
    assert training.rated() == [("DDP303", 40, "error")]
    assert "from step 2 on" in training.judged().findings[0].message


def shares_shards(run: Any, kind: str = "fully_shard", **parameters: Any) -> None:
    """An optimizer over what FSDP holds, and one parameter beside it."""
    run.every("sharded", kind=kind, ranks=[0, 1], site=run.site(11))
    run.optimizer(names=(None, None))
    for event in run.events:
        if event["event"] == "parameters":
            event.update(parameters)


def test_what_fully_shard_leaves_out_drifts_apart(recorded: Any) -> None:
    shares_shards(recorded)
    for rank in range(2):
        recorded.backward(rank, armed=False)
        recorded.step(rank, grads=[None, 5 + rank], params=[None, 7 + rank])
    assert recorded.rated() == [("DDP303", 14, "error")]


def test_parts_of_a_model_that_lies_on_all_ranks_may_differ(recorded: Any) -> None:
    shares_shards(recorded, talking=[0, 1])
    for rank in range(2):
        recorded.backward(rank, armed=False)
        recorded.step(rank, grads=[None, 5 + rank], params=[None, 7 + rank])
    assert not recorded.found()


def test_what_a_mesh_replicates_is_compared_among_those_that_hold_the_same(record: Any) -> None:
    def run(*params: int) -> Any:
        run = record(4)
        shares_shards(run)
        for event in run.events:
            if event["event"] == "parameters":
                rank = event["process"]
                event.update(before=[rank % 2, 1], replicas=[[rank % 2, rank % 2 + 2], []])
        for rank in range(4):
            run.backward(rank, armed=False)
            run.step(rank, grads=[None, None], params=[params[rank], None])
        return run

    assert not run(5, 6, 5, 6).found()
    apart = run(5, 6, 5, 7)
    assert apart.rated() == [("DDP303", 14, "error")]
    assert "the ranks 1, 3 of a mesh are to hold the same" in apart.judged().findings[0].message


@pytest.mark.parametrize(("mesh", "norm", "found"), [([0, 1], 2.0, True), ([0, 1], 1.0, False), ([0], 2.0, False)])
def test_what_ranks_hold_whole_beside_shards_is_to_be_equal(recorded: Any, mesh: Any, norm: float, found: bool) -> None:
    recorded.optimizer(names=(None, None))
    for event in recorded.events:
        if event["event"] == "parameters":
            event["mesh"] = mesh
    for rank in range(2):
        recorded.backward(rank, armed=False)
        recorded.step(rank, grads=[None, 5 + rank], params=[None, 7 + rank])
        recorded.events[-1]["norms"] = [None, norm if rank else 1.0]
    assert recorded.rated() == ([("DDP303", 27, "warning")] if found else [])
