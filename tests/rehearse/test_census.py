"""What ranks compute with and no optimizer moves, from recorded events: where it must be the same on all of them."""

from __future__ import annotations

from typing import Any

import pytest

WEIGHTS = (("weight", [2]), ("bias", [3]))


def model(run: Any, number: int = 0, parts: Any = WEIGHTS, **places: Any) -> None:
    """Every rank calls a module made of these."""
    fields = {"trained": [], "wrapped": [], "buffers": [], **places}
    names, shapes = [name for name, _ in parts], [shape for _, shape in parts]
    run.every("model", model=number, kind="Net", names=names, shapes=shapes, **fields)


def look(run: Any, steps: int, *digests: Any, number: int = 0, line: int = 22, **mode: Any) -> None:
    """What each rank holds when it calls it after so many steps."""
    for rank, held in enumerate(digests):
        run.add(
            rank, "state", model=number, digests=held, steps=steps, backwards=0, site=run.site(line),
            **{"training": True, "grad": True, **mode},
        )  # fmt: skip


def called(run: Any, reads: Any = (), rows: Any = (4,), talks: bool = False) -> None:
    run.every("called", model=0, training=True, grad=True, reads=list(reads), rows=list(rows), talks=talks)


def said(run: Any) -> list[tuple[str, int, str]]:
    return [row for row in run.rated() if row[0] == "DDP321"]


@pytest.fixture
def trained(recorded: Any) -> Any:
    """Ranks that train one model under a wrapper."""
    recorded.trains()
    recorded.train()
    return recorded


def test_weights_under_a_wrapper_that_are_moved_apart_are_an_error_at_the_line_that_moves_them(trained: Any) -> None:
    model(trained, trained=[0, 1], wrapped=[0, 1])
    look(trained, 0, [1, 2], [1, 2])
    trained.every("changed", model=0, places=[1], line=["/project/train.py", 31, "step", False])
    look(trained, 1, [1, 3], [1, 4])
    assert said(trained) == [("DDP321", 31, "error")]
    (finding,) = trained.judged().findings
    assert "`bias`" in finding.message and "after step 1" in finding.message


def test_weights_that_are_averaged_now_and_then_are_left_alone(trained: Any) -> None:
    model(trained, trained=[0, 1], wrapped=[0, 1])
    for steps, held in enumerate(([2, 2], [3, 4], [5, 5])):
        look(trained, steps, *([1, each] for each in held))
    assert said(trained) == []
    assert trained.judged().verdicts["DDP321"].word == "held"


@pytest.mark.parametrize(
    ("shown", "shape", "first", "expected"),
    [
        ({"reads": [1]}, [6], 1, "warning"),
        ({"reads": []}, [6], 1, None),  # only written, as by what counts
        ({"reads": [1], "talks": True}, [6], 1, None),  # of a part of the model
        ({"reads": [1], "rows": [4]}, [4, 6], 1, None),  # of the samples
        ({"reads": [1]}, [6], 2, None),  # never made equal: by design
    ],
)
def test_a_buffer_that_parts_is_named_where_the_result_depends_on_it(
    trained: Any, shown: Any, shape: Any, first: int, expected: str | None
) -> None:
    model(trained, parts=(("weight", [2]), ("bias", shape)), trained=[0], buffers=[1])
    look(trained, 0, [None, 1], [None, first])
    look(trained, 1, [None, 3], [None, 4])
    called(trained, **shown)
    assert said(trained) == ([("DDP321", 22, expected)] if expected else [])


@pytest.mark.parametrize(("first", "line"), [((5, 6), 10), ((5, 5), 24)])
def test_a_copy_of_the_model_that_differs_is_named_where_the_model_is_made_equal(
    trained: Any, first: Any, line: int
) -> None:
    model(trained, trained=[0, 1], wrapped=[0, 1])
    model(trained, 1)
    look(trained, 0, [1, 2], [1, 2])
    look(trained, 0, [3, first[0]], [3, first[1]], number=1, line=24, grad=False)
    look(trained, 1, [3, 7], [3, 8], number=1, line=24, grad=False)
    assert said(trained) == [("DDP321", line, "warning")]


@pytest.mark.parametrize(("ranks", "rows"), [([0, 1], [("DDP321", 24, "warning")]), ([0], [])])
def test_a_copy_of_a_sharded_model_that_differs_is_named(recorded: Any, ranks: Any, rows: Any) -> None:
    """Shards of all ranks are one model; those of a part of the ranks may be others'."""
    recorded.loader()
    recorded.optimizer(names=(None, None))
    recorded.every("sharded", kind="fully_shard", site=recorded.site(9), ranks=ranks)
    recorded.train(forward=False)
    model(recorded, trained=[0, 1])
    model(recorded, 1)
    look(recorded, 0, [3, 5], [3, 6], number=1, line=24, grad=False, training=False)
    assert said(recorded) == rows


@pytest.mark.parametrize("parts", [(("weight", [2]), ("bias", [4])), (("weight", [2]),)])
def test_what_is_made_of_something_else_may_differ(trained: Any, parts: Any) -> None:
    model(trained, trained=[0, 1], wrapped=[0, 1])
    model(trained, 1, parts)
    look(trained, 0, [1, 2], [1, 2])
    look(trained, 0, [3, 5][: len(parts)], [4, 6][: len(parts)], number=1, grad=False)
    assert said(trained) == []


def test_models_that_not_all_ranks_have_are_not_compared(trained: Any) -> None:
    model(trained, trained=[0, 1], wrapped=[0, 1])
    trained.add(0, "model", model=1, kind="Net", names=["a"], shapes=[[2]], trained=[0], wrapped=[0], buffers=[])
    look(trained, 0, [1, 2], [1, 2])
    look(trained, 1, [1, 3])
    trained.add(0, "state", model=1, digests=[4], steps=1, backwards=0, training=True, grad=True, site=trained.site(22))
    assert said(trained) == []


@pytest.mark.parametrize(
    ("reads", "held", "expected"),
    [
        ([1], [(1, 1), (3, 4), (5, 6)], "warning"),
        ([], [(1, 1), (3, 4), (5, 6)], None),  # running statistics, which training only writes
        ([1], [(1, 1), (3, 3), (4, 4)], None),  # what moves it is made of all ranks' data
        ([1], [(1, 1), (3, 4)], None),  # once: it may be the beginning
        ([1], [(1, 2), (3, 4), (5, 6)], None),
    ],
)
def test_a_buffer_that_each_rank_moves_and_the_wrapper_overwrites_is_named(
    trained: Any, reads: Any, held: Any, expected: str | None
) -> None:
    model(trained, parts=(("weight", [2]), ("codes", [6])), trained=[0], wrapped=[0], buffers=[1])
    for steps, (one, two) in enumerate(held):
        look(trained, steps, [None, one], [None, two], line=21, overwritten=True)
        look(trained, steps, [None, one], [None, one])
    called(trained, reads)
    trained.every("changed", model=0, places=[1], line=["/project/train.py", 31, "step", False])
    assert said(trained) == ([("DDP321", 31, expected)] if expected else [])
