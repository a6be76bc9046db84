"""Verdicts on what a run shows of data, optimizers, buffers and files, over recorded events."""

from __future__ import annotations

import math
from typing import Any

import pytest
from validate_ddp.rehearse.child.validate_ddp_rehearsed.observers.schedules import over_after

ROWS = [[[1, 2]], [[3, 4]], [[5, 6]], [[7, 8]]]
"""Contents of batches of two samples, no two alike."""


def averages(run: Any, steps: int = 2, losses: Any = ((1.0, 2.0), (1.0, 2.0)), **options: Any) -> None:
    """Steps of an optimizer under no wrapper whose gradients every rank sends to the others; losses by rank."""
    run.optimizer(names=(None, None))
    for step in range(steps):
        for rank in range(run.world_size):
            run.calls += 1
            run.add(
                rank, "backward", n=run.calls, armed=[], group=None, ranks=[], waits=False, sync=True,
                site=run.site(25), loss=losses[rank][step],
            )  # fmt: skip
            for _ in range(2):
                run.call(rank, "all_reduce", 26, shape=[2], reduce="SUM", dtype="float32")
            run.step(rank, **options)


def stream(run: Any, contents: Any, turn: int = 0, epoch: int | None = None, steps: bool = True) -> None:
    """An epoch of an iterable data set: of each rank the contents of its batches."""
    run.every("iteration", loader=0, turn=turn, site=run.site(19), epoch=epoch)
    for rank, batches in enumerate(contents):
        for count, rows in enumerate(batches):
            run.add(rank, "batch", loader=0, turn=turn, count=count, size=2, rows=rows, site=run.site(20))
            if steps:
                run.train_on(rank)
    run.end(len(contents[0]), turn)


@pytest.mark.parametrize(("theirs", "found"), [((1.0, 2.0), {("DDP205", 8)}), ((1.5, 2.0), set())])
def test_ranks_that_draw_equal_batches_by_themselves_have_equal_losses(
    recorded: Any, theirs: Any, found: set[tuple[str, int]]
) -> None:
    recorded.every("seed", value="1337", site=recorded.site(8))
    averages(recorded, losses=((1.0, 2.0), theirs))
    assert recorded.found() == found


def test_losses_that_do_not_change_tell_nothing(recorded: Any) -> None:
    averages(recorded, losses=((1.0, 1.0), (1.0, 1.0)))
    assert recorded.found() == set()


@pytest.mark.parametrize(("second", "found"), [(0, {("DDP206", 12)}), (2, set())])
def test_workers_that_give_the_same_batches_do_not_share_the_data(recorded: Any, second: int, found: Any) -> None:
    recorded.wrapper()
    recorded.loader(shuffle=None, iterable=True, length=None, workers=2)
    recorded.optimizer()
    one, other = [ROWS[0], ROWS[second]], [[[[9, 10]]], [[[11, 12]]]]
    stream(recorded, [one, [other[0][0], other[0][0] if second == 0 else other[1][0]]])
    assert recorded.found() == found


@pytest.mark.parametrize(
    ("epochs", "again", "persistent", "found"),
    [((0, 1), True, True, {("DDP212", 12)}), ((0, 1), False, True, set()), ((0, 0), True, True, set()),
     ((0, 1), True, False, set())],
)  # fmt: skip
def test_persistent_workers_keep_the_epoch_that_they_began_with(
    recorded: Any, epochs: Any, again: bool, persistent: bool, found: Any
) -> None:
    recorded.wrapper()
    recorded.loader(shuffle=None, iterable=True, length=None, workers=1, persistent=persistent)
    recorded.optimizer()
    contents = [ROWS[:2], ROWS[2:]]
    stream(recorded, contents, 0, epochs[0])
    stream(recorded, contents if again else [each[::-1] for each in contents], 1, epochs[1])
    assert recorded.found() == found


