"""What of a run is an epoch of training: iterations over loaders, from recorded events."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.record.iterations import turns
from validate_ddp.record.run import Run

LOADER = {
    "length": 16, "batches": 4, "batch_size": 4, "sampler": "RandomSampler", "numbered": None, "iterable": False,
    "drop_last": False, "workers": 0, "dataset": "Points",
}  # fmt: skip


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
        training.begin(turn)
        for rank in range(2):
            training.batch(rank, turn, 0, [turn // 2, 1 + 4 * rank, 2, 3])
            if trains:
                training.train_on(rank)
        training.end(1, turn)
    assert not training.judged().findings


def test_a_batch_that_is_fetched_ahead_is_trained_on_after_the_end(training: Any) -> None:
    training.begin()
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
    both = [turn for turn in turns(Run(training.told()), 0) if turn.trains]
    assert [len(turn.batches) for turn in both] == [3, 3]
    assert ("DDP202", 13) in training.found()


def test_a_script_that_counts_batches_itself_is_told_of_the_other_option(record: Any) -> None:
    run = record(max_steps=2)
    run.outcome = "failed"
    run.add(0, "exception", kind="StopIteration", message="", stack=[], traceback="")
    assert "use --stop-after" in run.judged().failure.message


@pytest.mark.parametrize("set_between, named", [(False, False), (True, True)])
def test_a_loader_that_is_taken_up_again_after_its_cut_begins_no_epoch(
    record: Any, set_between: bool, named: bool
) -> None:
    """A script that counts the batches of an epoch itself takes up the loader whenever ``--max-steps`` has ended it."""
    run = record(max_steps=1)
    run.trains()
    for turn, epoch in enumerate((0, 0, 1)):
        if turn != 1 or set_between:
            run.every("set_epoch", sampler=0, epoch=epoch)
        run.begin(turn)
        for rank in range(2):
            run.batch(rank, turn, 0, [[0, 2, 4, 6], [8, 1, 5, 3]][epoch] if rank else [7, 9, 10 + epoch, 12])
            run.train_on(rank)
        run.end(1, turn)
    assert (("DDP201", 11) in run.found()) is named


def test_an_epoch_that_is_set_once_for_all_is_named(record: Any) -> None:
    run = record(max_steps=1)
    run.trains()
    run.every("set_epoch", sampler=0, epoch=0)
    run.epochs([[3, 1, 2, 5], [0, 4, 7, 6]], [[3, 1, 2, 5], [0, 4, 7, 6]])
    assert run.found() == {("DDP201", 11)}
