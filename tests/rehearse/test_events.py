"""Events as they are kept: the same as they were sent, and small."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from validate_ddp.rehearse.events import Frame, Keeper, Site

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))


def plain(event: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if type(value).__name__ == "array" else value for name, value in event.items()}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_an_event_is_kept_as_it_was_sent_but_for_its_call_site(path: Path) -> None:
    keeper = Keeper()
    sites = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        sent = json.loads(line)
        kept = plain(keeper.kept(dict(sent)))
        if sent["event"] != "site" and "site" in sent:
            assert isinstance(kept["site"], Site)
            kept["site"] = sent["site"]
            sites += 1
        assert list(kept.items()) == list(sent.items())
        assert list(map(type, kept.values())) == list(map(type, sent.values()))
    assert sites > 20


def test_events_with_the_same_fields_share_their_names_and_equal_lists() -> None:
    keeper = Keeper()
    sent = {"event": "step", "params": [2**60 + 1, 5], "rates": [0.1], "optimizer": 0, "time": 1.5, "site": 1}
    *_, one, two = (keeper.kept(json.loads(json.dumps({**sent, "process": rank}))) for rank in range(64))
    assert one["params"] is two["params"] and one["rates"] is two["rates"]
    assert list(one["params"]) == [2**60 + 1, 5]
    assert type(one) is dict and sys.getsizeof(one) < sys.getsizeof(dict(one))


@pytest.mark.parametrize("value", [[True], [1], [1.0], [None], ["1"], [[1]], [2**70], [], [{}], True, None, "x", 2**70])
@pytest.mark.parametrize("name", ["params", "ranks", "n", "count", "event", "__class__", "__dict__", "a b", "site"])
def test_whatever_a_log_holds_is_kept_alike(name: str, value: Any) -> None:
    keeper = Keeper()
    for other in ([1], [1.0], [True], value):
        keeper.kept({"event": "x", name: other})
    kept = keeper.kept({"event": "x", name: value})[name]
    kept = list(kept) if type(kept).__name__ == "array" else kept
    assert kept == value and type(kept) is type(value)
    if isinstance(value, list) and name != "params":
        assert list(map(type, kept)) == list(map(type, value))


def test_a_call_site_is_that_of_its_process_and_known_from_when_it_was_told() -> None:
    keeper = Keeper()
    assert keeper.kept({"event": "step", "process": 0, "site": 3})["site"] == 3
    keeper.kept({"event": "site", "process": 0, "site": 3, "via": "", "stack": [["a.py", 5, "f", False]]})
    assert keeper.kept({"event": "step", "process": 0, "site": 3})["site"] == Site((Frame("a.py", 5, "f", False),))
    assert keeper.kept({"event": "step", "process": 1, "site": 3})["site"] == 3
    assert keeper.kept({"event": "step", "process": [], "site": 3})["site"] == 3


def test_any_number_of_sets_of_fields_is_kept() -> None:
    keeper = Keeper()
    assert [keeper.kept({f"f{number}": number})[f"f{number}"] for number in range(2000)] == list(range(2000))