def gradients(run: Any, without: int, frozen: int = 0, drops: bool = False) -> None:
    """Two steps on two parameters, ``without`` of which have no gradient."""
    run.every("optimizer", optimizer=0, kind="SGD", inner=False, site=run.site(14))
    run.every(
        "parameters", optimizer=0, names=[None, None], shapes=[[2], [2]], before=[1, 1], frozen=frozen,
    )  # fmt: skip
    for count in (1, 2):
        for rank in range(run.world_size):
            run.backward(rank, armed=False)
            if drops:
                run.add(rank, "zero_grad", optimizer=0, had=True, site=run.site(26))
            run.add(
                rank, "step", optimizer=0, count=count, grads=[None, None], params=[1, 1], site=run.site(27),
                rates=[0.1], without=without,
            )  # fmt: skip


@pytest.mark.parametrize(
    ("frozen", "drops", "why"),
    [(2, False, "they are frozen"), (0, False, "not those of the model"), (0, True, "thrown")],
)
def test_an_optimizer_without_any_gradient_trains_nothing(recorded: Any, frozen: int, drops: bool, why: str) -> None:
    gradients(recorded, without=2, frozen=frozen, drops=drops)
    finding = next(each for each in recorded.judged().findings if each.code == "DDP320")
    assert (finding.line, finding.severity) == (14, "error") and why in finding.message


def test_an_optimizer_of_which_one_parameter_trains_is_held(recorded: Any) -> None:
    gradients(recorded, without=1)
    assert recorded.judged().verdicts["DDP320"].word == "held"


def evaluated(run: Any, digests: Any) -> None:
    """A training epoch, an evaluation of all ranks, and what their buffers are then."""
    run.trains()
    run.every(
        "model", model=0, kind="Net", names=["norm.running_mean"], shapes=[[2]], trained=[], wrapped=[], buffers=[0],
    )  # fmt: skip
    run.epochs([[0, 1], [2, 3]])
    run.every(
        "loader", loader=1, length=4, batches=1, batch_size=2, numbered=None, iterable=False, site=run.site(13),
    )  # fmt: skip
    run.begin(0, loader=1)
    for rank in range(run.world_size):
        run.add(rank, "batch", loader=1, turn=0, count=0, indices=[rank, rank + 2], size=2, site=run.site(30))
    for rank in range(run.world_size):
        run.add(
            rank, "state", model=0, digests=[digests[rank]], training=False, grad=False, steps=1, backwards=0,
            site=run.site(29),
        )  # fmt: skip
    run.end(1, 0, loader=1)


@pytest.mark.parametrize(("digests", "word"), [((1, 2), "violated"), ((1, 1), "held"), ((1, None), "held")])
def test_buffers_that_differ_where_all_evaluate_are_named(recorded: Any, digests: Any, word: str) -> None:
    evaluated(recorded, digests)
    judged = recorded.judged()
    assert judged.verdicts["DDP321"].word == word
    assert [each.line for each in judged.findings if each.code == "DDP321"] == ([29] if word == "violated" else [])


def files(run: Any, barrier: bool, waited: bool = False, own_first: bool = False) -> None:
    """Rank 1 reads what rank 0 writes, and rank 0 reads it too."""
    path = "/project/best.pt"
    read = {"path": path, "site": run.site(32), "waited": waited}
    if own_first:
        run.add(0, "read", **read)
    run.add(1, "read", **read) if not barrier else None
    run.add(0, "save", path=path, tensors=1, wrapped=0, site=run.site(30))
    if barrier:
        run.call(0, "barrier", 31)
        run.call(1, "barrier", 31)
        run.add(1, "read", **read)
    run.add(0, "read", **read)


@pytest.mark.parametrize(
    ("how", "word"),
    [({"barrier": False}, "violated"), ({"barrier": True}, "held"), ({"barrier": False, "waited": True}, "held"),
     ({"barrier": False, "own_first": True}, "held")],
)  # fmt: skip
def test_a_file_is_read_on_another_rank_only_after_a_meeting(recorded: Any, how: Any, word: str) -> None:
    files(recorded, **how)
    judged = recorded.judged()
    assert judged.verdicts["DDP507"].word == word
    assert [(each.line, each.severity) for each in judged.findings if each.code == "DDP507"] == (
        [(32, "error")] if word == "violated" else []
    )


