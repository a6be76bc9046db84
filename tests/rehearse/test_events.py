"""Events as they are sent, written, read and kept: the same on both sides, small, and known to somebody."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_ddp import rehearse
from validate_ddp.record.events import Keeper
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import Frame, Site

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))
ENCODE = json.JSONEncoder(separators=(",", ":"), default=protocol.as_json).encode


def written(event: protocol.Event) -> dict[str, Any]:
    """What stands in the line of an event."""
    line: dict[str, Any] = json.loads(ENCODE(event.plain()))
    return line


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_an_event_is_written_as_it_was_sent(path: Path) -> None:
    keeper = Keeper()
    sites = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        sent = json.loads(line)
        event = keeper.kept(sent)
        known = {name: value for name, value in sent.items() if name == "event" or name in type(event).fields}
        assert written(event) == known
        assert known == sent or isinstance(event, protocol.Unknown)  # such as `ready`, of an earlier version
        sites += isinstance(site := getattr(event, "site", None), Site) and bool(site.frames)
    assert sites > 20


TEXT = st.text(max_size=5).filter(lambda text: text.isprintable())
COUNTS = st.integers(0, 2**40)
RANKS = st.integers(0, 9)
FRAMES = st.builds(Frame, TEXT, COUNTS, TEXT, st.booleans())
FLOATS = st.floats(-1e9, 1e9)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a whole number": COUNTS, "a rank": st.integers(0, 99), "a number of ranks": st.integers(1, 99),
    "an exit code": st.integers(-99, 99), "a number": FLOATS, "a text": TEXT, "a path": TEXT,
    "true or false": st.booleans(), "a value": TEXT, "a name": TEXT, "a list of ranks": st.lists(st.integers(0, 9)),
    "a list of whole numbers": st.lists(COUNTS, max_size=3),
    "a list of numbers": st.lists(FLOATS, max_size=3), "a list of texts": st.lists(TEXT, max_size=3),
    "a list of lists of digests": st.lists(st.lists(COUNTS, max_size=2), max_size=2),
    "a list of shapes": st.lists(st.lists(COUNTS, max_size=2), max_size=2),
    "a list of names": st.lists(st.none() | st.builds(protocol.Name, COUNTS, TEXT), max_size=2),
    "a list of pairs": st.lists(st.builds(protocol.Twins, TEXT, st.booleans(), TEXT, st.booleans(), COUNTS)),
    "a list with the state of each sampler": st.lists(
        st.builds(protocol.Sampling, kind=TEXT, known=st.booleans(), rank=COUNTS), max_size=2
    ),
    "a list of readings": st.lists(
        st.builds(
            protocol.Reading, optimizer=COUNTS, target=TEXT, rank=COUNTS, kind=TEXT, factor=FLOATS, tapes=st.just([0]),
            backwards=st.just([0]), coefficients=st.just([0.5]), residual=FLOATS, names=st.lists(TEXT, max_size=2),
        ), max_size=2,
    ),
    "a list of differences": st.lists(
        st.builds(protocol.Difference, kind=TEXT, severity=TEXT, rank=RANKS, step=COUNTS, text=TEXT, place=FRAMES),
        max_size=2,
    ),
    "a list of sides": st.lists(st.builds(protocol.Side, step=COUNTS, rank=RANKS, rows=st.lists(TEXT)), max_size=2),
    "an object of lists of names": st.dictionaries(TEXT, st.lists(TEXT, max_size=2), max_size=2),
    "an object of lists of digests": st.dictionaries(TEXT, st.lists(COUNTS, max_size=2), max_size=2),
    "an object with the state of each rank": st.dictionaries(
        st.integers(0, 9), st.builds(protocol.Standing, ended=st.booleans(), code=COUNTS | st.none())
    ),
    "an object": st.just({}), "a list of findings": st.just([]), "a stack": st.tuples(FRAMES), "a line": FRAMES,
    "a call site": st.builds(lambda number: Site(number=number), COUNTS),
}  # fmt: skip


@st.composite
def events(draw: Any, kind: type[protocol.Event]) -> protocol.Event:
    """Any event of a kind, with and without what may be left out."""
    fields: dict[str, Any] = {}
    for name, (bounds, _) in protocol.bounds_of(kind).items():
        words = bounds.words.removesuffix(" or null")
        if name not in kind.defaults or name in kind.REQUIRED or draw(st.booleans()):
            fields[name] = draw(VALUES[words] if words == bounds.words else st.none() | VALUES[words])
    if kind is protocol.Parameters:
        fields.update(names=[None], before=[None], shapes=[[1]])
    if kind is protocol.Model:
        fields.update(names=["mean"], shapes=[[1]])
    if kind is protocol.Kept:
        fields.update(names=["mean"], numbers=[1], shown=[""])
    if kind is protocol.Settings:
        fields.update(names=["--steps"], values=[8])
    return kind(**fields)


@pytest.mark.parametrize("kind", protocol.KINDS.values(), ids=list(protocol.KINDS))
def test_every_event_comes_back_from_its_line(kind: type[protocol.Event]) -> None:
    @settings(max_examples=25)
    @given(event=events(kind))
    def comes_back(event: protocol.Event) -> None:
        line = json.loads(ENCODE(event.plain()))
        assert protocol.wrong(line, kind) == ""
        again = Keeper().kept(line)
        assert type(again) is kind and written(again) == line
        for name in kind.fields:
            one, two = getattr(event, name), getattr(again, name)
            assert list(two) == list(one) if type(two).__name__ in ("array", "list", "tuple") else two == one

    comes_back()


@pytest.mark.parametrize("kind", protocol.KINDS.values(), ids=list(protocol.KINDS))
def test_an_event_that_lacks_a_field_or_holds_something_else_there_is_refused(kind: type[protocol.Event]) -> None:
    @settings(max_examples=5)
    @given(event=events(kind))
    def is_refused(event: protocol.Event) -> None:
        line = json.loads(ENCODE(event.plain()))
        for name, (bounds, missing) in protocol.bounds_of(kind).items():
            without = {each: value for each, value in line.items() if each != name}
            assert missing or protocol.wrong(without, kind) == f"there is no `{name}`"
            deep = "[" * 7 + "]" * 7
            if name != "read":  # the command's
                assert f"`{name}` has to be {bounds.words}" in protocol.wrong({**line, name: json.loads(deep)}, kind)

    is_refused()


def test_every_event_is_sent_by_somebody_and_read_by_somebody() -> None:
    (home,) = rehearse.__path__
    sent, parent, read = set(), set(), set()
    for path in Path(home).parent.rglob("*.py"):
        if "protocol" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        if "child" in path.parts:
            sent |= set(re.findall(r"\b([A-Z]\w+)\(", text))
        else:
            parent |= set(re.findall(r"\bprotocol\.([A-Z]\w+)\(|_dump\(protocol\.(\w+)\)", text))
            read |= set(re.findall(r"\bprotocol\.([A-Z]\w+)\b", text))
    made = sent | {name for pair in parent for name in pair}
    # Those with a call site tell where a rank was last.
    dead = [kind for kind in protocol.KINDS.values() if kind.__name__ not in read and "site" not in kind.fields]
    assert not dead and not [kind for kind in protocol.KINDS.values() if kind.__name__ not in made]


def test_equal_lists_and_numbers_are_kept_once() -> None:
    keeper = Keeper()
    sent = {"event": "step", "params": [2**60 + 1, 5], "rates": [0.1], "optimizer": 0, "time": 1.5, "site": 1}
    *_, one, two = (keeper.kept(json.loads(json.dumps({**sent, "process": rank}))) for rank in range(64))
    assert isinstance(one, protocol.Step) and isinstance(two, protocol.Step)
    assert one.params is two.params and one.rates is two.rates and one.site is two.site
    assert list(one.params or ()) == [2**60 + 1, 5]
    assert sys.getsizeof(one) < 200 and not hasattr(one, "__dict__")


@pytest.mark.parametrize("value", [[True], [1], [1.0], [None], ["1"], [[1]], [2**70], [], [{}], True, None, "x", 2**70])
@pytest.mark.parametrize("name", ["params", "rates", "count", "kind", "none", "__class__", "__dict__", "a b", "site"])
def test_whatever_a_process_sends_is_kept_alike_or_not_at_all(name: str, value: Any) -> None:
    keeper = Keeper()
    for other in ([1], [1.0], [True], value):
        keeper.kept({"event": "step", name: other})
    event = keeper.kept({"event": "step", name: value})
    if name not in protocol.Step.fields:
        assert event.plain() == {"event": "step"}
    elif name != "site" or isinstance(value, bool) or not isinstance(value, int):
        kept = getattr(event, name)
        kept = list(kept) if type(kept).__name__ == "array" else kept
        assert kept == value and type(kept) is type(value)
        if isinstance(value, list) and name != "params":
            assert list(map(type, kept)) == list(map(type, value))


def test_a_call_site_is_that_of_its_process_and_known_from_when_it_was_told() -> None:
    keeper = Keeper()
    clip = {"event": "clip", "scaled": False, "site": 3}

    def of(process: int) -> Site:
        event = keeper.kept({**clip, "process": process})
        assert isinstance(event, protocol.Clip)
        return event.site

    assert of(0) == protocol.NOWHERE
    keeper.kept({"event": "site", "process": 0, "site": 3, "via": "", "stack": [["a.py", 5, "f", False]]})
    assert of(0) == Site((Frame("a.py", 5, "f", False),))
    assert of(1) == protocol.NOWHERE
    assert written(keeper.kept({**clip, "process": 1}))["site"] == 3


def test_an_event_of_another_version_is_a_sign_of_life() -> None:
    event = Keeper().kept({"event": "sneezed", "process": 1, "rank_of": 0, "time": 2.5, "loudness": 9})
    assert isinstance(event, protocol.Unknown) and (event.process, event.rank_of, event.time) == (1, 0, 2.5)
    assert written(event)["event"] == "sneezed" and "loudness" not in written(event)


def test_what_may_be_left_out_reads_as_its_default_and_is_not_written() -> None:
    event = protocol.Done(n=3, got=None)
    assert event.got is None and event.error is None and written(event) == {"event": "done", "n": 3}
    with pytest.raises(AttributeError, match="no n"):
        protocol.Done(error="x").n  # type: ignore[call-arg] # noqa: B018
    with pytest.raises(AttributeError):
        protocol.Done(m=3)  # type: ignore[call-arg]
