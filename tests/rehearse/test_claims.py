"""What a script says of its batch size: which lines say it, and over recorded events whether it is so. DDP604."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.rules.ddp604_learning_rate_not_scaled_as_claimed import claimed


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("effective batch size: 64", 64),
        ("Effective batch size = 64", 64),
        ("effective_batch_size=64", 64),
        ("  Total train batch size (w. parallel, distributed & accumulation) = 16", 16),
        ("batch size per GPU: 8, global batch size: 64, accumulation 4", 64),
        ("Global Batch Size 1,024 (128 per GPU x 8 GPUs)", 1024),
        ("effective batch size is 8 x 4 x 2 = 64", 64),
        ("effective batch size 8 * 4 * 2", 64),
        ("total batch size of 256 on 8 GPUs", 256),
        ("total_batch_size: 32", 32),
    ],
)
def test_a_batch_size_of_all_ranks_is_read(text: str, size: int) -> None:
    claim = claimed(text)
    assert claim is not None and claim.size == size


@pytest.mark.parametrize(
    "text",
    [
        "batch size: 8",
        "effective batch size (tokens): 524288",
        "global batch size: 524,288 tokens",
        "total batch size per GPU: 8",
        "Total batch size = 8 per device",
        "effective batch size: 0.5M tokens",
        "total batch size 12.5% of the memory",
        "total batches: 40",
        "global batch 17 of 40",
        "Namespace(batch_size=8, total_batch_size=256, lr=0.1, epochs=3, seed=0)",
        "{'global_batch_size': 64, 'lr': 0.1, 'epochs': 3, 'seed': 0}",
        "effective batch size unknown",
    ],
)
def test_what_is_said_of_something_else_is_left_alone(text: str) -> None:
    assert claimed(text) is None


def train(run: Any, accumulation: int = 1, batches: int = 4) -> None:
    """An epoch of batches of 4 rows on every rank, with a step every ``accumulation`` batches."""
    run.begin()
    for rank in range(run.world_size):
        for count in range(batches):
            run.batch(rank, 0, count, [count * 8 + rank * 4 + each for each in range(4)])
            run.train_on(rank, step=(count + 1) % accumulation == 0)
        run.add(rank, "iterated", loader=0, turn=0, batches=batches, exhausted=True)


def said(run: Any) -> tuple[set[tuple[str, int]], str]:
    """Findings of DDP604, and its word."""
    judged = run.judged()
    return {(each.code, each.line) for each in judged.findings if each.code == "DDP604"}, judged.verdicts["DDP604"].word


@pytest.mark.parametrize(
    ("text", "accumulation", "word"),
    [
        ("effective batch size: 8", 1, "held"),
        ("effective batch size: 16", 1, "violated"),
        ("effective batch size: 4", 1, "violated"),
        ("effective batch size: 16", 2, "held"),
        ("effective batch size: 8", 2, "violated"),
        ("global batch size: 8", 2, "held"),  # of all ranks, and of one micro-batch
        ("total train batch size (with accumulation): 8", 2, "violated"),
        ("total batch size: 8192", 2, "not observed"),  # of tokens, as large as it is
    ],
)
def test_the_number_is_compared_with_the_rows_of_a_step(training: Any, text: str, accumulation: int, word: str) -> None:
    training.add(0, "claim", text=text, site=training.site(16))
    train(training, accumulation)
    assert said(training) == ({("DDP604", 16)} if word == "violated" else set(), word)


def test_the_message_tells_what_was_read(training: Any) -> None:
    training.add(0, "claim", text="effective batch size: 32", site=training.site(16))
    train(training, 2)
    (message,) = [each.message for each in training.judged().findings if each.code == "DDP604"]
    assert "32" in message and "16 rows" in message and "2 ranks, 2 micro-batches of 4" in message


def test_without_a_whole_step_nothing_was_observed(training: Any) -> None:
    training.add(0, "claim", text="effective batch size: 64", site=training.site(16))
    train(training, accumulation=8)
    assert said(training) == (set(), "not observed")


def test_an_epoch_that_was_cut_does_not_count_its_last_step(training: Any) -> None:
    training.add(0, "claim", text="effective batch size: 32", site=training.site(16))
    train(training, accumulation=3, batches=3)
    for event in training.events:
        if event["event"] == "iterated":
            event["exhausted"] = False
    assert said(training) == (set(), "not observed")


def test_ranks_that_share_samples_are_left_alone(training: Any) -> None:
    training.add(0, "claim", text="effective batch size: 4", site=training.site(16))
    train(training)
    for event in training.events:
        if event["event"] == "forward":
            event["ranks"] = [event["process"]]
    assert said(training) == (set(), "not observed")
