"""What ranks do with the numbers of an evaluation, and of how many targets their losses are the means."""

from __future__ import annotations

from typing import Any

import pytest


class Evaluating:
    """A run in which ranks train an epoch, evaluate, and train another."""

    def __init__(self, run: Any, length: int, shares: list[list[int]], sampler: bool) -> None:
        self.run = run
        if sampler:
            for rank in range(run.world_size):
                run.add(
                    rank, "sampler", sampler=1, site=run.site(30), shuffle=False, rank=rank, length=length,
                    replicas=run.world_size, drop_last=False,
                )  # fmt: skip
        kind = "DistributedSampler" if sampler else "SequentialSampler"
        run.every(
            "loader", loader=1, site=run.site(31), length=length, batches=1, batch_size=64, sampler=kind,
            numbered=1 if sampler else None, iterable=False, drop_last=False, workers=0, dataset="Points",
        )  # fmt: skip
        self.train(0)
        run.every("iteration", loader=1, turn=0, site=run.site(40))
        for rank, share in enumerate(shares):
            run.add(rank, "batch", loader=1, turn=0, count=0, indices=share, size=len(share), site=run.site(40))
        run.every("iterated", loader=1, turn=0, batches=1, exhausted=True)

    def train(self, turn: int) -> None:
        """An epoch of one batch."""
        self.run.every("iteration", loader=0, turn=turn, site=self.run.site(19))
        for rank in range(self.run.world_size):
            self.run.batch(rank, turn, 0, [[3, 1, 2, 5], [0, 4, 7, 6]][rank] if turn else [rank])
            self.run.train_on(rank)
        self.run.end(1, turn)

    def reduce(self, given: list[list[float]], got: list[float], line: int = 45, **fields: Any) -> None:
        """A reduction of a few numbers by all ranks."""
        for rank, numbers in enumerate(given):
            call = self.run.call(
                rank, "all_reduce", line, done=False, dtype="float32", shape=[len(got)], given=numbers,
                **{"reduce": "SUM", **fields},
            )  # fmt: skip
            self.run.add(rank, "done", n=call, got=got)

    def said(self, code: str) -> str | list[tuple[int, str]]:
        """Lines and severities of a code's findings, or what is said in place of them."""
        self.train(1)
        judged = self.run.judged()
        found = [(each.line, each.severity) for each in judged.findings if each.code == code]
        return found or judged.verdicts[code].word


PADDED = [[0, 2, 4], [1, 3, 0]]
UNEQUAL = [[0, 1, 2, 3], [4]]


@pytest.fixture
def evaluating(training: Any) -> Any:
    """``evaluating(length, shares, sampler)``"""
    return lambda length, shares, sampler=True: Evaluating(training, length, shares, sampler)


def test_a_sum_that_counts_what_the_sampler_repeats(evaluating: Any) -> None:
    run = evaluating(5, PADDED)
    run.reduce([[2.0, 3.0], [1.0, 3.0]], [3.0, 6.0])
    assert run.said("DDP207") == [(30, "warning")]


@pytest.mark.parametrize("got", [[3.0, 5.0], [0.6]])
def test_a_sum_without_what_the_sampler_repeats_is_right_and_other_numbers_say_nothing(
    evaluating: Any, got: list[float]
) -> None:
    run = evaluating(5, PADDED)
    run.reduce([got, got], got)
    assert run.said("DDP207") == ("held" if 5.0 in got else "not observed")


def test_a_sampler_that_repeats_nothing_counts_right(evaluating: Any) -> None:
    run = evaluating(6, [[0, 2, 4], [1, 3, 5]])
    run.reduce([[3.0], [3.0]], [6.0])
    assert run.said("DDP207") == "held"


def test_an_average_of_means_of_unequal_shares(evaluating: Any) -> None:
    run = evaluating(5, UNEQUAL, sampler=False)
    run.reduce([[0.5], [0.1]], [0.3], reduce="AVG")
    assert run.said("DDP603") == [(45, "warning")]


