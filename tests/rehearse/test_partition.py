"""Who reads what: samplers that do not fit together, data that is shared out twice, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.rehearse.judging import observers


def level(rank: int, kind: str = "DistributedSampler", **fields: Any) -> dict[str, Any]:
    """What a sampler of torch is set to on a rank."""
    own = {"kind": kind, "known": True, "seed": 0, "epoch": 0, "replicas": 2, "rank": rank, "shuffle": True}
    return {**own, "drop_last": False, **fields}


def epoch(run: Any, read: list[list[int]], levels: list[list[dict[str, Any]]], turn: int = 0, **fields: Any) -> None:
    """One epoch in one batch. read: indices by rank; levels: samplers by rank; fields: of each batch."""
    for rank, indices in enumerate(read):
        run.add(rank, "iteration", loader=0, turn=turn, site=run.site(19), samplers=levels[rank])
        values = {name: value(rank, indices) for name, value in fields.items()}
        run.batch(rank, turn, 0, indices, **values)
        run.train_on(rank)
    run.end(1, turn)


def samples(rank: int, indices: list[int]) -> list[list[int]]:
    """What is in the rows: the same under each index on every rank."""
    return [[100 + index for index in indices]]


def messages(run: Any, code: str) -> list[str]:
    return [each.message for each in run.judged().findings if each.code == code]


@pytest.fixture
def training(recorded: Any) -> Any:
    recorded.trains(length=8)
    return recorded


def test_shares_that_fit_together_are_held(training: Any) -> None:
    epoch(training, [[0, 2, 4, 6], [1, 3, 5, 7]], [[level(0)], [level(1)]], rows=samples)
    judged = training.judged()
    assert not judged.findings
    assert [judged.verdicts[code].word for code in ("DDP202", "DDP209", "DDP211")] == ["held"] * 3


def test_a_sample_that_fills_up_the_last_batch_is_no_finding(training: Any) -> None:
    epoch(training, [[0, 2, 4, 6], [1, 3, 5, 0]], [[level(0)], [level(1)]], rows=samples)
    assert "DDP209" not in {code for code, _ in training.found()}


def test_data_of_fewer_samples_than_ranks_is_repeated_by_the_padding_alone(recorded: Any) -> None:
    recorded.trains(length=1)
    epoch(recorded, [[0], [0]], [[level(0)], [level(1)]], rows=samples)
    assert recorded.word("DDP202") == "not observed"


def test_shares_that_are_one_are_no_padding(recorded: Any) -> None:
    recorded.trains(length=2)
    epoch(recorded, [[0], [0]], [[level(0)], [level(0)]], rows=samples)
    assert recorded.found() == {("DDP209", 11)}


def test_seeds_that_differ_are_named_with_what_is_missed(training: Any) -> None:
    epoch(training, [[0, 2, 4, 6], [1, 2, 5, 6]], [[level(0, seed=17)], [level(1, seed=18)]], rows=samples)
    (message,) = messages(training, "DDP209")
    assert "seeds differ: 17 on rank 0, 18 on rank 1" in message and "2 of them more than once, and misses 2" in message
    judged = training.judged()
    assert training.found() == {("DDP209", 11)} and judged.verdicts["DDP202"].word == "not observed"


def test_seeds_of_samplers_that_do_not_shuffle_do_not_matter(training: Any) -> None:
    levels = [[level(0, seed=17, shuffle=False)], [level(1, seed=18, shuffle=False)]]
    epoch(training, [[0, 2, 4, 6], [1, 3, 5, 7]], levels, rows=samples)
    assert not training.judged().findings


def test_epochs_that_differ_are_named(training: Any) -> None:
    epoch(training, [[0, 2, 4, 6], [1, 3, 4, 7]], [[level(0)], [level(1, epoch=9)]], rows=samples)
    assert "epochs differ: 0 on rank 0, 9 on rank 1" in messages(training, "DDP209")[0]


def test_an_epoch_that_is_set_on_one_rank_shows_in_the_second(training: Any) -> None:
    for turn, read in enumerate(([[0, 2, 4, 6], [1, 3, 5, 7]], [[1, 2, 5, 6], [1, 3, 5, 7]])):
        epoch(training, read, [[level(0, epoch=turn)], [level(1)]], turn, rows=samples)
    assert "epochs differ: 1 on rank 0, 0 on rank 1" in messages(training, "DDP209")[0]
    assert training.found() == {("DDP209", 11)}  # that rank 1 repeats its order comes of it


def test_shares_of_a_larger_world_are_nobodys(training: Any) -> None:
    epoch(training, [[0, 4], [1, 5]], [[level(0, replicas=4)], [level(1, replicas=4)]], rows=samples)
    (message,) = messages(training, "DDP209")
    assert "made for 4 replicas, and 2 ranks" in message and "misses 4" in message


def test_one_rank_for_all_samplers_is_named_once(training: Any) -> None:
    epoch(training, [[0, 2, 4, 6], [0, 2, 4, 6]], [[level(0)], [level(0)]], rows=samples)
    assert training.found() == {("DDP209", 11)}
    assert "the share of 1 is nobody's" in messages(training, "DDP209")[0]


def test_ranks_of_a_mesh_that_read_the_same_share_are_left_alone(record: Any) -> None:
    run = record(4)
    run.loader(length=8)
    run.optimizer(names=(None, None))
    epoch(run, [[0, 2, 4, 6], [0, 2, 4, 6], [1, 3, 5, 7], [1, 3, 5, 7]], [[level(at // 2)] for at in range(4)])
    assert not {code for code, _ in run.found()} & {"DDP202", "DDP209", "DDP211", "DDP303"}


def test_groups_with_a_model_and_a_seed_of_their_own_are_left_alone(record: Any) -> None:
    run = record(4)
    run.loader(length=8)
    run.optimizer(names=(None, None))
    levels = [[level(at % 2, seed=at // 2)] for at in range(4)]
    epoch(run, [[0, 2, 4, 6], [1, 3, 5, 7], [0, 1, 2, 3], [4, 5, 6, 7]], levels)
    assert "DDP209" not in {code for code, _ in run.found()}


def test_a_sampler_inside_what_shares_out_again_is_shared_out_twice(training: Any) -> None:
    levels = [[level(rank, "BatchSamplerShard"), level(rank)] for rank in (0, 1)]
    epoch(training, [[0, 4], [3, 7]], levels, rows=samples)
    (message,) = messages(training, "DDP211")
    assert "by `DistributedSampler` and then by `BatchSamplerShard`: an epoch reads 4 of 8 samples" in message
    judged = training.judged()
    assert training.found() == {("DDP211", 11)} and judged.verdicts["DDP209"].word == "not observed"


def test_batches_that_are_shared_out_once_are_right(training: Any) -> None:
    plain = {"kind": "SeedableRandomSampler", "known": True, "seed": 3, "epoch": 0}
    levels = [[level(rank, "BatchSamplerShard"), {"kind": "BatchSampler", "known": True}, plain] for rank in (0, 1)]
    epoch(training, [[0, 4, 1, 5], [3, 7, 2, 6]], levels, rows=samples)
    assert not training.judged().findings


def test_parts_by_rank_that_a_sampler_shares_out_again(recorded: Any) -> None:
    recorded.wrapper()
    recorded.loader(length=4)
    for rank, event in enumerate(each for each in recorded.events if each["event"] == "loader"):
        event.update(part=rank, whole=8, dataset="Subset")
    recorded.optimizer()
    for turn, picked in enumerate(([0, 2], [1, 3])):
        read = [[each - each % 2 + rank for each in picked] for rank in (0, 1)]
        epoch(recorded, read, [[level(0)], [level(1)]], turn, whole=lambda rank, got: [2 * each + rank for each in got])
    (message,) = messages(recorded, "DDP211")
    assert "by a slice of its own on each rank and then by `DistributedSampler`: an epoch reads 4 of 8" in message


@pytest.mark.parametrize("constant", [True, False])
def test_lists_by_rank_are_told_from_augmented_samples(training: Any, constant: bool) -> None:
    def content(turn: int) -> Any:
        # By list: other samples on each rank, equal when they are read again. Augmented: never equal.
        return lambda rank, got: [[1000 * rank + (0 if constant else 50 * turn) + each for each in got]]

    for turn, read in enumerate(([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 4, 5], [2, 3, 6, 7]])):
        epoch(training, read, [[level(0)], [level(1)]], turn, rows=content(turn))
    assert [code for code, _ in training.found()] == (["DDP211"] if constant else [])
    assert (training.judged().facts["samples"] is None) is constant


@pytest.mark.parametrize(("shift", "found"), [(20, set()), (17, set()), (10, {("DDP209", 12)})])
def test_orders_that_differ_without_a_known_reason_are_named(recorded: Any, shift: int, found: Any) -> None:
    recorded.trains(shuffle=None, length=40 if shift == 20 else 20 + shift)
    order = {"kind": "RandomSampler", "known": True, "replacement": False}
    for rank in (0, 1):
        levels = [level(rank, "BatchSamplerShard"), order]
        recorded.add(rank, "iteration", loader=0, turn=0, site=recorded.site(19), samplers=levels)
        for count in range(10):
            indices = [shift * rank + 2 * count + each for each in (0, 1)]
            recorded.batch(rank, 0, count, indices, rows=samples(rank, indices))
            recorded.train_on(rank)
        recorded.add(rank, "iterated", loader=0, turn=0, batches=10, exhausted=True)
    assert recorded.found() == found  # of two batches of two the samples may be repeated, one for each rank


@pytest.mark.parametrize("kind", ["WeightedRandomSampler", "SubsetRandomSampler", "OwnSampler"])
def test_samplers_that_choose_may_leave_out_and_repeat(recorded: Any, kind: str) -> None:
    recorded.trains(shuffle=None, length=40)
    levels = [[{"kind": kind, "known": kind != "OwnSampler", "replicas": 2, "rank": rank}] for rank in (0, 1)]
    epoch(recorded, [[0, 1, 2, 3], [2, 7, 7, 5]], levels, rows=samples)
    assert "DDP209" not in {code for code, _ in recorded.found()}


def test_a_sampler_for_repeated_augmentation_gives_ranks_the_same_samples(recorded: Any) -> None:
    recorded.trains(shuffle=None, length=40)
    levels = [[{"kind": "RASampler", "known": False, "replicas": 2, "rank": rank}] for rank in (0, 1)]
    epoch(recorded, [[0, 1, 2, 3], [0, 1, 2, 3]], levels, rows=samples)
    assert recorded.word("DDP202") == "not observed"


def test_batches_taken_in_turn_are_each_ranks_own(recorded: Any) -> None:
    recorded.trains(shuffle=None, length=40)
    for rank in (0, 1):
        recorded.add(rank, "iteration", loader=0, turn=0, site=recorded.site(19), samplers=[])
        for count in range(10):
            indices = [4 * count, 4 * count + 1]
            recorded.batch(rank, 0, count, indices, rows=samples(rank, indices))
            if count % 2 == rank:
                recorded.train_on(rank)
        recorded.add(rank, "iterated", loader=0, turn=0, batches=10, exhausted=True)
    assert not recorded.judged().findings


def test_a_split_that_differs_explains_what_is_missed(recorded: Any) -> None:
    assert "DDP204" in observers()
    for rank in (0, 1):
        recorded.add(rank, "split", digests=[rank], lengths=[4], site=recorded.site(9))
    recorded.wrapper()
    recorded.loader(length=4)
    for rank, event in enumerate(each for each in recorded.events if each["event"] == "loader"):
        event.update(part=rank, whole=8, dataset="Subset")
    recorded.optimizer()
    epoch(
        recorded, [[0, 2], [1, 3]], [[level(0)], [level(1)]], whole=lambda rank, got: [2 * each + rank for each in got]
    )
    assert recorded.found() == {("DDP204", 9)}
