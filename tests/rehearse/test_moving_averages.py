"""Moving averages in low precision, over recorded events: DDP309."""

from __future__ import annotations

from typing import Any

import pytest


def update(run: Any, count: int, should: int, still: int, decay: float | None = 0.999, line: int = 30) -> None:
    """One update of one tensor, on every rank."""
    run.every(
        "average", function="lerp_", dtype="bfloat16", decay=decay, count=count, should=should, still=still,
        site=run.site(line),
    )  # fmt: skip


def test_an_average_that_stands_still_is_named_at_its_update(recorded: Any) -> None:
    for count in (1, 2):
        update(recorded, count, 100, 97)
    (finding,) = recorded.judged().findings
    assert (finding.code, finding.line, finding.severity) == ("DDP309", 30, "warning")
    assert "bfloat16" in finding.message and "97%" in finding.message and "decay 0.999" in finding.message


def test_a_decay_that_is_not_known_is_not_told(recorded: Any) -> None:
    for count in (1, 2):
        update(recorded, count, 100, 97, decay=None)
    assert "decay" not in recorded.judged().findings[0].message


@pytest.mark.parametrize(("still", "found"), [(50, set()), (51, {("DDP309", 30)})])
def test_more_than_half_must_stand_still(recorded: Any, still: int, found: set[tuple[str, int]]) -> None:
    for count in (1, 2):
        update(recorded, count, 100, still)
    judged = recorded.judged()
    assert {(each.code, each.line) for each in judged.findings} == found
    assert judged.verdicts["DDP309"].word == ("violated" if found else "held")


@pytest.mark.parametrize(("counts", "should"), [((1,), 100), ((1, 2), 1), ((1, 2), 0)])
def test_one_update_or_a_few_elements_say_nothing(recorded: Any, counts: tuple[int, ...], should: int) -> None:
    for count in counts:
        update(recorded, count, should, should)
    assert recorded.word("DDP309") == "not observed"


def test_a_decay_that_grows_has_not_shown_what_it_will_be(recorded: Any) -> None:
    for count, decay in ((1, 0.9), (2, 0.92)):
        update(recorded, count, 100, 0, decay=decay)
    assert recorded.judged().verdicts["DDP309"].word == "not observed"


def test_an_average_in_full_precision_is_held(recorded: Any) -> None:
    recorded.every("average", dtype="float32", site=recorded.site(30))
    assert recorded.word("DDP309") == "held"


def test_each_line_is_judged_alone(recorded: Any) -> None:
    for count in (1, 2):
        update(recorded, count, 100, 100, line=30)
        update(recorded, count, 1000, 0, line=31)
    assert recorded.found() == {("DDP309", 30)}


def shards(run: Any, *ranks: int, members: tuple[int, ...] = (0, 1), line: int = 30) -> None:
    """These ranks update an average of what is sharded over the members."""
    for rank in ranks:
        run.add(rank, "averaged_shards", ranks=list(members), site=run.site(line))


@pytest.mark.parametrize(
    ("updating", "further", "rows"),
    [
        ((0,), (0, 1), [("DDP321", 30, "warning")]),
        ((0, 1), (0, 1), []),
        ((0,), (0,), []),  # the other rank may have been about to
    ],
)
def test_an_average_of_shards_that_a_rank_never_updates_is_named(
    recorded: Any, updating: tuple[int, ...], further: tuple[int, ...], rows: Any
) -> None:
    recorded.optimizer(names=(None, None))
    recorded.train(forward=False)
    shards(recorded, *updating)
    for rank in further:
        recorded.train_on(rank, forward=False)
    assert [row for row in recorded.rated() if row[0] == "DDP321"] == rows


def test_replicas_of_shards_may_be_averaged_on_one_of_them(record: Any) -> None:
    run = record(4)
    run.optimizer(names=(None, None))
    run.train(forward=False)
    shards(run, 0, 1)
    run.train(forward=False)
    assert [row for row in run.rated() if row[0] == "DDP321"] == []