def test_an_average_of_equal_shares_is_right(evaluating: Any) -> None:
    run = evaluating(6, [[0, 2, 4], [1, 3, 5]])
    run.reduce([[0.5], [0.1]], [0.3], reduce="AVG")
    assert run.said("DDP603") == "held"


def test_sums_and_averaged_counts_of_unequal_shares_are_right(evaluating: Any) -> None:
    run = evaluating(5, UNEQUAL, sampler=False)
    run.reduce([[2.0, 4.0], [0.1, 1.0]], [1.05, 2.5], reduce="AVG")
    assert run.said("DDP603") == "held"


def test_a_share_of_which_nothing_is_combined(evaluating: Any) -> None:
    run = evaluating(6, [[0, 2, 4], [1, 3, 5]])
    for rank in range(2):
        run.run.call(rank, "barrier", 46)
    assert run.said("DDP601") == [(40, "info")]


def test_subsets_of_the_ranks_are_shares_too(evaluating: Any) -> None:
    run = evaluating(3, [[0, 1, 2], [0, 1, 2]], sampler=False)
    for event in run.run.events:
        if event["event"] == "batch" and event["loader"] == 1:
            event["whole"] = [2 * index + event["process"] for index in event["indices"]]
    assert run.said("DDP601") == [(40, "info")]


def test_how_bad_that_is_reading_knows_better(evaluating: Any) -> None:
    run = evaluating(6, [[0, 2, 4], [1, 3, 5]])
    run.run.read("DDP601", 50, evidence=[40])
    assert run.said("DDP601") == [(50, "error")]


@pytest.mark.parametrize("op", ["all_gather_object", "reduce", "gather"])
def test_a_share_that_is_combined(evaluating: Any, op: str) -> None:
    run = evaluating(6, [[0, 2, 4], [1, 3, 5]])
    for rank in range(2):
        run.run.call(rank, op, 46)
    assert run.said("DDP601") == "held"


def test_ranks_that_all_evaluate_everything_have_nothing_to_combine(evaluating: Any) -> None:
    run = evaluating(3, [[0, 1, 2], [0, 1, 2]], sampler=False)
    assert run.said("DDP601") == "not observed"


def losses(run: Any, *steps: list[int], weights: Any = None, accumulation: int = 1) -> None:
    """A backward of a loss on every rank; ``steps`` hold each rank's targets, of a mean where no ``weights`` are."""
    for at, counts in enumerate(steps):
        for rank, count in enumerate(counts):
            weight = 1 / count if weights is None else weights[at][rank]
            run.backward(rank)
            run.add(rank, "weighed", function="cross_entropy", count=count, weight=weight, site=run.site(24))
            if (at + 1) % accumulation == 0:
                run.step(rank)


def warned(run: Any) -> Any:
    judged = run.judged()
    return [(each.line, each.severity) for each in judged.findings if each.code == "DDP311"] or judged.verdicts[
        "DDP311"
    ].word


def test_means_over_unequal_numbers_of_tokens(training: Any) -> None:
    losses(training, [31, 400], [100, 100])
    assert warned(training) == [(24, "warning")]


def test_a_last_batch_that_is_unequal_is_worth_an_info(training: Any) -> None:
    losses(training, *[[100, 100]] * 9, [100, 60])
    assert warned(training) == [(24, "info")]


def test_nearly_equal_numbers_are_not_worth_a_word(training: Any) -> None:
    losses(training, [100, 104], [98, 100])
    assert warned(training) == "held"


@pytest.mark.parametrize("accumulation", [1, 2])
def test_targets_that_weigh_alike_are_divided_by_their_number_in_the_step(training: Any, accumulation: int) -> None:
    losses(training, [31, 400], [100, 50], weights=[[2 / 581] * 2] * 2, accumulation=accumulation)
    assert warned(training) == "held"