@pytest.mark.parametrize(("indices", "found"), [((0, 0), {("DDP102", 9)}), ((0, 1), set())])
def test_ranks_of_one_node_that_share_a_gpu_are_told(recorded: Any, indices: Any, found: Any) -> None:
    for rank, index in enumerate(indices):
        recorded.add(rank, "device", index=index, site=recorded.site(9), via="set_device")
    assert recorded.found() == found


@pytest.mark.parametrize(("second", "found"), [([[1, 2], [3, 2]], set()), ([[2, 2], [3, 2]], {("DDP407", 21)})])
def test_an_exchange_takes_from_each_rank_what_that_one_sends(recorded: Any, second: Any, found: Any) -> None:
    for rank, splits in enumerate(([[2, 3], [2, 1]], second)):
        recorded.call(rank, "all_to_all_single", 21, splits=splits, shape=[sum(splits[1])])
    assert recorded.found() == found


@pytest.mark.parametrize(("times", "found"), [(2, {("DDP602", 16)}), (1, set())])
def test_a_schedule_that_is_stepped_once_for_each_rank_is_over_too_early(recorded: Any, times: int, found: Any) -> None:
    recorded.optimizer()
    recorded.every("schedule", schedule=0, kind="LambdaLR", steps=None, optimizer=0, site=recorded.site(16))
    for step in range(8):
        for rank in (0, 1):
            recorded.train_on(rank, rates=[max(0.0, 1 - times * step / 8)])
            for _ in range(times):
                recorded.add(rank, "scheduled", schedule=0)
    assert {each for each in recorded.found() if each[0] == "DDP602"} == found


@pytest.mark.parametrize(("left", "found"), [(8, {("DDP602", 16)}), (1, set())])
def test_a_schedule_after_whose_end_the_run_goes_on_learns_nothing_then(recorded: Any, left: int, found: Any) -> None:
    recorded.optimizer()
    recorded.every("schedule", schedule=0, kind="LambdaLR", steps=None, optimizer=0, site=recorded.site(16))
    for step in range(20):
        for rank in (0, 1):
            recorded.train_on(rank, rates=[0.1 * (step < 20 - left)])
            recorded.add(rank, "scheduled", schedule=0)
    assert {each for each in recorded.found() if each[0] == "DDP602"} == found


@pytest.mark.parametrize(
    ("factor", "steps"),
    [
        (lambda step: max(0.0, 1 - step / 40), 40),
        (lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / 700))), 700),
        (lambda step: min(1.0, (step + 1) / 10), None),
        (lambda step: 0.99**step + 1e-3 * (step % 2), None),
        (lambda step: [1.0, 0.5][step], None),
    ],
)
def test_the_end_of_a_schedule_of_the_scripts_own_is_where_it_has_come_down(factor: Any, steps: int | None) -> None:
    assert over_after(factor) == steps


def shares(run: Any, reads: Any, **loader: Any) -> None:
    """An epoch of 8 samples; reads: by rank, the indices of its one batch."""
    run.wrapper()
    run.loader(shuffle=None, length=8, batches=1, sampler="Mine", **loader)
    run.optimizer()
    state = [{"kind": "Mine", "known": False}]
    for rank, indices in enumerate(reads):
        run.add(rank, "iteration", loader=0, turn=0, site=run.site(19), samplers=state)
        run.batch(rank, 0, 0, indices, rows=[[index + 100 for index in indices]])
        run.train_on(rank)
    run.end(1)


@pytest.mark.parametrize(
    ("reads", "found"),
    [
        (([0, 1, 2, 3], [2, 3, 4, 5]), set()),  # no more than padding may repeat
        (([0, 1, 2, 3], [0, 1, 2, 3]), {("DDP202", 12)}),
        (([0, 1, 2, 3], [1, 2, 3, 4]), {("DDP209", 12)}),
        (([0, 0, 1, 2], [2, 3, 3, 4]), set()),  # drawn with replacement
    ],
)
def test_shares_of_a_sampler_of_ones_own_may_not_overlap(recorded: Any, reads: Any, found: Any) -> None:
    shares(recorded, reads)
    assert recorded.found() == found


