"""The table of facts: each number against what a run is by construction."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.rehearse.show import remarks


def takes(run: Any, count: int, indices: list[int], turn: int = 0, **fields: Any) -> None:
    """Every rank takes a batch."""
    for rank in range(run.world_size):
        run.batch(rank, turn, count, indices, **fields)


def test_two_networks_that_step_in_turn_do_not_accumulate(training: Any) -> None:
    training.optimizer(number=1, names=((1, "weight"), (1, "bias")))
    training.begin()
    for count in range(3):
        takes(training, count, [0, 1, 2, 3])
        for rank in (0, 1):
            for number, line in ((0, 25), (1, 35)):
                training.backward(rank, line=line)
                training.step(rank, optimizer=number)
    training.end(3)
    facts = training.judged().facts
    assert (facts["accumulation"], facts["effective_batch_size"], facts["reductions_per_step"]) == (1, 8, 1)
    assert (facts["optimizer_steps"], facts["optimizer_steps_per_epoch"]) == (3, 3)


def test_steps_that_nobody_has_seen_are_not_counted_to_none(training: Any) -> None:
    """An optimizer that is none of torch's."""
    training.begin()
    takes(training, 0, [0, 1, 2, 3])
    for rank in (0, 1):
        training.backward(rank)
    training.end(1)
    facts = training.judged().facts
    assert (facts["optimizer_steps"], facts["optimizer_steps_per_epoch"]) == (None, None)


def test_two_backwards_of_one_batch_do_not_double_the_effective_batch(training: Any) -> None:
    training.begin()
    for count in range(3):
        takes(training, count, [0, 1, 2, 3])
        for rank in (0, 1):
            training.backward(rank, line=25)
            training.backward(rank, line=26)
            training.step(rank)
    facts = training.judged().facts
    assert (facts["accumulation"], facts["effective_batch_size"]) == (2, 8)


def test_a_step_of_several_batches_is_as_large_as_they_are_together(training: Any) -> None:
    training.begin()
    for count in range(6):
        takes(training, count, [0, 1, 2, 3])
        training.train(sync=count % 3 == 2, step=count % 3 == 2)
    facts = training.judged().facts
    assert (facts["accumulation"], facts["effective_batch_size"], facts["reductions_per_step"]) == (3, 24, 1)


@pytest.mark.parametrize("called_by_the_step", [True, False])
def test_evaluations_of_a_closure_are_no_micro_batches(training: Any, called_by_the_step: bool) -> None:
    step = training.site(27)
    zero = training.site(30, "/project/train.py", "closure", "", 27) if called_by_the_step else training.site(26)
    for rank in (0, 1):
        for _ in range(3):
            for evaluation in range(4):
                training.add(rank, "zero_grad", optimizer=0, had=evaluation > 0, site=zero)
                training.backward(rank, line=25)
            training.add(rank, "step", optimizer=0, count=1, grads=[1, 1], params=[2, 2], site=step, rates=[0.1])
    judged = training.judged()
    assert (judged.verdicts["DDP306"].word == "violated") is not called_by_the_step
    assert judged.facts["accumulation"] == (1 if called_by_the_step else 4)


def test_parts_of_one_data_set_are_counted_as_the_whole(recorded: Any) -> None:
    recorded.wrapper()
    for rank in (0, 1):
        recorded.add(
            rank, "loader", loader=0, site=recorded.site(12), length=4, batches=1, batch_size=4, numbered=None,
            sampler="RandomSampler", iterable=False, drop_last=False, workers=0, dataset="Subset", part=rank, whole=9,
        )  # fmt: skip
    recorded.begin()
    for rank in (0, 1):
        recorded.batch(rank, 0, 0, [0, 1, 2, 3], whole=[each * 2 + rank for each in (0, 1, 2, 3)])
        recorded.train_on(rank)
    recorded.end(1)
    assert recorded.judged().facts["samples"] == {"in_data_set": 9, "seen": 8, "repeated": 0, "missed": 1}


@pytest.mark.parametrize("apart", [True, False])
def test_equal_indices_of_other_samples_are_not_counted(recorded: Any, apart: bool) -> None:
    recorded.wrapper()
    recorded.loader(shuffle=None, length=4)
    recorded.begin()
    for rank in (0, 1):
        recorded.batch(rank, 0, 0, [0, 1, 2, 3], rows=[[each + 10 * rank * apart for each in range(4)]])
        recorded.train_on(rank)
    recorded.end(1)
    repeated = {"in_data_set": 4, "seen": 4, "repeated": 4, "missed": 0}
    assert recorded.judged().facts["samples"] == (None if apart else repeated)


