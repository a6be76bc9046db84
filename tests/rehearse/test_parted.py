"""What ranks that hold parts of the same layers call the model with, over recorded events: DDP210."""

from __future__ import annotations

from typing import Any

import pytest


def called(run: Any, inputs: list[list[int | None]], by: str = "ColwiseParallel") -> None:
    """Two ranks, with one model whose layers are split between them; of each call the digests of both."""
    run.every("parted", ranks=[0, 1], by=[by], site=run.site(20))
    for pair in inputs:
        for rank, digest in enumerate(pair):
            run.add(
                rank, "called", model=0, training=True, grad=True, reads=[], rows=[4], talks=True, inputs=[digest],
                site=run.site(30),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ([[1, 2], [3, 4]], "violated"),
        ([[1, 1], [3, 3]], "held"),
        ([[1, 2], [3, 3]], "not observed"),
        ([[None, None]], "not observed"),
        ([], "not observed"),
    ],
)
def test_the_batches_of_a_group_are_compared(recorded: Any, inputs: list[list[int | None]], word: str) -> None:
    called(recorded, inputs)
    judged = recorded.judged()
    assert judged.verdicts["DDP210"].word == word
    assert [(each.code, each.line, each.severity) for each in judged.findings] == (
        [("DDP210", 30, "warning")] if word == "violated" else []
    )


def test_experts_are_given_what_is_theirs(recorded: Any) -> None:
    called(recorded, [[1, 2]], by="ExpertParallel")
    assert recorded.word("DDP210") == "not observed"
