"""The restart check on three runs of a few events: what differs is told by kind, and what is right is told as held."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from validate_ddp.console import UsageError
from validate_ddp.record.restart import BY_ITSELF, Runs, moments, repeats, saves_at_its_end, told_of
from validate_ddp.record.restarted import compared, gone
from validate_ddp.record.restarted_end import compared_with_saved
from validate_ddp.record.run import Run
from validate_ddp.rehearse import options, show
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.held import guard
from validate_ddp.rehearse.legs import legs
from validate_ddp.rehearse.outcome import judge
from validate_ddp.rehearse.page import as_html
from validate_ddp.rehearse.plan import Plan
from validate_ddp.rehearse.report_json import as_json
from validate_ddp.rehearse.restart import Check, Restarting
from validate_ddp.report import Options

STEPS, AT, EPOCH = 6, 2, 3
PLAN = Plan(script=("train.py",))
Step = dict[str, Any]
Change = Callable[[Step, int, int], None]
"""Of a rank's step, by number in the whole run and rank."""


def steps(record: Any, first: int, last: int, change: Change | None = None, ranks: int = 2) -> Any:
    """A run that takes these steps of the whole one: three batches an epoch, a save after each second step."""
    run = record(ranks)
    run.site(15)
    for rank in range(ranks):
        for number in range(first, last):
            digests = {
                "parameters": [10 * number + 1, 10 * number + 2], "state": [100 + number], "random": [rank + 40],
                "averages": [200 + number], "averages_before": [199 + number],
            }  # fmt: skip
            names = {"parameters": ["a", "b"], "state": ["a: m"], "random": ["torch"]}
            names |= {"averages": ["0"], "averages_before": ["0"]}
            samples = [(number % EPOCH) * 4 + 2 * rank, (number % EPOCH) * 4 + 2 * rank + 1]
            step: Step = {
                "optimizer": 0, "count": number - first, "site": run.site(27), "samples": samples, "names": names,
                "batches": [1000 * (number // EPOCH) + samples[0]], "turns": [number // EPOCH - first // EPOCH],
                "sizes": [2], "losses": [1.0 / (number + 1)], "rates": [0.1 / (number + 1)], "rate_names": ["lr"],
                "digests": digests,
            }  # fmt: skip
            if number == first:  # averages are changed after a step
                del digests["averages"], digests["averages_before"]
            if change is not None:
                change(step, number, rank)
            run.add(rank, "moment", **step)
            if number % 2 == 1 and rank == 0:
                kept = {"names": ["epoch"], "numbers": [number], "shown": [str(number)]}
                run.add(0, "kept", path="/project/last.pt", after=number - first + 1, site=run.site(30), **kept)
                run.add(0, "save", path="/project/last.pt", tensors=1, wrapped=0, site=run.site(30))
    return run


def restarted(record: Any, change: Change | None = None, first: int = AT, ranks: int = 2) -> tuple[Any, Runs]:
    """The whole run and all three. first: the step from which the third goes on."""
    whole, stopped = steps(record, 0, STEPS), steps(record, 0, AT + 1)
    resumed = steps(record, first, STEPS, change, ranks)
    read = {"event": "read", "process": 0, "rank_of": 0, "time": 0.0, "path": "/project/last.pt"}
    at = next(n for n, event in enumerate(resumed.events) if event["event"] == "moment")
    resumed.events.insert(at, {**read, "site": resumed.site(15)})
    one, two, three = (Run(each.told(finished=True)) for each in (whole, stopped, resumed))
    return whole, Runs(one, two, three, AT)


def aspect(name: str, value: list[int]) -> Change:
    """Another digest in the first step of the restarted run."""

    def change(step: Step, number: int, rank: int) -> None:
        if number == AT:
            step["digests"][name] = value

    return change


def again(step: Step, number: int, rank: int) -> None:
    step["samples"], step["batches"] = [2 * rank, 2 * rank + 1], [2 * rank]


def rate(step: Step, number: int, rank: int) -> None:
    step["rates"] = [0.1]


def loss(step: Step, number: int, rank: int) -> None:
    step["losses"] = [9.0 + number]


def rank_zeros(step: Step, number: int, rank: int) -> None:
    step["samples"], step["batches"] = None, [1000 * (number // EPOCH) + (number % EPOCH) * 4]


def average(step: Step, number: int, rank: int) -> None:
    step["digests"] |= {"averages": [7], "averages_before": [7]}


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        (None, "", "went on on 2 ranks for 4 steps: as the whole run"),
        (again, "samples", "step 3 learns from what step 1 of the whole run did: the epoch begins again"),
        (rank_zeros, "samples", "rank 1: step 3 learns from what rank 0 learns from in it too"),
        (loss, "counters", "the loss of step 3 is 11, where the whole run has 0.333333, from the same samples"),
        (rate, "rates", "step 3 has the learning rate 0.1, where the whole run has 0.0333333: that of its first step"),
        (aspect("state", [9]), "state", "the optimizer's state of `a: m` is not what it was"),
        (aspect("random", [9]), "", "as the whole run"),  # nobody draws
        (average, "averages", "1 of 1 tensors of the moving average are not what they were"),
        (aspect("parameters", [21, 9]), "weights", "`b` of the model is not as saved"),
        (aspect("parameters", [1, 2]), "weights", "begins from the first run's first weights"),
    ],
)
def test_what_a_restart_loses_is_told_by_its_kind(record: Any, change: Change | None, kind: str, told: str) -> None:
    whole, runs = restarted(record, change)
    assert repeats(runs) == ""
    event = compared(runs)
    assert [each.kind for each in event.differences] == [kind] * bool(kind)
    assert told in (event.differences[0].text if kind else told_of(event))
    judged = judge([*whole.told(finished=True), event])
    codes = {each.code for each in judged.findings if each.code.startswith("DDP9")}
    assert len(codes) == bool(kind) and ("held" in {judged.words[f"DDP90{n}"] for n in (1, 2, 3, 4, 6)}) is (
        event.looked != ["weights"] or not kind
    )


def test_a_backward_that_every_run_throws_away_before_its_first_step_is_no_count(record: Any) -> None:
    def settled(step: Step, number: int, rank: int) -> None:
        if step["count"] == 0:
            step["losses"] = [7.0, *step["losses"]]

    runs = [steps(record, *span, settled) for span in ((0, STEPS), (0, AT + 1), (AT, STEPS))]
    event = compared(Runs(*(Run(each.told(finished=True)) for each in runs), AT))
    assert [each.kind for each in event.differences] == [] and "counters" in event.looked


def test_what_lies_in_a_temporary_folder_of_each_run_is_not_found_again(record: Any) -> None:
    _, runs = restarted(record, aspect("parameters", [1, 2]))
    assert gone(runs, "/project") is None  # it was read
    lost = runs._replace(resumed=Run(steps(record, 0, STEPS).told(finished=True)))
    assert gone(lost, "/elsewhere") is None
    event = gone(lost, "/project")
    assert event is not None and not event.compared and not event.differences


def test_a_run_that_goes_on_by_itself_with_the_random_state_of_another_rank(record: Any) -> None:
    run = steps(record, 0, STEPS)
    for rank in range(2):
        told = {"generator": "torch", "after": 2, "site": run.site(31)}
        run.add(rank, "randomness", is_set=False, digest=70 + rank, **told)
        run.add(rank, "read", path="/project/last.pt", site=run.site(15))
        run.add(rank, "randomness", is_set=True, digest=70, **told)
    whole = Run(run.told(finished=True))
    event = gone(Runs(whole, whole, Run(steps(record, 0, STEPS).told(finished=True)), AT), "/project")
    assert event is not None
    assert [(each.kind, each.rank) for each in event.differences] == [("random", 1)]


@pytest.mark.parametrize(
    ("own", "away", "kind", "told"),
    [
        (True, 0.5, "state", "step 3 makes 1 of 2 parameters (`b`) others than the whole .*own opt"),
        (False, 0.5, "counters", "step 3 makes 1 of 2 .*what else it hangs on is not restored"),
        (True, 1e-7, "", ""),  # sums in another order
    ],
)  # fmt: skip
def test_a_step_that_makes_other_parameters_of_the_same(
    record: Any, own: bool, away: float, kind: str, told: str
) -> None:
    def unseen(step: Step, number: int, rank: int) -> None:
        if own:
            del step["digests"]["state"]

    def moved(step: Step, number: int, rank: int) -> None:
        unseen(step, number, rank)
        if step["count"] == 1:
            step["digests"]["parameters"], step["losses"] = [31, 9], [step["losses"][0] * (1 + away)]

    runs = [
        steps(record, *span, change)
        for span, change in (((0, STEPS), unseen), ((0, AT + 1), unseen), ((AT, STEPS), moved))
    ]
    event = compared(Runs(*(Run(each.told(finished=True)) for each in runs), AT))
    assert [each.kind for each in event.differences] == [kind] * bool(kind), event
    assert not kind or re.search(told.replace("(", r"\(").replace(")", r"\)"), event.differences[0].text)


def test_a_rank_that_reads_the_state_of_another_one(record: Any) -> None:
    def moved(step: Step, number: int, rank: int) -> None:
        del step["digests"]["state"]
        if step["count"] == 1:
            step["digests"]["parameters"], step["losses"] = [31, 9], [9.0]

    whole, stopped = (steps(record, 0, last, lambda step, *_: step["digests"].pop("state")) for last in (STEPS, AT + 1))
    resumed = steps(record, AT, STEPS, moved)
    read = {
        "event": "read",
        "process": 1,
        "rank_of": 1,
        "time": 0.0,
        "path": "/project/last.pt",
        "site": resumed.site(15),
    }
    resumed.events.insert(next(n for n, event in enumerate(resumed.events) if event["event"] == "moment"), read)
    event = compared(Runs(*(Run(each.told(finished=True)) for each in (whole, stopped, resumed)), AT))
    (found,) = event.differences
    assert found.text.endswith("; rank 1 reads what only rank 0 has saved")
    assert found.place is not None and found.place.line == 15


def test_what_is_loaded_after_a_first_backward_is_no_step(record: Any) -> None:
    run = record(1)
    for held in ({"parameters": [1]}, {"parameters": [2], "state": []}, {"parameters": [3], "state": [4]}):
        names = {"parameters": ["a"], "state": ["a: m"][: len(held.get("state", ()))]}
        run.add(0, "moment", optimizer=0, count=0, site=run.site(27), digests=held, names=names)
    assert [each.held("parameters") for each in moments(Run(run.told(finished=True)), 0)] == [{"a": 2}, {"a": 3}]


def test_the_number_of_steps_on_a_command_line(record: Any) -> None:
    run = steps(record, 0, STEPS)
    run.add(0, "settings", names=["--limit", "--epochs", "--batch", "--seed"], values=[6, 2, 4, 1])
    whole = Run(run.told(finished=True))
    told = [(each.told, each.arguments) for each in legs(("run=6", "--limit", "6", "6"), whole, 2)]
    assert told == [
        ("run=2", ("run=2", "--limit", "6", "6")), ("--limit 2", ("run=6", "--limit", "2", "6")),
        ("2", ("run=6", "--limit", "6", "2")),
        ("--epochs 1", ("run=6", "--limit", "6", "6", "--epochs", "1")),  # two iterations over a loader
    ]  # fmt: skip
    assert [each.told for each in legs((), whole, 2)] == ["--limit 2", "--epochs 1"]
    assert [each.told for each in legs(("--limit=6",), whole, 9)] == ["--limit=5", "--epochs 1"]


def at_the_end(record: Any, change: Change | None = None) -> protocol.Restart:
    """Of a run of two ranks that ends after five steps, in the middle of an epoch, and one that goes on from it."""
    whole = steps(record, 0, 5)
    kept = {"names": ["a", "b"], "numbers": [51, 52], "shown": ["", ""]}
    whole.add(0, "kept", path="/project/last.pt", after=5, site=whole.site(30), **kept)
    loader = {"loader": 0, "length": 12, "batches": 3, "batch_size": 2, "numbered": None, "iterable": False}
    for rank in range(2):
        whole.add(rank, "loader", site=whole.site(9), **loader)
        for number in (3, 4):
            whole.add(rank, "batch", loader=0, turn=1, site=whole.site(20), count=number - 3)
    resumed = steps(record, 5, 8, change)
    read = {"event": "read", "process": 0, "rank_of": 0, "time": 0.0, "path": "/project/last.pt"}
    at = next(n for n, event in enumerate(resumed.events) if event["event"] == "moment")
    resumed.events.insert(at, {**read, "site": resumed.site(15)})
    run = Run(whole.told(finished=True))
    assert saves_at_its_end(run)
    runs = Runs(run, run, Run(resumed.told(finished=True)), 5, ended=BY_ITSELF)
    return compared_with_saved(runs, "nothing says so")


def first(**changes: Any) -> Change:
    """Other values in the first step of the restarted run."""

    def change(step: Step, number: int, rank: int) -> None:
        if step["count"] == 0:
            step |= {name: value for name, value in changes.items() if name in step}
            step["digests"] |= {name: value for name, value in changes.items() if name not in step}

    return change


@pytest.mark.parametrize(
    ("change", "severity", "told"),
    [
        (None, "", "as it was saved; not compared: the steps with those of a longer run: nothing says so"),
        (first(parameters=[51, 2]), "error", "`b` of the model, 1 of 2 parameters, begin as they began in the"),
        (first(parameters=[1, 2]), "error", "the restarted run begins from the first run's first weights"),
        (first(parameters=[51, 99]), "", "not compared: `b` with what was saved, in which there is no such tensor"),
        (first(state=[], names={"parameters": ["a", "b"]}), "error", "begins without 1 of the 1 entries of the state"),
        (first(batches=[1000], samples=[0, 1]), "warning", "from what step 4 of 5 did, in an epoch that was not over"),
    ],
)  # fmt: skip
def test_beside_what_a_run_has_saved_at_its_end(record: Any, change: Change | None, severity: str, told: str) -> None:
    event = at_the_end(record, change)
    assert [each.severity for each in event.differences] == [severity] * bool(severity), event
    assert told in (event.differences[0].text if severity else told_of(event))
    assert told_of(event).startswith("ended by itself after step 5, went on on 2 ranks for 3 steps: ")


def test_two_runs_that_differ_are_not_compared(record: Any) -> None:
    _, runs = restarted(record)
    other = steps(record, 0, AT + 1, lambda step, number, rank: step["digests"].update(parameters=[5, number]))
    told = repeats(runs._replace(stopped=Run(other.told(finished=True))))
    assert told == "two runs of the script differ in step 1 on rank 0: in its parameters"


def test_on_other_ranks_each_sample_of_the_epoch_counts_once(record: Any) -> None:
    def whole(step: Step, number: int, rank: int) -> None:
        step["digests"]["whole"] = [10 * number + 1, 10 * number + 2]
        step["names"]["whole"] = ["a", "b"]

    def repeated(step: Step, number: int, rank: int) -> None:
        whole(step, number, rank)
        step["samples"], step["sizes"], step["turns"] = [0, 1, 2, 3, 4, 5], [2, 2, 2], step["turns"] * 3

    for change, kinds in ((whole, []), (repeated, ["samples"])):
        _, runs = restarted(record, change, ranks=1)
        stopped = Run(steps(record, 0, AT + 1, whole).told(finished=True))
        event = compared(runs._replace(stopped=stopped))
        assert [each.kind for each in event.differences] == kinds, event.unclear


def test_the_report_shows_both_runs(record: Any) -> None:
    whole, runs = restarted(record, again)
    judged = judge([*whole.told(finished=True), compared(runs)])
    page, text, document = as_html(judged), show.as_text(judged, Options()), as_json(judged)
    assert "After a restart" in page and '<tr class="apart"><td>3</td><td>samples</td><td>8 9</td><td>0 1</td>' in page
    assert "restart " in text and "differs from step 3 on, rank 0 (samples)" in text
    assert '"resumed": 2' in document
    assert "not compared: nothing is saved" in show.as_text(
        judge([*whole.told(finished=True), protocol.Restart(compared=False, why="nothing is saved")]), Options()
    )


def test_how_a_restart_is_asked_for(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    read = options.read(["--restart-at", "3", "--restart-args", "--resume {last}", "train.py", "--restart-args", "x"])
    assert (read.restart_at, read.restart_args) == (3, "--resume {last}")
    assert read.plan is not None and read.plan.arguments == ("--restart-args", "x")
    for words in (["--restart-nproc", "2"], ["--restart-at", "3", "--partition"]):
        with pytest.raises(UsageError, match="--restart"):
            options.read([*words, "train.py"])


def test_without_landlock_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "version", lambda: 0)
    with pytest.raises(UsageError, match=r"--restart-at: .*kept from your files.*Linux 5\.13"):
        Check(PLAN, Restarting(2))


def test_what_the_kernel_has_denied_is_no_loss_of_the_scripts(
    record: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guard, "version", lambda: 1)
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in path)  # where root may do all
    (tmp_path / "locked").mkdir()
    denied = f"[Errno 13] Permission denied: '{tmp_path}/{{}}model.bin'"
    for message, told in (
        (denied.format(""), "PermissionError.*model.bin"), (denied.format("locked/"), ""), ("a key", ""),
    ):  # fmt: skip
        run = record(1)
        run.add(0, "exception", kind="PermissionError", message=message, traceback="", stack=[])
        run.add(0, "finish", outcome="failed", seconds=1.0)
        with Check(PLAN, Restarting(2)) as check, pytest.raises(UsageError, match=told) if told else nullcontext():
            check._refused(Run(run.told()))