@pytest.mark.parametrize(("weight", "told"), [(1 / 32, [(24, "warning")]), (1 / 8, "held"), (1.0, "held")])
def test_what_a_pipeline_divides_is_not_divided_before(training: Any, weight: float, told: object) -> None:
    for _ in range(2):
        for rank in range(2):
            for _ in range(4):
                training.backward(rank)
                if rank == 1:
                    training.add(1, "weighed", function="mse_loss", count=8, weight=weight, site=training.site(24))
            training.add(rank, "divided", by=4)
            training.step(rank)
    assert warned(training) == told


def test_micro_batches_that_are_each_divided_by_their_targets_on_all_ranks(training: Any) -> None:
    losses(training, [31, 40], [100, 50], weights=[[1 / 71] * 2, [1 / 150] * 2], accumulation=2)
    assert warned(training) == [(24, "warning")]


def test_a_count_of_the_step_and_a_division_by_its_micro_batches(training: Any) -> None:
    losses(training, [31, 400], [100, 50], weights=[[1 / 581] * 2] * 2, accumulation=2)
    assert warned(training) == [(24, "warning")]


def test_tasks_that_weigh_as_the_script_wants(training: Any) -> None:
    losses(training, [100, 100], [10, 10], weights=[[0.01] * 2, [0.03] * 2], accumulation=2)
    assert warned(training) == "not observed"


@pytest.mark.parametrize(("ranks", "told"), [((0, 1), [(24, "warning")]), ((0,), "not observed")])
def test_what_ranks_reduce_by_hand_as_the_backward_has_left_it_is_weighed_by_the_loss(
    recorded: Any, ranks: tuple[int, ...], told: Any
) -> None:
    losses(recorded, [31, 400])
    for event in recorded.events:
        if event["event"] == "step":
            event["as_left"] = event["process"] in ranks
    assert warned(recorded) == told


def test_losses_without_ddp_say_nothing(recorded: Any) -> None:
    losses(recorded, [31, 400])
    assert warned(recorded) == "not observed"


def fails(run: Any, rank: int, message: str, line: int = 33, kind: str = "AttributeError") -> None:
    run.add(
        rank, "exception", kind=kind, message=message, traceback="", stack=[["/project/train.py", line, "log", False]]
    )


NOTHING = "'NoneType' object has no attribute 'write'"


@pytest.mark.parametrize("message", [NOTHING, "name 'writer' is not defined"])
def test_ranks_that_want_what_rank_zero_has(training: Any, message: str) -> None:
    training.train()
    fails(training, 1, message)
    assert ("DDP405", 33) in training.found()


def test_what_is_wanting_everywhere_is_another_defect(training: Any) -> None:
    training.train()
    for rank in range(2):
        fails(training, rank, NOTHING)
    assert training.judged().verdicts["DDP405"].word == "not observed"


def test_a_rank_zero_that_has_not_come_so_far_proves_nothing(training: Any) -> None:
    training.train_on(1)
    fails(training, 1, NOTHING)
    assert training.judged().verdicts["DDP405"].word == "not observed"


def test_another_error_of_one_rank_is_its_own(training: Any) -> None:
    training.train()
    fails(training, 1, "out of range", kind="IndexError")
    assert training.judged().verdicts["DDP405"].word == "not observed"


@pytest.mark.parametrize(("metrics", "said"), [([0.5, 0.8], [(52, "warning")]), ([0.5, 0.5], "held")])
def test_the_metric_of_a_schedule_is_that_of_all_ranks(training: Any, metrics: list[float], said: Any) -> None:
    for rank, metric in enumerate(metrics):
        training.add(rank, "schedule", schedule=0, kind="ReduceLROnPlateau", steps=None, site=training.site(12))
        training.add(rank, "scheduled", schedule=0, metric=metric, site=training.site(52))
    judged = training.judged()
    found = [(each.line, each.severity) for each in judged.findings if each.code == "DDP601"]
    assert (found or judged.verdicts["DDP601"].word) == said
