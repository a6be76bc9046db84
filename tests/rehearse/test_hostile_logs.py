"""Logs that are not as this version writes them: judged, or refused in one line with what, where, and what to do."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from validate_ddp import cli

RECORDED = [
    [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for path in sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))
]
START = '{"event": "start", "version": 1, "cwd": "/project", "plan": {}}\n'


def replayed(folder: Path, text: str | bytes, capsys: pytest.CaptureFixture[str], report: str) -> tuple[int, str]:
    """Exit code and standard error, without the note that a slow machine judges for long."""
    path = folder / "run.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    code = cli.main(["run", "--replay", str(path), "--report", str(folder / report)])
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return code, "".join(line for line in lines if not line.startswith("validate-ddp: judging "))


@pytest.mark.parametrize("events", RECORDED, ids=["early_stopping", "split"])
def test_a_recorded_log_is_judged(tmp_path: Path, events: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(json.dumps(event) + "\n" for event in events)
    assert replayed(tmp_path, text, capsys, "report.json") == (1, "")


DEEP = "[" * 200_000 + "]" * 200_000
STEP = '{"event": "step", "process": 0, "rank_of": 0, "time": 1.0, "optimizer": 0, "count": 1, "grads": [1], "site": 0'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f'{{"event": "start", "version": 1, "plan": {DEEP}}}\n', ":1: is no event of a rehearsal (nested too deeply)"),
        (START + DEEP + "\n", ":2: is no event of a rehearsal (nested too deeply)"),
        (START + DEEP, ":2: is no event of a rehearsal (nested too deeply)"),
        ('{"event": "start", "version": 1, "plan": 5}\n', ":1: the event `start` is not as this version writes it"),
        (f'{{"event": "start", "version": 1, "plan": {{"new": {"[" * 99}{"]" * 99}}}}}\n', ":1: the event `start`"),
        ('{"event": "start", "version": 1, "plan": {"script": 5}}\n', "`script` has to be a list with a path each"),
        ('{"event": "start", "version": 1, "plan": {"script": ["a\\u0000b"]}}\n', "`script` has to be"),
        ('{"event": "start", "version": 1, "plan": {"nproc_per_node": 0}}\n', "`nproc_per_node` has to be a number of"),
        ('{"event": "start", "version": 1, "read": [[1]]}\n', "`read` has to be a list of findings or null"),
        ('{"event": "start", "version": 1, "cwd": 7}\n', ":1: the event `start`"),
        ('{"event": "start", "version": "\\u001b[2J"}\n', "the log is of version"),
        (START + '{"event": "step", "count": ' + "9" * 5000 + "}\n", ":2: is no event of a rehearsal (not JSON)"),
        (START + STEP + ', "params": [1]}\n' + STEP + ', "params": {}}\n', ":3: the event `step`"),
        (START + STEP.replace("1.0", "NaN") + ', "params": [1]}\n', "`time` has to be a number, and is not finite"),
        (START + STEP.replace('"rank_of": 0', '"rank_of": -1') + ', "params": [1]}\n', "`rank_of` has to be a rank"),
        (START + STEP.replace('"process": 0', '"process": [0]') + ', "params": [1]}\n', "`process` has to be a whole"),
        (START + STEP + "}\n", ":2: the event `step` is not as this version writes it: there is no `params`"),
        (START + '{"event": "ended", "rank_of": {}, "code": 1}\n', "`rank_of` has to be a rank or null"),
        (START + '{"event": "hang", "ranks": {"x": {}}}\n', ":2: the event `hang`"),
        (
            START + '{"event": "site", "process": 0, "site": 0, "stack": [["/dev/zero", 1]]}\n',
            "`stack` has to be a stack",
        ),
        (START + '{"event": ["step"]}\n', ":2: is no event of a rehearsal"),
        (START + "\x00\x01\x02\n", ":2: is no event of a rehearsal (not JSON)"),
        (START.encode() + b"\xff\xfe\n", ":2: is no event of a rehearsal (not JSON)"),
        (START + "{}\n", ":2: is no event of a rehearsal"),
        (START + "\n", ":2: is no event of a rehearsal (not JSON)"),
        (b"\x89PNG\r\n\x1a\n" * 100, ":1: is no event of a rehearsal (not JSON)"),
        ("", "is no log of a rehearsal"),
        ("[" * 500_000, "nested too deeply"),
    ],
)
def test_a_hostile_log_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes, told: str
) -> None:
    code, error = replayed(tmp_path, text, capsys, "report.json")
    assert code == 2 and told in error
    assert error.count("\n") == 1 and len(error) < 500 and error.rstrip("\n").isprintable()


@pytest.mark.timeout(60)
def test_a_source_that_has_no_end_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(json.dumps(event) + "\n" for event in RECORDED[0])
    text = text.replace("/project/early_stopping_of_one_rank/buggy.py", "/dev/zero")
    assert replayed(tmp_path, text, capsys, "report.html") == (1, "")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([2**31, -(2**40), 2**64, 2**200]),
    st.floats(), st.text(max_size=5), st.sampled_from(["0", "-1", "\0", "\udcff", "\ud800", "/dev/zero", "x" * 5000]),
    st.lists(st.integers(-2, 3), max_size=3), st.just([[]]), st.just({}), st.just({"0": {}}),
)  # fmt: skip


@st.composite
def mutated(draw: Any) -> list[Any]:
    """The events of a recorded log after a few changes."""
    events = copy.deepcopy(draw(st.sampled_from(RECORDED)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(events) - 1))
        kind = draw(st.sampled_from(("drop", "retype", "retype", "inside", "twice", "move", "lose", "every")))
        event = events[at]
        name = draw(st.sampled_from(sorted(event)))
        if kind == "drop":
            del event[name]
        elif kind == "retype":
            event[name] = draw(VALUES)
        elif kind == "inside" and isinstance(event[name], list | dict) and event[name]:
            held = event[name]
            held[draw(st.sampled_from(sorted(held) if isinstance(held, dict) else range(len(held))))] = draw(VALUES)
        elif kind == "twice":
            events.insert(draw(st.integers(0, len(events))), copy.deepcopy(event))
        elif kind == "move":
            events.insert(draw(st.integers(0, len(events) - 1)), events.pop(at))
        elif kind == "lose" and len(events) > 2:
            del events[at]
        elif kind == "every":  # of its kind alike: what no single event shows to be wrong
            value = draw(VALUES)
            for each in events:
                if each.get("event") == event.get("event"):
                    each[name] = value
    return events


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(events=[{"event": "start", "version": "x" * 5000}], report="report.json", cut=0)
@given(events=mutated(), report=st.sampled_from(("report.json", "report.html")), cut=st.integers(0, 30))
def test_a_mutated_log_is_judged_or_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], events: list[Any], report: str, cut: int
) -> None:
    text = "".join(json.dumps(event) + "\n" for event in events)
    with tempfile.TemporaryDirectory() as folder:
        code, error = replayed(Path(folder), text[: len(text) - cut] if cut < 20 else text, capsys, report)
    assert code in (0, 1, 2, 3)
    if code == 2:
        assert error.startswith("validate-ddp: error: ") and error.count("\n") == 1 and len(error) < 600
        assert (".jsonl:" in error and "record the run again" in error) or "is no log" in error or "of version" in error
    else:
        assert error == ""