@pytest.mark.parametrize(("mesh", "found"), [([0, 2], set()), ([0, 1, 2, 3], {("DDP209", 11)})])
def test_ranks_of_a_mesh_that_split_the_model_read_the_same(record: Any, mesh: list[int], found: Any) -> None:
    run = record(world_size=4)
    run.every("sharded", kind="fully_shard", site=run.site(10), ranks=mesh)
    run.loader(shuffle=False, length=8, batches=1)
    run.optimizer(names=(None, None))
    for rank in range(4):
        share = rank // 2 if len(mesh) == 2 else rank % 2  # ranks 0 and 1 split the model
        state = {"kind": "DistributedSampler", "known": True, "seed": 0, "replicas": 2, "rank": share, "shuffle": False}
        run.add(rank, "iteration", loader=0, turn=0, site=run.site(19), samplers=[state])
        indices = list(range(share, 8, 2))
        run.batch(rank, 0, 0, indices, rows=[[index + 100 for index in indices]])
        run.train_on(rank, forward=False, grads=[None, None], params=[None, None])
    run.end(1)
    judged = run.judged()
    assert {(each.code, each.line) for each in judged.findings if each.code == "DDP209"} == found
    assert judged.facts["effective_batch_size"] == 4 * len(mesh)


def test_losses_of_what_all_ranks_have_gathered_are_equal_by_design(recorded: Any) -> None:
    recorded.optimizer(names=(None, None))
    for step in range(3):
        for rank in (0, 1):
            recorded.call(rank, "all_gather", 24, shape=[4, 8])
            recorded.calls += 1
            recorded.add(
                rank, "backward", n=recorded.calls, armed=[], group=None, ranks=[], waits=False, sync=True,
                site=recorded.site(25), loss=float(step),
            )  # fmt: skip
            for _ in range(2):
                recorded.call(rank, "all_reduce", 26, shape=[2], reduce="SUM")
            recorded.step(rank)
    assert recorded.found() == set()


def test_buffers_that_a_wrapper_broadcasts_differ_by_the_last_batch_alone(recorded: Any) -> None:
    recorded.calls += 1
    for rank in (0, 1):
        recorded.add(
            rank, "forward", n=90 + rank, ddp=0, grad=True, sync=True, training=True, waits=True, rows=4,
            site=recorded.site(22), group="0", ranks=[0, 1],
        )  # fmt: skip
        recorded.add(rank, "done", n=90 + rank)
    evaluated(recorded, (1, 2))
    assert [each.severity for each in recorded.judged().findings if each.code == "DDP321"] == ["info"]


def test_the_cause_stands_above_what_its_peers_say_of_it(recorded: Any) -> None:
    recorded.outcome = "failed"
    errors = (("RuntimeError", "Connection closed by peer [127.0.0.1]"), ("ValueError", "bad sample 17"))
    for rank, (kind, message) in enumerate(errors):
        frame = ["/project/train.py", 30 + rank, "train", False]
        recorded.add(rank, "exception", kind=kind, message=message, stack=[frame], traceback=message)
        recorded.events.append({"event": "ended", "rank_of": rank, "code": 1})
    failure = recorded.judged().failure
    assert (failure.rank, failure.message, failure.place) == (1, "ValueError: bad sample 17", "train.py:31")


@pytest.mark.parametrize(("theirs", "size"), [([[7, 8]], 2), ([[9, 10]], 4)])
def test_ranks_that_read_the_same_for_parts_of_a_model_make_one_batch(recorded: Any, theirs: Any, size: int) -> None:
    recorded.loader(shuffle=None)
    recorded.optimizer(names=(None, None))
    recorded.begin()
    for rank, rows in enumerate(([[7, 8]], theirs)):
        recorded.batch(rank, 0, 0, [0, 1], rows=rows)
        recorded.backward(rank, armed=False)
        recorded.step(rank, grads=[None, None], params=[None, None])
    recorded.end(1)
    assert recorded.judged().facts["effective_batch_size"] == size
