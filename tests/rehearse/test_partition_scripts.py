"""The partition check on scripts that run: what is wrong is told, and nothing of those that are right but hard."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.record.partition import judgements, told_of
from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.held import guard
from validate_ddp.rehearse.log import Log
from validate_ddp.rehearse.parent.view import Plain
from validate_ddp.rehearse.partition import check_partition
from validate_ddp.rehearse.plan import Plan

pytestmark = [pytest.mark.runtime, pytest.mark.slow]
SCRIPT, HARD = (str(Path(__file__).with_name(f"partition_{name}.py")) for name in ("script", "hard_script"))
OF_STEPS = str(Path(__file__).with_name("partition_steps_script.py"))
PARALLEL = str(Path(__file__).with_name("partition_parallel_script.py"))
TWICE, HALF = "is 2 times the average of the ranks': summed over the ranks, never divided", "is 0.5 times the average"


def compared(*words: str, nproc: int = 2, script: str = SCRIPT) -> protocol.Partition:
    """What the check says of a script, without the ordinary run before it."""
    log = Log(None)
    plan = Plan((script,), words, nproc_per_node=nproc)
    log.add(protocol.Start(cwd=".", plan={"launcher": "env"}))
    log.add(protocol.Finish(outcome="finished"))
    check_partition(plan, log, Plain(), True)
    event = Run(log.events).partition
    assert event is not None
    return event


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("by_hand", TWICE),
        ("divided_twice", HALF),
        ("biases_left_out", "the gradient of `0.bias`, `2.bias` is each rank's own"),
        ("buckets", "the gradient of `0.bias`, `2.bias` is each rank's own"),
        ("comm_hook", TWICE),
        ("own_step", TWICE),
        ("own_step_alone", "is each rank's own: it is not reduced"),
        ("head_beside", "the gradient of `model 2: weight`, `model 2: bias` is each rank's own"),
        ("tokens", HALF),
        ("accumulated_tokens", "each divides by a count of its own"),
        ("synced_too_early", "is each rank's own: it is not reduced"),
        ("fsdp1", TWICE),
        ("fsdp2", TWICE),
        ("tensor_parallel", "`0.weight`, `0.bias` is 2 times the average"),
        ("mesh_of_two", "is 2 times the average"),
        ("accelerated", TWICE),
        ("negatives", "is that of no process on the same batches"),
        ("norm_of_a_shard", "times their norm"),
        ("clipped", TWICE),
        ("ragged_sum", TWICE),
    ],
)
def test_a_wrong_gradient_is_told_and_the_right_one_is_not(name: str, told: str) -> None:
    nproc = 4 if name == "mesh_of_two" else 2
    wrong, right = compared(name, "wrong", nproc=nproc), compared(name, nproc=nproc)
    assert wrong.compared and any(told in each.message for each in judgements(wrong)), told_of(wrong)
    assert right.compared and not judgements(right), told_of(right)


def test_parts_of_a_model_on_each_rank_are_held_against_the_slope_of_the_loss() -> None:
    wrong, right = compared("halves", "wrong"), compared("halves")
    assert "times the slope of the ranks' losses" in judgements(wrong)[0].message
    assert not right.compared and not judgements(right), told_of(right)
    assert "one process holds other parameters" in told_of(right)
    assert "on the ranks it is the slope of the mean of their losses" in told_of(right)


def test_a_script_for_just_so_many_ranks_is_held_against_the_slope_of_its_losses() -> None:
    wrong, right = compared("just_two", "wrong", script=HARD), compared("just_two", script=HARD)
    assert not right.compared and not judgements(right) and right.stays == 0
    assert "in one process failed: AssertionError: two ranks" in told_of(right)
    assert "; on the ranks it is the slope of the mean of their losses (4 parameters, float64)" in told_of(right)
    assert "the slope of" not in told_of(wrong)


@pytest.mark.parametrize("name", ["narrow_shards", "narrow_mesh"])
def test_weights_in_a_narrow_type_are_widened_before_they_are_sharded(name: str) -> None:
    event = compared(name, script=PARALLEL)
    assert event.compared and event.float64 and event.union == [], told_of(event)


def test_an_optimizer_that_is_none_of_torchs_is_named_as_the_reason() -> None:
    assert "without a step of an optimizer that is one of torch's" in compared("own_optimizer", script=HARD).why


HARDER = "batch_norm noise no_loader drawn_by_shards adversarial checkpointed lbfgs own_clipping summed_loss"
OTHERS = "owners divided_rate as_many_gpus full_batch shares_of_points weights_in_the_loss"
STEPS = "local_sgd dividing_step reducing_step own_dividing_step own_reducing_step"


@pytest.mark.parametrize("name", f"{HARDER} {OTHERS} {STEPS}".split())
def test_a_script_that_is_right_but_hard_has_no_finding(name: str) -> None:
    event = compared(name, script=OF_STEPS if name in STEPS.split() else HARD)
    assert event.compared and not judgements(event), told_of(event)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shares_of_nodes", "the ranks have different losses"),
        ("objectives", "the ranks have different losses"),
        ("weights_of_ranks", "the ranks have different losses"),
        ("weights_by_hand", "the ranks reduce different gradients"),
        ("weights_in_hooks", "the ranks have different gradients before they are reduced"),
    ],
)
def test_where_the_rank_itself_goes_into_the_work_no_process_is_the_reference(name: str, told: str) -> None:
    event = compared(name, script=HARD)
    assert event.compared and not judgements(event)
    assert told_of(event) == f"not judged: given the same batches, {told}"


ON_FOUR = "shards_of_slices hybrid replicated_pipeline"
ON_TWO = "experts pipeline summed_pipeline context tokens negatives average adversarial compiled closures slices"


@pytest.mark.parametrize("name", f"{ON_FOUR} {ON_TWO}".split())
def test_a_script_beyond_data_parallelism_that_is_right_has_no_finding(name: str) -> None:
    event = compared(name, script=PARALLEL, nproc=4 if name in ON_FOUR.split() else 2)
    assert not judgements(event), told_of(event)


@pytest.mark.parametrize(("name", "told"), [("number_of_ranks", "divided"), ("number_of_gpus", "multiplied")])
def test_a_number_in_the_script_that_may_stand_for_the_ranks_makes_no_error(name: str, told: str) -> None:
    (found,) = judgements(compared(name, script=OF_STEPS))
    assert found.severity == "warning"
    assert found.message.endswith(f"only where the 2 by which the loss is {told} is their number")


def test_a_loader_is_as_long_as_it_was_when_the_rank_asked() -> None:
    event = compared("lengths_of_epochs", script=HARD)
    assert event.compared and event.union == [], told_of(event)


def test_an_optimizer_of_no_models_parameters_does_not_hide_those_of_one() -> None:
    event = compared("later_models", script=OF_STEPS)
    assert event.compared and not event.on_slope and "each rank's own" in told_of(event), told_of(event)


def test_a_sum_over_data_that_no_loader_gives_is_no_error() -> None:
    event = compared("sum_without_loader", script=HARD)
    assert [each.severity for each in judgements(event)] == ["warning"], told_of(event)


def test_what_hangs_on_the_number_of_ranks_is_not_compared() -> None:
    assert "they depend on the number of ranks" in compared("sliced", script=HARD).why


def test_gradients_that_are_not_finite_are_not_compared() -> None:
    assert "are not finite" in compared("infinite", script=HARD).why


def test_ranks_meet_in_the_folder_of_their_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user").write_text("kept\n")
    event = compared("met", script=HARD)
    assert event.compared and not judgements(event), told_of(event)
    assert [path.name for path in tmp_path.iterdir()] == ["user"]


@pytest.mark.skipif(not guard.version(), reason="needs Landlock")
def test_a_script_that_writes_past_python_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user").write_text("kept\n")
    why = compared("past_python", script=HARD).why
    assert "writes where its short runs must not" in why and "Permission denied: 'user'" in why
    assert (tmp_path / "user").read_text() == "kept\n"


def test_what_a_script_writes_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "log.txt"
    kept.write_text("kept\n")
    assert compared("by_hand", str(kept)).compared
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"] and kept.read_text() == "kept\n"
