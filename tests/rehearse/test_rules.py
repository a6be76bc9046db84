"""Rules over recorded events: each defect is named at its line, and what looks like it is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.catalogue import every, load
from validate_ddp.rehearse.judging import observers


def test_every_rule_says_not_observed_of_an_empty_run(recorded: Any) -> None:
    recorded.outcome = "stopped"
    assert {verdict.word for verdict in recorded.judged().verdicts.values()} == {"not observed"}


def test_rules_that_look_at_a_run_are_in_the_catalogue_as_ones_that_a_run_shows() -> None:
    looking = {stub.code for stub in every() if hasattr(load(stub), "observe")}
    assert looking == {stub.code for stub in every() if "R" in load(stub).EVIDENCE} == set(observers())


def test_an_order_that_repeats_is_a_missing_set_epoch(training: Any) -> None:
    training.epochs([[3, 1, 2, 5], [0, 4, 7, 6]], [[3, 1, 2, 5], [0, 4, 7, 6]])
    assert training.found() == {("DDP201", 11)}


def test_another_order_is_held(training: Any) -> None:
    training.epochs([[3, 1, 2, 5], [0, 4, 7, 6]], [[0, 1, 6, 5], [3, 4, 7, 2]])
    assert training.word("DDP201") == "held"


def test_a_sampler_that_does_not_shuffle_may_repeat(recorded: Any) -> None:
    recorded.trains(shuffle=False)
    recorded.epochs([[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]])
    assert not recorded.judged().findings


def test_ranks_that_read_the_same_samples_are_named(recorded: Any) -> None:
    recorded.trains(shuffle=None, length=8)
    recorded.epochs([[3, 1, 2, 5]] * 2, [[0, 1, 6, 5]] * 2, rows=[[10, 11, 12, 13]])
    assert recorded.found() == {("DDP202", 12)}


def test_a_data_set_cut_by_rank_has_equal_indices_of_other_samples(recorded: Any) -> None:
    recorded.trains(shuffle=None, length=8)
    recorded.begin()
    for rank in (0, 1):
        recorded.batch(rank, 0, 0, [3, 1, 2, 5], rows=[[rank * 100 + each for each in range(4)]])
        recorded.train_on(rank)
    recorded.end()
    judged = recorded.judged()
    assert not judged.findings and judged.verdicts["DDP202"].word == "held"
    assert judged.facts["samples"] is None


def test_equal_iterable_batches_are_named(recorded: Any) -> None:
    recorded.trains(shuffle=None, iterable=True)
    recorded.begin()
    for rank in (0, 1):
        recorded.add(
            rank, "batch", loader=0, turn=0, count=0, indices=None, size=4, site=recorded.site(20), rows=[[1, 2, 3, 4]]
        )
        recorded.train_on(rank)
    assert ("DDP206", 12) in recorded.found()


def test_a_skipped_backward_is_a_divergent_exit(training: Any) -> None:
    training.begin()
    for rank in (0, 1):
        for count in range(3):
            training.batch(rank, 0, count, [rank * 8 + count])
            if (rank, count) != (1, 1):
                training.train_on(rank)
        training.add(rank, "iterated", loader=0, turn=0, batches=3, exhausted=True)
    assert {code for code, _ in training.found()} == {"DDP404"}


def test_a_forward_round_the_wrapper_is_named_where_gradients_differ(training: Any) -> None:
    for rank in (0, 1):
        training.train_on(rank, forward=False, bypass=True, grads=[rank, rank])
    assert training.found() == {("DDP301", 23)}


def test_gradients_averaged_by_hand_are_left_alone(training: Any) -> None:
    training.train(forward=False, bypass=True)
    assert not training.judged().findings


def test_parameters_outside_the_wrapper_that_drift_are_named(recorded: Any) -> None:
    recorded.wrapper()
    recorded.optimizer(names=((0, "weight"), None))
    for rank in (0, 1):
        recorded.train_on(rank, grads=[1, rank], params=[2, 20 + rank])
    assert recorded.rated() == [("DDP303", 14, "error")]


def test_parameters_outside_the_wrapper_that_stay_equal_are_left_alone(recorded: Any) -> None:
    recorded.wrapper()
    recorded.optimizer(names=((0, "weight"), None))
    recorded.train()
    assert not recorded.judged().findings


def test_a_loop_that_one_rank_goes_round_more_often_is_the_place(recorded: Any) -> None:
    for rank in range(2):
        recorded.call(rank, "all_reduce", 30)
    waiting = recorded.call(0, "barrier", 41, done=False)
    recorded.hang(r0=waiting, r1=recorded.call(1, "all_reduce", 30, done=False))
    assert recorded.found() == {("DDP407", 30)}


@pytest.mark.parametrize("reducing", [2, 4])
def test_reductions_of_every_micro_batch_are_a_waste(training: Any, reducing: int) -> None:
    for rank in (0, 1):
        for count in range(2 * reducing):
            training.train_on(rank, step=(count + 1) % reducing == 0)
    assert training.found() == {("DDP304", 25)}
    assert training.judged().facts["accumulation"] == reducing


def test_two_losses_with_a_backward_each_are_no_accumulation(training: Any) -> None:
    for rank in (0, 1):
        for _ in range(3):
            training.backward(rank, line=30)
            training.backward(rank, line=31)
            training.step(rank)
    assert not training.judged().findings


def test_forwards_that_never_synchronise_are_named(training: Any) -> None:
    for rank in (0, 1):
        for _ in range(2):
            training.train_on(rank, sync=False, grads=[rank, rank])
    assert training.found() == {("DDP305", 22)}


@pytest.mark.parametrize(("exhausted", "told"), [(False, set()), (True, {("DDP305", 22)})])
def test_a_loader_that_is_cut_short_ends_before_the_batch_that_synchronises(
    training: Any, exhausted: bool, told: set[Any]
) -> None:
    for rank in (0, 1):
        training.add(rank, "iteration", loader=0, turn=0, site=training.site(19))
        training.batch(rank, 0, 0, [rank])
        training.train_on(rank, sync=False, step=False)
        training.add(rank, "iterated", loader=0, turn=0, batches=1, exhausted=exhausted)
        training.step(rank, grads=[rank, rank], params=[rank, rank])
    assert {each for each in training.found() if each[0] == "DDP305"} == told


@pytest.mark.parametrize(("joins", "told"), [(True, set()), (False, {("DDP303", 27)})])
def test_steps_of_ranks_that_run_out_of_batches_are_not_those_of_the_others(
    training: Any, joins: bool, told: set[Any]
) -> None:
    """Within `Join`: one rank takes two steps where the other takes one, after which both hold the same again."""
    for turn in (0, 2):
        for rank in (0, 1):
            if joins:
                training.add(rank, "join", entered=True)
            for step in range(1 + rank):
                training.train_on(rank, grads=[turn + step, 1], params=[turn + step, 1])
            if rank == 0:
                training.backward(rank)  # what takes part in the reductions of the others
            if joins:
                training.add(rank, "join", entered=False)
    assert training.found() == told


def test_a_backward_that_reduces_in_vain_is_dear_and_not_wrong(training: Any) -> None:
    """Under `no_sync`, which its forward was not: told once, and not as a reduction too many besides."""
    for rank in (0, 1):
        for count in range(4):
            training.train_on(rank, step=count % 2 == 1)
            backward = next(each for each in reversed(training.events) if each["event"] == "backward")
            backward["sync"] = count % 2 == 1
    assert [(each.code, each.severity) for each in training.judged().findings] == [("DDP305", "warning")]


def test_micro_batches_under_no_sync_and_the_last_one_outside_are_right(training: Any) -> None:
    for rank in (0, 1):
        for count in range(4):
            last = count % 2 == 1
            training.train_on(rank, sync=last, step=last)
    assert training.word("DDP305") == "held"


def test_gradients_zeroed_between_micro_batches_are_named(training: Any) -> None:
    for rank in (0, 1):
        for count in range(4):
            last = count % 2 == 1
            training.add(rank, "zero_grad", optimizer=0, had=count > 0, site=training.site(21))
            training.train_on(rank, sync=last, step=last)
    assert training.found() == {("DDP306", 21)}


def test_gradients_of_another_loss_may_be_zeroed(training: Any) -> None:
    for rank in (0, 1):
        for _ in range(3):
            training.backward(rank, line=30)  # of the generator, through the discriminator
            training.add(rank, "zero_grad", optimizer=0, had=True, site=training.site(21))
            training.backward(rank, line=31)
            training.step(rank)
    assert not training.judged().findings


def test_the_same_noise_on_every_rank_is_named_at_its_seed(training: Any) -> None:
    training.every("seed", value="0", site=training.site(8))
    training.every("draw", function="randn_like", count=1, digest=77, numel=64, site=training.site(24))
    assert training.found() == {("DDP205", 8)}


def test_noise_of_each_rank_its_own_is_held(training: Any) -> None:
    for rank in (0, 1):
        training.add(rank, "draw", function="randn_like", count=1, digest=rank, numel=64, site=training.site(24))
    assert training.word("DDP205") == "held"


def test_splits_that_differ_are_named(recorded: Any) -> None:
    for rank in (0, 1):
        recorded.add(rank, "split", digests=[rank, rank], lengths=[9, 1], site=recorded.site(9))
    assert recorded.found() == {("DDP204", 9)}


def test_a_group_that_is_up_at_the_exit_is_named_but_not_after_a_crash(recorded: Any) -> None:
    recorded.every("exit", initialized=True, site=recorded.site(5))
    assert recorded.found() == {("DDP101", 5)}
    recorded.outcome = "failed"
    assert not recorded.judged().findings


def test_a_wrapper_in_a_wrapper_is_named(recorded: Any) -> None:
    recorded.wrapper(line=33, nested=True)
    assert recorded.found() == {("DDP312", 33)}


def test_one_path_of_several_ranks_is_an_error_for_a_checkpoint_only(recorded: Any) -> None:
    recorded.every("save", path="/project/last.pt", tensors=2, wrapped=0, site=recorded.site(40))
    recorded.every("write", path="/project/config.json", mode="write", site=recorded.site(41))
    recorded.add(0, "save", path="/project/best.pt", tensors=2, wrapped=0, site=recorded.site(42))
    found = {(each.code, each.line, each.severity) for each in recorded.judged().findings}
    assert found == {("DDP502", 40, "error"), ("DDP502", 41, "warning")}


def test_a_log_that_ranks_append_to_is_told_and_other_files_are_warned_of(recorded: Any) -> None:
    inside = ["/usr/lib/python3.11/logging/__init__.py", 1213, "_open", True]
    recorded.every("site", site=900, via="", stack=[inside, ["/project/train.py", 43, "main", False]])
    recorded.every("write", path="/project/train.log", mode="append", site=900)
    recorded.every("write", path="/project/losses.csv", mode="append", site=recorded.site(44))
    recorded.every("write", path="/project/fresh.log", mode="write", site=recorded.site(45))
    findings = recorded.judged().findings
    found = {(each.line, each.severity, "append to" in each.message) for each in findings}
    assert found == {(43, "info", True), (44, "warning", True), (45, "warning", False)}


def test_the_first_rank_of_each_node_is_another_rule(record: Any) -> None:
    run = record(4, nnodes=2)
    for rank in (0, 2):
        run.add(rank, "save", path="/project/last.pt", tensors=2, wrapped=0, site=run.site(40))
    assert run.found() == {("DDP503", 40)}


def test_names_of_the_wrapper_in_a_checkpoint_are_named(recorded: Any) -> None:
    recorded.wrapper()
    recorded.add(0, "save", path="/project/last.pt", tensors=2, wrapped=2, site=recorded.site(40))
    assert recorded.found() == {("DDP501", 40)}


def test_the_global_rank_as_a_device_shows_on_several_nodes_only(record: Any) -> None:
    for nnodes, expected in ((1, set()), (2, {("DDP103", 7)})):
        run = record(2, nnodes=nnodes)
        for rank in (0, 1):
            run.add(rank, "device", index=rank, via="set_device", site=run.site(7))
        judged = run.judged()
        assert {(each.code, each.line) for each in judged.findings} == expected
        assert judged.verdicts["DDP103"].word == ("violated" if nnodes > 1 else "not observed")


def test_a_schedule_for_one_process_is_named(recorded: Any) -> None:
    recorded.every("schedule", schedule=0, kind="CosineAnnealingLR", steps=8, site=recorded.site(15))
    for _ in range(4):
        recorded.every("scheduled", schedule=0)
    assert recorded.found() == {("DDP602", 15)}


def test_a_run_that_was_cut_short_says_nothing_of_schedules(record: Any) -> None:
    run = record(max_steps=2)
    run.every("schedule", schedule=0, kind="CosineAnnealingLR", steps=8, site=run.site(15))
    for _ in range(4):
        run.every("scheduled", schedule=0)
    assert run.judged().verdicts["DDP602"].word == "not observed"


def test_parameters_without_a_gradient_are_named(training: Any) -> None:
    training.train(grads=[1, None])
    judged = training.judged()
    assert [(each.code, each.line) for each in judged.findings] == [("DDP315", 10)]
    assert "bias" in judged.findings[0].message


def test_a_gather_is_named_in_the_function_that_trains(recorded: Any) -> None:
    gather = recorded.site(4, "/project/gathering.py", "gather", "", 24)
    backward = recorded.site(25, "/project/gathering.py", "main")
    recorded.add(0, "gathered", op="all_gather", own=False, site=gather, backward=backward)
    assert recorded.found() == {("DDP302", 24)}


def test_facts_are_counted(training: Any) -> None:
    training.epochs([[0, 1, 2, 3], [4, 5, 6, 0]], [[3, 1, 2, 0], [5, 4, 0, 6]])
    facts = training.judged().facts
    assert (facts["world_size"], facts["batch_size"], facts["effective_batch_size"]) == (2, 4, 8)
    assert facts["optimizer_steps"] == 2 and facts["optimizer_steps_per_epoch"] == 1
    assert facts["samples"] == {"in_data_set": 16, "seen": 7, "repeated": 1, "missed": 9}


def test_the_seed_that_is_named_is_the_last_one_before_the_draw(training: Any) -> None:
    for line, value in ((15, "0"), (16, "7")):
        training.every("seed", value=value, site=training.site(line))
    training.every("draw", function="randn", count=1, digest=5, numel=8, site=training.site(22))
    training.every("seed", value="9", site=training.site(40))
    assert training.found() == {("DDP205", 16)}


@pytest.mark.parametrize(("steps", "found"), [(18, True), (10, False), (14, False)])
def test_a_schedule_for_one_process_may_be_rounded(training: Any, steps: int, found: bool) -> None:
    training.every("schedule", schedule=0, kind="OneCycleLR", steps=steps, site=training.site(16))
    for turn in (0, 1):
        training.begin(turn)
        for count in range(5):
            for rank in (0, 1):
                training.batch(rank, turn, count, [turn, count, rank])
                training.train_on(rank)
                training.add(rank, "scheduled", schedule=0)
        training.end(5, turn)
    assert (("DDP602", 16) in training.found()) is found


def test_an_exit_beside_a_continue_is_not_the_way_that_was_taken(training: Any, tmp_path: Any) -> None:
    path = tmp_path / "train.py"
    lines = ["for x in loader:", "    loss = model(x)", "    if skip:", "        continue", "    if bad:"]
    path.write_text(
        "\n".join(
            ["def train():", *(f"    {line}" for line in lines), "            sys.exit(1)", "        loss.backward()\n"]
        )
    )
    forward, backward = (training.site(line, str(path)) for line in (3, 8))
    training.every("iteration", loader=0, turn=0, site=training.site(2, str(path)))
    for count in range(3):
        for rank in (0, 1):
            training.batch(rank, 0, count, [count, rank])
            common = {"group": "0", "ranks": [0, 1], "waits": False, "rows": 4}
            training.add(rank, "forward", n=900, ddp=0, grad=True, sync=True, training=True, site=forward, **common)
            if (rank, count) != (1, 1):
                training.add(rank, "backward", n=901, armed=[], sync=True, site=backward, **common)
    assert training.found() == {("DDP404", 5)}


def test_a_group_that_a_library_made_and_left_is_only_noted(recorded: Any) -> None:
    recorded.sites["library"] = len(recorded.sites)
    stack = [["/lib/trainer.py", 9, "setup", True], ["/project/train.py", 16, "main", False]]
    for rank in (0, 1):
        recorded.add(rank, "site", site=recorded.sites["library"], via="", stack=stack)
    recorded.every("exit", initialized=True, site=recorded.sites["library"])
    (finding,) = recorded.judged().findings
    assert (finding.code, finding.line, finding.severity) == ("DDP101", 16, "info")
