"""From what rules see to verdicts: findings, held, what the run contradicts; and which rule speaks of one defect."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.findings import ERROR
from validate_ddp.record.run import Frame, Run, Site
from validate_ddp.record.verdict import Observation, Telling, Unclear, Well, verdict_of
from validate_ddp.rehearse import judging
from validate_ddp.rehearse.judging import ranked, tellings


def at(line: int) -> Site:
    return Site((Frame("train.py", line, "main", False),))


def wrong(line: int, code: str = "DDP901", *since: tuple[int, float]) -> Observation:
    return Observation(ERROR, at(line), f"{code} at {line}", since=since)


def lines(verdict: Any) -> list[int]:
    return [each.site.own.line for each in verdict.findings]


@pytest.mark.parametrize(
    ("seen", "word", "cleared"),
    [
        ((), "not observed", []),
        ((Well(),), "held", []),
        ((Well(at(3)),), "held", [3]),
        ((Well(at(3), held=False),), "not observed", [3]),
        ((Well(at(3)), Unclear(at(3))), "held", []),
        ((Well(at(3)), Unclear(at(4))), "held", [3]),
        ((Well(at(3)), Unclear()), "not observed", [3]),
        ((Unclear(),), "not observed", []),
        ((Well(at(3)), wrong(4)), "violated", [3]),
        ((wrong(3), Well(at(3))), "violated", []),
    ],
)
def test_one_stream_gives_the_verdict_and_the_lines_that_are_well(seen: Any, word: str, cleared: list[int]) -> None:
    verdict = verdict_of("DDP901", iter(seen))
    assert verdict.word == word and sorted(line for _, line in verdict.well) == cleared


def test_a_line_is_told_once_and_of_each_divergence() -> None:
    seen = [wrong(3), wrong(3), wrong(5), wrong(3, "DDP901", (0, 1.0)), wrong(3, "DDP901", (0, 1.0), (1, 2.0))]
    verdict = verdict_of("DDP901", iter(seen))
    assert lines(verdict) == [3, 5, 3, 3] and {each.code for each in verdict.findings} == {"DDP901"}


def test_what_is_told_once_a_run_clears_none_of_the_lines_where_it_was_seen() -> None:
    verdict = verdict_of("DDP901", iter((wrong(3), Well(at(4)), wrong(4), Well(at(5)))), once=True)
    assert lines(verdict) == [3] and {line for _, line in verdict.well} == {5}


def test_rules_come_in_the_order_that_they_say() -> None:
    assert ranked({"C": ("A",), "A": ("B",)}) == ["C", "A", "B"]
    assert ranked({"B": ("D",), "A": ("D",)}) == ["A", "B", "D"]


def test_a_circle_of_rules_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"comes before another of them: A, B$"):
        ranked({"A": ("B",), "B": ("A",), "X": ("A",)})


def test_every_rule_names_only_rules_that_a_run_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tellings()["DDP104"].outranks == ("DDP202", "DDP209")
    module = judging.load(next(stub for stub in judging.every() if stub.code == "DDP104"))
    monkeypatch.setattr(module, "TELLING", Telling(outranks=("DDP111",)))
    with pytest.raises(ValueError, match="DDP104 names DDP111"):
        tellings.__wrapped__()


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Judges an empty run of two ranks by toy rules: by code what each sees, and how it is told."""

    def judged(**rules: tuple[Telling, tuple[Any, ...]]) -> dict[str, Any]:
        monkeypatch.setattr(judging, "tellings", lambda: {code: telling for code, (telling, _) in rules.items()})
        seen = {code: (lambda run, each=each: iter(each)) for code, (_, each) in rules.items()}
        monkeypatch.setattr(judging, "observers", lambda: seen)
        run = Run([])
        run.world_size, run.ranks = 2, [0, 1]
        return judging.judged(run)

    return judged


def test_a_cause_leaves_its_consequences_at_its_lines_out_and_theirs(judge: Any) -> None:
    verdicts = judge(
        C=(Telling(), (wrong(3, "C"), wrong(4, "C"))),
        B=(Telling(outranks=("C",)), (wrong(3, "B"), wrong(4, "B"))),
        A=(Telling(outranks=("B",)), (wrong(3, "A"),)),
    )
    # B tells nothing of line 3 any more, and so takes nothing away there.
    assert [lines(verdicts[code]) for code in "ABC"] == [[3], [4], [3]]


def test_a_rule_whose_findings_all_go_has_not_held(judge: Any) -> None:
    verdicts = judge(A=(Telling(outranks=("B",)), (wrong(3, "A"),)), B=(Telling(), (wrong(3, "B"), Well())))
    assert verdicts["B"].word == "not observed"


@pytest.mark.parametrize(("seen", "word"), [((wrong(9, "A"),), "not observed"), ((Well(),), "violated")])
def test_a_finding_silences_other_rules(judge: Any, seen: Any, word: str) -> None:
    verdicts = judge(A=(Telling(silences=("B",)), seen), B=(Telling(), (wrong(3, "B"),)))
    assert verdicts["B"].word == word


@pytest.mark.parametrize(("other", "cleared"), [((Well(),), {("train.py", 3)}), ((), set())])
def test_what_is_well_may_count_only_beside_another_rule_that_held(judge: Any, other: Any, cleared: Any) -> None:
    verdicts = judge(A=(Telling(clears_beside=("B",)), (Well(at(3)),)), B=(Telling(), other))
    assert verdicts["A"].word == "held" and verdicts["A"].well == cleared


def test_ranks_that_part_are_told_of_by_the_rule_that_tells_most(judge: Any) -> None:
    since = ((0, 1.0), (1, 1.0))
    verdicts = judge(
        A=(Telling(), (wrong(3, "A", *since),)),
        B=(Telling(diverges_before=("A",)), (wrong(4, "B", *since),)),
        S=(Telling(step_by_step=True), (wrong(5, "S"), Well(at(6)))),
    )
    assert [verdicts[code].word for code in "ABS"] == ["not observed", "violated", "not observed"]
    assert [note.text for note in verdicts["B"].findings[0].notes] == ["it shows here: A at 3"]
