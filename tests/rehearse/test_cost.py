"""What judging a run costs: twice the run is twice the work, in events that are looked at; it can be bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from validate_ddp.record.pace import OutOfTime, Pace, shown
from validate_ddp.record.run import Run, once
from validate_ddp.rehearse import outcome
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.outcome import judge
from validate_ddp.rehearse.page import as_html
from validate_ddp.rehearse.report_json import as_json
from validate_ddp.report import Options


class Seen:
    """Counts how often a field of an event is read, for all of them together."""

    count = 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def counted(event: protocol.Event, name: str) -> Any:
            Seen.count += name in type(event).fields
            return object.__getattribute__(event, name)

        monkeypatch.setattr(protocol.Event, "__getattribute__", counted, raising=False)


def epochs(run: Any, count: int) -> None:
    """Epochs over one loader, each with an evaluation over the same one, a save and collectives."""
    run.wrapper()
    run.loader()
    run.every("loader", loader=1, site=run.site(13), **EVALUATED)
    run.optimizer()
    run.every("schedule", schedule=0, kind="StepLR", steps=count, site=run.site(15))
    for turn in range(count):
        run.every("set_epoch", sampler=0, epoch=turn)
        epoch(run, loader=0, turn=turn, step=turn)
        evaluate(run, loader=1, turn=turn)


def loaders(run: Any, count: int) -> None:
    """Loaders, optimizers and schedules that are made anew for each epoch, and are left before their end."""
    run.wrapper()
    for number in range(count):
        run.every("loader", loader=2 * number, site=run.site(12), **EVALUATED)
        run.every("loader", loader=2 * number + 1, site=run.site(13), **EVALUATED)
        run.optimizer(number=number)
        run.every("schedule", schedule=number, kind="StepLR", steps=1, site=run.site(15))
        run.every("scheduled", schedule=number)
        epoch(run, loader=2 * number, turn=0, step=number, optimizer=number, whole=False)
        evaluate(run, loader=2 * number + 1, turn=0)


def averaged(run: Any, count: int) -> None:
    """Local steps, after which the parameters are averaged by hand."""
    run.wrapper()
    run.loader()
    run.optimizer(names=((0, "weight"),))
    for step in range(count):
        for rank in range(2):
            run.train_on(rank, sync=False, grads=[rank], params=[step])
            run.call(rank, "all_reduce", 40, shape=[2])


EVALUATED = {
    "length": 8, "batches": 1, "batch_size": 4, "sampler": "DistributedSampler", "numbered": None, "iterable": False,
    "drop_last": False, "workers": 0, "dataset": "Points",
}  # fmt: skip


def epoch(run: Any, loader: int, turn: int, step: int, optimizer: int = 0, whole: bool = True) -> None:
    run.every("iteration", loader=loader, turn=turn, site=run.site(19))
    for count in range(2):
        for rank in range(2):
            run.add(
                rank, "batch", loader=loader, turn=turn, count=count, size=4, site=run.site(20),
                indices=[(8 * count + 2 * at + rank + turn) % 16 for at in range(4)],
            )  # fmt: skip
            run.add(rank, "zero_grad", optimizer=optimizer, had=False, site=run.site(21))
            run.train_on(rank, optimizer=optimizer, grads=[step, count], params=[step, count])
    if whole:
        run.every("iterated", loader=loader, turn=turn, batches=2, exhausted=True)
    run.add(0, "save", path="/project/model.pt", tensors=2, wrapped=0, twins=[], site=run.site(30))


def evaluate(run: Any, loader: int, turn: int) -> None:
    run.every("iteration", loader=loader, turn=turn, site=run.site(32))
    for rank in range(2):
        run.add(
            rank, "batch", loader=loader, turn=turn, count=0, size=4, site=run.site(33),
            indices=[2 * at + rank for at in range(4)],
        )  # fmt: skip
    run.every("iterated", loader=loader, turn=turn, batches=1, exhausted=True)
    for rank in range(2):
        run.call(rank, "all_reduce", 34, given=[4.0], got=[8.0], reduce="SUM")


def reads(run: Any) -> int:
    """How often something of an event is read while a run is judged and reported."""
    run.every("exit", initialized=False, site=run.site(5))
    for code, line in (("DDP401", 34), ("DDP306", 21), ("DDP303", 14), ("DDP201", 11), ("DDP202", 12), ("DDP304", 25)):
        run.read(code, line)
    events = run.told(finished=True)
    Seen.count = 0
    judged = judge(events)
    assert judged.facts["optimizer_steps"]
    as_json(judged)
    as_html(judged)
    return Seen.count


@pytest.mark.parametrize("made", [epochs, loaders, averaged])
@pytest.mark.parametrize("plan", [{}, {"max_steps": 2}])
def test_twice_the_run_is_twice_the_work(
    record: Any, made: Callable[[Any, int], None], plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Seen(monkeypatch)
    counts, sizes = [], []
    for count in (40, 80, 160):
        run = record(**plan)
        made(run, count)
        counts.append(reads(run))
        sizes.append(len(run.events))
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert second < 2.1 * first, counts
    assert counts[2] < 60 * sizes[2], counts  # a rule reads some fields of some events


def test_the_events_of_a_kind_are_looked_for_once(recorded: Any) -> None:
    run = Run(recorded.told())
    assert run.of(0, protocol.Hello) is run.of(0, protocol.Hello)
    assert run.of(0, protocol.Hello, protocol.Group) is run.of(0, protocol.Hello, protocol.Group)
    assert [type(event) for event in run.of(0, protocol.Group, protocol.Hello)] == [protocol.Hello, protocol.Group]
    assert run.of(7, protocol.Hello) == [] and run.of(0, protocol.Call) == []
    recorded.call(0, "barrier", 7)
    assert [call.called for call in Run(recorded.told()).of(0, protocol.GroupCall)] == ["barrier"]  # and its heirs


def test_what_is_asked_of_a_run_again_is_remembered(recorded: Any) -> None:
    asked = []

    @once
    def question(run: Run, number: int) -> int:
        asked.append(number)
        return number

    one, other = Run(recorded.told()), Run(recorded.told())
    assert [question(one, 1), question(one, 1), question(one, 2), question(other, 1)] == [1, 1, 2, 1]
    assert asked == [1, 2, 1]


def test_the_page_of_a_long_run_draws_no_more_than_it_is_wide(recorded: Any) -> None:
    recorded.wrapper()
    site = recorded.site(22)
    common = {"ddp": 0, "grad": True, "sync": True, "training": True, "rows": 4, "group": "0", "ranks": [0, 1]}
    for number in range(8000):
        kind = "backward" if number % 2 else "forward"
        recorded.add(0, kind, n=number, site=site, waits=False, armed=[], **common)
        recorded.add(0, "done", n=number)
    page = as_html(recorded.judged())
    assert 930 < page.count("<rect") < 3 * 930 and " and " in page


def test_a_data_set_may_be_as_long_as_it_likes(training: Any) -> None:
    for event in training.events:
        if event["event"] == "loader":
            event["length"] = 10**15
    training.epochs([[0, 10**14], [2, 3]], [[1, 7], [2, 3]])
    page = as_html(training.judged())
    assert "Samples read in the first epoch" in page and 'class="once"' in page


def clock(*times: float) -> Callable[[], float]:
    left = list(times)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_rules_for_which_the_time_is_too_short_are_named_and_the_others_stand(training: Any) -> None:
    training.epochs([[0, 1], [2, 3]], [[4, 5], [6, 7]])
    training.wrapper(line=33, nested=True)
    training.read("DDP312", 33)
    training.read("DDP501", 44)
    whole = training.judged()
    assert words(whole)["DDP312"] == "violated" and words(whole)["DDP202"] == "held"
    events = training.told(finished=True)

    def after(looks: int) -> outcome.Judged:
        return judge(events, pace=Pace(5.0, clock=clock(*[0.0] * looks, 6.0)))

    for looks in (*range(1, 400, 3), 10_000):
        judged = after(looks)
        assert {code: word for code, word in words(judged).items() if word != "not judged"}.items() <= words(
            whole
        ).items()
        assert judged.facts == whole.facts
        text = show_text(judged)
        assert ("not judged, as the analysis has taken as long as it may" in text) == bool(judged.unjudged)
    assert set(words(after(1)).values()) == {"not judged"} and not after(10_000).unjudged
    assert "DDP604" in after(25).unjudged and "DDP101" not in after(25).unjudged


def words(judged: outcome.Judged) -> dict[str, str]:
    return {code: verdict.word for code, verdict in judged.verdicts.items()}


def show_text(judged: outcome.Judged) -> str:
    from validate_ddp.rehearse.show import as_text

    return as_text(judged, Options(color=False, width=100))


def test_a_long_analysis_is_told_of_once_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown(60.0, 120_000, terminal=False) as pace:
        pace.look()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("validate_ddp.record.pace._SILENT", 0.0)
    monkeypatch.setattr("validate_ddp.record.pace._PERIOD", 0.0)
    with shown(60.0, 120_000, terminal=False) as pace:
        pace.look()
        pace.look()
    assert capsys.readouterr().err == "validate-ddp: judging 120,000 events: for at most 60 s (--timeout)\n"


def test_a_pace_ends_when_its_time_is_up() -> None:
    pace = Pace(5.0, clock=clock(0.0, 4.0, 6.0))
    pace.look()
    with pytest.raises(OutOfTime):
        pace.look()


def test_a_terminal_shows_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Bar:
        def __init__(self, *words: Any) -> None:
            told.append(words)

        def show(self, done: int) -> None:
            told.append(done)

        def stop(self) -> None:
            told.append("gone")

    monkeypatch.setattr("validate_ddp.progress.Bar", Bar)
    monkeypatch.setattr("validate_ddp.record.pace._SILENT_ON_TERMINAL", 0.0)
    with pytest.raises(KeyboardInterrupt), shown(60.0, 10, terminal=True) as pace:
        pace.done, pace.total = 3, 38
        pace.look()
        raise KeyboardInterrupt
    assert told == [(38, "judging", "rules"), 3, "gone"]
