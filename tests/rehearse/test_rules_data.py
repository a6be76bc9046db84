"""Rules on what ranks read: epochs, shards, iterable data, lengths; over events made by hand, without torch."""

from __future__ import annotations

from typing import Any

from validate_ddp.rehearse.iterations import turns
from validate_ddp.rehearse.run import Run

LOADER = {
    "length": 16, "batches": 4, "batch_size": 4, "sampler": "RandomSampler", "numbered": None, "iterable": False,
    "drop_last": False, "workers": 0, "dataset": "Points",
}  # fmt: skip


def test_an_order_that_repeats_is_a_missing_set_epoch(training: Any) -> None:
    training.epochs([[3, 1, 2, 5], [0, 4, 7, 6]], [[3, 1, 2, 5], [0, 4, 7, 6]])
    assert training.found() == {("DDP201", 11)}


def test_another_order_is_held(training: Any) -> None:
    training.epochs([[3, 1, 2, 5], [0, 4, 7, 6]], [[0, 1, 6, 5], [3, 4, 7, 2]])
    judged = training.judged()
    assert not judged.findings and judged.verdicts["DDP201"].word == "held"


def test_a_look_at_the_first_batch_is_no_epoch(training: Any) -> None:
    for epoch, first in enumerate((3, 1)):
        training.every("iteration", loader=0, turn=2 * epoch, site=training.site(17))
        for rank in range(2):
            training.batch(rank, 2 * epoch, 0, [2, 3, 4, 5])
        training.every("iteration", loader=0, turn=2 * epoch + 1, site=training.site(19))
        for rank in range(2):
            training.batch(rank, 2 * epoch + 1, 0, [first, 2 + 4 * rank, 4, 5])
            training.train_on(rank)
        training.every("iterated", loader=0, turn=2 * epoch + 1, batches=1, exhausted=True)
    judged = training.judged()
    assert not judged.findings and judged.verdicts["DDP201"].word == "held"
    assert judged.facts["epochs"] == 2 and judged.facts["samples"]["seen"] == 5


def test_an_evaluation_of_the_training_data_is_no_epoch(training: Any) -> None:
    for turn, trains in enumerate((True, False, True, False)):
        training.every("iteration", loader=0, turn=turn, site=training.site(19))
        for rank in range(2):
            training.batch(rank, turn, 0, [turn // 2, 1 + 4 * rank, 2, 3])
            if trains:
                training.train_on(rank)
        training.every("iterated", loader=0, turn=turn, batches=1, exhausted=True)
    assert not training.judged().findings


def test_a_batch_that_is_fetched_ahead_is_trained_on_after_the_end(training: Any) -> None:
    training.every("iteration", loader=0, turn=0, site=training.site(19))
    for rank in range(2):
        training.batch(rank, 0, 0, [8 * rank])
        training.batch(rank, 0, 1, [8 * rank + 1])
        training.train_on(rank)
        training.add(rank, "iterated", loader=0, turn=0, batches=2, exhausted=True)
        training.train_on(rank)
    assert training.judged().facts["optimizer_steps_per_epoch"] == 2


def test_batches_of_two_loaders_that_are_read_together_are_all_trained_on(training: Any) -> None:
    training.every("loader", **LOADER, loader=1, site=training.site(13))
    for number in (0, 1):
        training.every("iteration", loader=number, turn=0, site=training.site(19))
    for count in range(3):
        for rank in range(2):
            training.batch(rank, 0, count, [count + 8 * rank])
            training.add(
                rank, "batch", loader=1, turn=0, count=count, indices=[count], size=1, site=training.site(20),
                rows=[[7 + count]],
            )  # fmt: skip
            training.train_on(rank)
    both = [turn for turn in turns(Run(training.events), 0) if turn.trains]
    assert [len(turn.batches) for turn in both] == [3, 3]
    assert ("DDP202", 13) in training.found()


def test_a_sampler_that_does_not_shuffle_may_repeat(recorded: Any) -> None:
    recorded.wrapper()
    recorded.loader(shuffle=False)
    recorded.optimizer()
    recorded.epochs([[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]])
    assert not recorded.judged().findings


def test_ranks_that_read_the_same_samples_are_named(recorded: Any) -> None:
    recorded.wrapper()
    recorded.loader(shuffle=None, length=8)
    recorded.optimizer()
    recorded.epochs([[3, 1, 2, 5]] * 2, [[0, 1, 6, 5]] * 2, rows=[[10, 11, 12, 13]])
    assert recorded.found() == {("DDP202", 12)}


def test_a_data_set_cut_by_rank_has_equal_indices_of_other_samples(recorded: Any) -> None:
    recorded.wrapper()
    recorded.loader(shuffle=None, length=8)
    recorded.optimizer()
    recorded.every("iteration", loader=0, turn=0, site=recorded.site(19))
    for rank in (0, 1):
        recorded.batch(rank, 0, 0, [3, 1, 2, 5], rows=[[rank * 100 + each for each in range(4)]])
        recorded.train_on(rank)
    recorded.every("iterated", loader=0, turn=0, batches=1, exhausted=True)
    judged = recorded.judged()
    assert not judged.findings and judged.verdicts["DDP202"].word == "held"


def test_equal_iterable_batches_are_named(recorded: Any) -> None:
    recorded.wrapper()
    recorded.loader(shuffle=None, iterable=True)
    recorded.optimizer()
    recorded.every("iteration", loader=0, turn=0, site=recorded.site(19))
    for rank in (0, 1):
        recorded.add(
            rank, "batch", loader=0, turn=0, count=0, indices=None, size=4, site=recorded.site(20), rows=[[1, 2, 3, 4]]
        )
        recorded.train_on(rank)
    assert ("DDP206", 12) in recorded.found()


def test_a_rank_with_a_batch_more_is_uneven(training: Any) -> None:
    training.every("iteration", loader=0, turn=0, site=training.site(19))
    for rank in (0, 1):
        for count in range(2 + rank):
            training.batch(rank, 0, count, [rank * 8 + count])
            training.train_on(rank)
        training.add(rank, "iterated", loader=0, turn=0, batches=2 + rank, exhausted=True)
    assert ("DDP408", 12) in training.found()