def test_without_a_wrapper_reductions_are_not_known(recorded: Any) -> None:
    recorded.optimizer()
    recorded.train(armed=False)
    facts = recorded.judged().facts
    assert facts["accumulation"] == 1 and facts["reductions_per_step"] is None


def test_checkpoints_have_the_name_that_they_end_with(recorded: Any) -> None:
    for path in ("/project/last.pt.tmp", "/project/new/shard0.pt", "/project/broken.pt"):
        recorded.add(0, "save", path=path, tensors=2, wrapped=0, site=recorded.site(50))
    recorded.add(0, "renamed", source="/project/last.pt.tmp", path="/project/last.pt")
    recorded.add(0, "renamed", source="/project/new", path="/project/old")
    recorded.add(0, "unsaved", path="/project/broken.pt")
    found = {each["path"]: each["ranks"] for each in recorded.judged().facts["checkpoints"]}
    assert found == {"/project/last.pt": [0], "/project/old/shard0.pt": [0]}


def test_a_loader_that_takes_batches_ahead_makes_no_step_larger(training: Any) -> None:
    training.begin()
    for count in range(8):
        takes(training, count, [0, 1, 2, 3])
        for rank in (0, 1):
            if count:
                training.train_on(rank, sync=count == 4, step=count == 4)
    for rank in (0, 1):
        training.train_on(rank)
    training.end(8)
    facts = training.judged().facts
    assert (facts["accumulation"], facts["effective_batch_size"]) == (4, 32)


@pytest.mark.parametrize("second", [2, 3])
def test_replicas_that_are_averaged_by_hand_are_compared_too(recorded: Any, second: int) -> None:
    recorded.optimizer(names=(None, None))
    for rank in (0, 1):
        recorded.train_on(rank, armed=False, params=[2, second if rank else 2])
    replicas = recorded.judged().facts["replicas"]
    assert replicas["equal"] is (second == 2) and replicas["steps_compared"] == 1


@pytest.mark.parametrize(("batches", "missed", "steps"), [(2, 8, 2), (1, None, None)])
def test_an_iteration_is_whole_after_its_last_batch(
    training: Any, batches: int, missed: int | None, steps: int | None
) -> None:
    training.begin()
    for count in range(batches):
        for rank in (0, 1):
            training.batch(rank, 0, count, [4 * rank + 2 * count, 4 * rank + 2 * count + 1])
            training.train_on(rank)
    facts = training.judged().facts
    assert facts["samples"]["missed"] == missed and facts["optimizer_steps_per_epoch"] == steps


@pytest.mark.parametrize("limit", [3, None])
def test_a_failure_after_loaders_were_cut_may_be_due_to_that(record: Any, limit: int | None) -> None:
    run = record(max_steps=limit)
    run.outcome = "failed"
    assert any("--stop-after" in row for row in remarks(run.judged())) is (limit is not None)


def test_models_of_several_groups_are_not_compared_with_each_other(record: Any) -> None:
    run = record(world_size=4)
    run.trains(length=4)
    run.begin()
    for rank in range(4):
        group = [0, 1] if rank < 2 else [2, 3]
        common = {"group": str(group), "ranks": group, "waits": False, "rows": 2}
        run.batch(rank, 0, 0, [2 * (rank % 2), 2 * (rank % 2) + 1], rows=[[5 * (rank % 2), 5 * (rank % 2) + 1]])
        run.add(rank, "forward", n=900, ddp=0, grad=True, sync=True, training=True, site=run.site(22), **common)
        run.add(rank, "backward", n=901, armed=[0], sync=True, site=run.site(25), **common)
        run.step(rank, params=[group[0], 7])
    run.end(1)
    judged = run.judged()
    assert not judged.findings and judged.facts["replicas"]["equal"] is True
    assert judged.facts["effective_batch_size"] == 4
    assert judged.facts["samples"] == {"in_data_set": 4, "seen": 4, "repeated": 0, "missed": 0}


def test_what_an_optimizer_holds_beside_a_wrapper_is_compared_too(recorded: Any) -> None:
    recorded.wrapper()
    recorded.optimizer(names=((0, "weight"), None))
    for rank in (0, 1):
        recorded.train_on(rank, grads=[1, rank], params=[1, rank])
    replicas = recorded.judged().facts["replicas"]
    assert not replicas["equal"] and replicas["parameters_apart"] == [1]
