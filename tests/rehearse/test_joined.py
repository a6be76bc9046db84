"""What reading has found beside what the run has shown: confirmed, contradicted, or not observed; each of them once."""

from __future__ import annotations

from typing import Any

import pytest

SAME, OTHER = [[3, 1, 2, 5], [0, 4, 7, 6]], [[0, 1, 6, 5], [3, 4, 7, 2]]


def test_one_code_at_one_place_is_one_finding_of_both_kinds(training: Any) -> None:
    training.read("DDP201", 11)
    training.epochs(SAME, SAME)
    (reported,) = training.judged().reported
    assert reported.kinds == ("static", "rehearsal") and reported.said == "confirmed"
    assert reported.read == "read DDP201" and "epochs 0 and 1" in reported.finding.message


def test_a_place_that_held_contradicts_what_reading_says_of_it(training: Any) -> None:
    training.read("DDP201", 11)
    training.epochs(SAME, OTHER)
    judged = training.judged()
    assert [(each.said, each.kinds) for each in judged.reported] == [("contradicted", ("static",))]
    assert judged.findings == ()  # it does not count


def test_a_place_that_the_run_did_not_come_to_is_not_observed(training: Any) -> None:
    training.read("DDP201", 40)
    training.read("DDP504", 11)
    training.epochs(SAME, OTHER)
    assert training.said() == {("DDP201", 40): "not observed", ("DDP504", 11): "not observed"}
    assert len(training.judged().findings) == 2


def test_one_epoch_alone_contradicts_nothing(training: Any) -> None:
    training.read("DDP201", 11)
    training.epochs(SAME)
    assert training.said() == {("DDP201", 11): "not observed"}


def test_without_a_static_check_everything_is_the_runs(training: Any) -> None:
    training.epochs(SAME, SAME)
    assert training.said() == {("DDP201", 11): "found"}


def test_a_finding_on_the_way_to_the_call_is_the_same_defect(recorded: Any) -> None:
    # Reading names the call of the helper (line 40), the run the write in it (line 60).
    site = recorded.site(60, "/project/train.py", "save", "", 40)
    recorded.read("DDP502", 40)
    recorded.every("save", path="/project/last.pt", tensors=2, wrapped=0, site=site)
    judged = recorded.judged()
    assert recorded.said() == {("DDP502", 40): "confirmed"}
    assert [(place.span.line, place.note) for place in judged.reported[0].finding.evidence] == [
        (60, "where the run has shown it")
    ]


def test_a_line_that_reading_names_as_evidence_is_the_same_defect(recorded: Any) -> None:
    # Reading names the state that is built (line 30) and where it is saved (line 60), the run the latter.
    recorded.read("DDP502", 30, evidence=[60])
    recorded.every("save", path="/project/last.pt", tensors=2, wrapped=0, site=recorded.site(60, function="save"))
    judged = recorded.judged()
    assert recorded.said() == {("DDP502", 30): "confirmed"}
    assert [place.span.line for place in judged.reported[0].finding.evidence] == [60]


def test_paths_of_their_own_contradict_a_shared_checkpoint(recorded: Any) -> None:
    recorded.read("DDP502", 60)
    for rank in (0, 1):
        recorded.add(rank, "save", path=f"/project/{rank}.pt", tensors=2, wrapped=0, site=recorded.site(60))
    assert recorded.said() == {("DDP502", 60): "contradicted"}


def test_that_one_rank_came_to_a_write_is_no_proof(recorded: Any) -> None:
    recorded.read("DDP502", 60)
    recorded.add(0, "save", path="/project/best.pt", tensors=2, wrapped=0, site=recorded.site(60))
    assert recorded.said() == {("DDP502", 60): "not observed"}


def test_a_collective_that_every_rank_calls_is_contradicted_only_where_the_run_came_to_its_end(record: Any) -> None:
    said = []
    for outcome in ("finished", "timeout"):
        run = record()
        run.read("DDP401", 30)
        for rank in (0, 1):
            run.call(rank, "barrier", 30)
        run.outcome = outcome
        said.append(run.said()["DDP401", 30])
    assert said == ["contradicted", "not observed"]


@pytest.mark.parametrize(
    ("buffers", "grad", "said"), [(0, False, "contradicted"), (0, True, "not observed"), (1, False, "not observed")]
)
def test_an_evaluation_on_one_rank_waits_for_nobody_where_the_model_has_no_buffers(
    recorded: Any, buffers: int, grad: bool, said: str
) -> None:
    recorded.read("DDP402", 40)
    recorded.wrapper(buffers=buffers)
    common = {"ddp": 0, "sync": True, "training": False, "rows": 4, "group": "0", "ranks": [0, 1]}
    recorded.add(
        0,
        "forward",
        n=900,
        grad=grad,
        waits=False,
        site=recorded.site(30, "/project/train.py", "evaluate", "", 40),
        **common,
    )
    recorded.add(0, "done", n=900)
    assert recorded.said() == {("DDP402", 40): said}


def test_equal_gradients_of_equal_samples_contradict_nothing(training: Any) -> None:
    training.read("DDP301", 23)
    training.train(forward=False, bypass=True)
    assert training.said() == {("DDP301", 23): "not observed"}


def test_gradients_averaged_by_hand_contradict_a_bypass(training: Any) -> None:
    training.read("DDP301", 23)
    training.begin()
    for rank, indices in enumerate(SAME):
        training.batch(rank, 0, 0, indices, rows=[[10 * each for each in indices]])
        training.train_on(rank, forward=False, bypass=True)
    training.end()
    said = training.said()
    assert said["DDP301", 23] == "contradicted"


def test_a_rank_that_did_not_report_leaves_nothing_contradicted(record: Any) -> None:
    run = record()
    run.read("DDP101", 5)
    run.events = [event for event in run.events if event.get("rank_of") != 1]
    run.world_size = 1  # of those that report their exit
    assert run.said() == {("DDP101", 5): "not observed"}


def test_the_exception_that_a_defect_is_confirms_it(recorded: Any) -> None:
    recorded.read("DDP203", 21, end_line=23)
    stack = [
        ["/usr/lib/python3/site-packages/torch/data.py", 5, "__init__", True],
        ["/project/train.py", 22, "main", False],
    ]
    recorded.add(1, "exception", kind="ValueError", message="exclusive", stack=stack, traceback="ValueError: exclusive")
    recorded.outcome = "failed"
    assert recorded.said() == {("DDP203", 21): "confirmed"}
    recorded.events[-1]["kind"] = "KeyError"  # another error at the same line is another matter
    assert recorded.said() == {("DDP203", 21): "not observed"}


def test_a_group_that_is_left_up_is_told_once_whichever_call_made_it(recorded: Any) -> None:
    recorded.read("DDP101", 3)
    recorded.every("exit", initialized=True, site=recorded.site(5))
    (reported,) = recorded.judged().reported
    assert reported.kinds == ("static", "rehearsal") and reported.finding.line == 3


@pytest.mark.parametrize(("armed", "said"), [((), "contradicted"), ((0,), "confirmed")], ids=str)
def test_no_sync_of_a_module_that_no_wrapper_reduces_for_is_not_in_vain(
    training: Any, armed: tuple[int, ...], said: str
) -> None:
    """A class of the script's own may reduce in hooks, which ask at the backward."""
    training.read("DDP305", 25)
    for rank in (0, 1):
        for count in range(4):
            training.train_on(rank, forward=bool(armed), armed=bool(armed), step=count % 2 == 1)
            backward = next(each for each in reversed(training.events) if each["event"] == "backward")
            backward["sync"] = count % 2 == 1
    assert training.said()["DDP305", 25] == said
