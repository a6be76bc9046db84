"""What an event holds, as far as the rules read it: a log that somebody else has written is looked at before it is
judged, and what is wrong in it is told with its line.

Kinds and fields that are not named here are nobody's business: another version may send more.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from validate_ddp.console import UsageError
from validate_ddp.findings import SEVERITIES, Finding, from_plain
from validate_ddp.rehearse.events import Event, Site
from validate_ddp.rehearse.log import AGAIN

_MOST = 1 << 53
"""Numbers below it are exact as floats too; digests, which may be larger, are only compared."""
_RANKS = 1 << 20


class Is(NamedTuple):
    """What a value has to be, in words and as a test. missing: whether it may be left out."""

    words: str
    holds: Callable[[Any], bool]
    missing: bool = False


def _integer(value: Any, least: int = 0, most: int = _MOST) -> bool:
    return type(value) is int and least <= value < most


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -1e12 < value < 1e12


def _float(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < _MOST)  # NaN and infinity too: losses are


def _text(value: Any) -> bool:
    return type(value) is str


def _path(value: Any) -> bool:
    try:
        return type(value) is str and "\0" not in value and bool(os.fsencode(value) or True)
    except UnicodeEncodeError:
        return False


def _each(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, array) or (type(value) is list and all(map(test, value)))


def _frame(value: Any) -> bool:
    if type(value) is not list or len(value) != 4:
        return False
    return _path(value[0]) and _integer(value[1]) and _text(value[2]) and type(value[3]) is bool


def _digest(value: Any) -> bool:
    return value is None or (type(value) is int and abs(value) < 1 << 65)


def _one_of(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(test(value) for test in tests)


def _none(value: Any) -> bool:
    return value is None


def _plain(value: Any, depth: int = 6) -> bool:
    if isinstance(value, list | dict):
        inside = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_plain(each, depth - 1) for each in inside)
    return True


def _flag(value: Any) -> bool:
    return not isinstance(value, list | dict)


def _name(value: Any) -> bool:
    return value is None or (type(value) is list and len(value) == 2 and _integer(value[0]) and _text(value[1]))


def _twin(value: Any) -> bool:
    return type(value) is list and len(value) == 5 and all(map(_text, value[:1] + value[2:3])) and _plain(value)


def _sampler(value: Any) -> bool:
    if type(value) is not dict or not (_text(value.get("kind")) and type(value.get("known")) is bool):
        return False
    return all(isinstance(state, int) for name, state in value.items() if name != "kind")


def _waiting(value: Any) -> bool:
    if type(value) is not dict:
        return False
    return all(
        rank.isascii()
        and rank.isdecimal()
        and len(rank) < 7
        and type(state) is dict
        and {"ended", "code"} <= state.keys()
        and all(map(_flag, state.values()))
        for rank, state in value.items()
    )


def _finding(row: Any) -> bool:
    try:
        found: Finding = from_plain(Finding, row)
        whole = (found.line, found.column, found.end_line, found.end_column)
        texts = (found.code, found.name, found.message, *(place.note for place in found.evidence))
        spans = [number for place in found.evidence for number in place.span]
        return (
            all(map(_integer, (*whole, *spans)))
            and all(map(_text, texts))
            and all(map(_path, (found.path, *(place.path for place in found.evidence))))
            and found.severity in SEVERITIES
            and (found.fix is None or _text(found.fix.title))
            and (found.cell is None or _integer(found.cell))
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        return False


COUNT = Is("a whole number", _integer)
RANK = Is("a rank", lambda value: _integer(value, 0, _RANKS))
SIZE = Is("a number of ranks", lambda value: _integer(value, 1, _RANKS))
CODE = Is("an exit code", lambda value: _integer(value, -_MOST))
NUMBER = Is("a number", _number)
TEXT = Is("a text", _text)
PATH = Is("a path", _path)
FLAG = Is("true or false", _flag)
SITE = Is("a call site", lambda value: type(value) is Site or _integer(value))
STACK = Is("a stack", _each(_frame))
COUNTS = Is("a list of whole numbers", _each(_integer))
RANKS = Is("a list of ranks", _each(lambda value: _integer(value, 0, _RANKS)))
DIGESTS = Is("a list of whole numbers", _each(_digest))
FLOATS = Is("a list of numbers", _each(_float))


def _or_none(kind: Is) -> Is:
    return Is(f"{kind.words} or null", _one_of(kind.holds, _none), kind.missing)


def _maybe(kind: Is) -> Is:
    return Is(kind.words, kind.holds, missing=True)


def _list_of(kind: Is) -> Is:
    return Is(f"a list with {kind.words} each", _each(kind.holds))


_CALL = {"n": COUNT, "site": SITE, "time": NUMBER, "ranks": _maybe(RANKS), "group": _maybe(_or_none(TEXT))}
_PLAN: Mapping[str, Is] = {
    "script": _maybe(_list_of(PATH)),
    "arguments": _maybe(_list_of(TEXT)),
    "nproc_per_node": _maybe(SIZE),
    "nnodes": _maybe(SIZE),
    "launcher": _maybe(TEXT),
    "max_steps": _maybe(_or_none(COUNT)),
    "stop_after": _maybe(_or_none(COUNT)),
    "timeout": _maybe(NUMBER),
    "hang": _maybe(NUMBER),
}
KINDS: Mapping[str, Mapping[str, Is]] = {
    "start": {
        "cwd": _maybe(PATH),
        "plan": _maybe(Is("an object", lambda value: type(value) is dict and _plain(value))),
        "read": _maybe(_or_none(Is("a list of findings", _each(_finding)))),
    },
    "hello": {"process": COUNT},
    "finish": {"outcome": TEXT, "seconds": _maybe(NUMBER)},
    "ended": {"rank_of": _or_none(RANK), "code": CODE},
    "hang": {"ranks": Is("an object with the state of each rank", _waiting)},
    "timeout": {"ranks": Is("an object with the state of each rank", _waiting)},
    "fault": {"where": TEXT, "message": TEXT},
    "shim": {"change": TEXT},
    "site": {"site": COUNT, "stack": STACK, "via": _maybe(TEXT)},
    "where": {"stack": STACK, "via": _maybe(TEXT)},
    "exception": {
        "kind": TEXT, "message": TEXT, "traceback": TEXT, "stack": STACK, "time": NUMBER,
        "present": _maybe(_or_none(TEXT)), "missing": _maybe(_or_none(TEXT)),
    },
    "exit": {"initialized": FLAG, "site": _or_none(SITE), "time": NUMBER},
    "group": {"world_size": SIZE, "site": SITE, "rank": _maybe(RANK)},
    "joining": {"n": COUNT, "site": SITE, "time": NUMBER, "rank": _maybe(_or_none(RANK))},
    "collective": {
        **_CALL, "op": TEXT, "dtype": _maybe(_or_none(TEXT)), "shape": _maybe(_or_none(COUNTS)),
        "reduce": _maybe(_or_none(TEXT)), "root": _maybe(FLAG), "given": _maybe(_or_none(FLOATS)),
        "members": _maybe(Is("a list of ranks", _plain)), "sequence": _maybe(FLAG),
    },
    "done": {
        "n": COUNT, "time": NUMBER, "error": _maybe(_or_none(TEXT)), "got": _maybe(_or_none(FLOATS)),
    },
    "forward": {
        **_CALL, "ddp": COUNT, "grad": FLAG, "sync": FLAG, "training": FLAG, "waits": FLAG, "rows": _or_none(COUNT),
        "ranks": RANKS,
    },
    "inner_forward": {"ddp": COUNT, "site": SITE, "time": NUMBER},
    "backward": {**_CALL, "armed": COUNTS, "waits": FLAG, "sync": FLAG},
    "ddp": {"ddp": COUNT, "site": SITE, "nested": FLAG, "batch_norms": COUNT},
    "join": {"entered": FLAG},
    "loader": {
        "loader": COUNT, "site": SITE, "length": _or_none(COUNT), "batches": _or_none(COUNT),
        "batch_size": _or_none(COUNT), "numbered": _or_none(COUNT), "iterable": FLAG, "part": _maybe(_or_none(COUNT)),
        "whole": _maybe(_or_none(COUNT)),
    },
    "sampler": {"sampler": COUNT, "site": SITE, "shuffle": FLAG, "rank": _maybe(_or_none(COUNT))},
    "set_epoch": {"sampler": _or_none(COUNT), "epoch": _or_none(CODE)},
    "split": {"digests": DIGESTS, "lengths": COUNTS, "site": SITE},
    "iteration": {
        "loader": COUNT, "turn": COUNT, "site": SITE,
        "samplers": _maybe(Is("a list with the state of each sampler", _each(_sampler))),
    },
    "iterated": {"loader": COUNT, "turn": COUNT, "exhausted": FLAG},
    "batch": {
        "loader": COUNT, "turn": COUNT, "site": SITE, "time": NUMBER, "size": _maybe(_or_none(COUNT)),
        "indices": _maybe(_or_none(DIGESTS)), "whole": _maybe(_or_none(DIGESTS)),
        "rows": _maybe(_or_none(Is("a list of lists of digests", _each(_each(_digest))))),
    },
    "optimizer": {"optimizer": COUNT, "kind": TEXT, "site": SITE, "inner": FLAG},
    "parameters": {
        "optimizer": COUNT, "names": Is("a list of names", _each(_name)), "before": DIGESTS,
        "shapes": Is("a list of shapes", _each(_each(_integer))),
    },
    "step": {
        "optimizer": COUNT, "count": COUNT, "site": SITE, "time": NUMBER, "grads": _or_none(DIGESTS),
        "params": _or_none(DIGESTS), "rates": _maybe(_or_none(FLOATS)), "rewritten": _maybe(FLAG),
        "norms": _maybe(_or_none(Is("a list of numbers", _each(_one_of(_float, _none))))),
    },
    "zero_grad": {"optimizer": _or_none(COUNT), "had": FLAG, "site": SITE},
    "clip": {"scaled": FLAG, "site": SITE},
    "schedule": {"schedule": COUNT, "kind": TEXT, "steps": NUMBER, "site": SITE},
    "scheduled": {"schedule": COUNT},
    "seed": {"value": Is("a value", _flag), "site": SITE},
    "draw": {"function": TEXT, "count": COUNT, "digest": Is("a whole number or null", _digest), "site": SITE},
    "mean_loss": {"count": COUNT, "site": SITE},
    "average": {
        "site": SITE, "dtype": TEXT, "should": _maybe(COUNT), "still": _maybe(COUNT), "count": _maybe(COUNT),
        "decay": _maybe(_or_none(NUMBER)),
    },
    "gathered": {"op": TEXT, "own": FLAG, "site": SITE, "backward": SITE},
    "save": {
        "path": _or_none(PATH), "tensors": COUNT, "wrapped": COUNT, "site": SITE,
        "twins": _maybe(_or_none(Is("a list of pairs", _each(_twin)))),
    },
    "unsaved": {"path": _or_none(PATH)},
    "renamed": {"source": PATH, "path": PATH},
    "write": {"path": _or_none(PATH), "site": SITE, "mode": _maybe(TEXT)},
    "device": {"index": COUNT, "site": SITE, "via": TEXT},
    "claim": {"text": TEXT, "site": SITE},
    "sharded": {"kind": TEXT, "site": SITE},
    "stale": {"optimizer": COUNT, "count": COUNT, "held": COUNT, "kind": _or_none(TEXT), "site": SITE},
    "differential": {
        "compared": FLAG, "why": _maybe(TEXT), "relative": _maybe(_or_none(Is("a number", _float))),
        "factor": _maybe(_or_none(Is("a number", _float))), "beside": _maybe(_or_none(Is("a number", _float))),
        "float64": _maybe(FLAG), "batch_norms": _maybe(COUNT), "world_size": _maybe(SIZE),
        "worst": _maybe(Is("a name", _flag)), "place": _maybe(_or_none(Is("a line", _frame))),
    },
}  # fmt: skip
"""By kind, its fields."""
_EVERY: Mapping[str, Is] = {"process": _maybe(COUNT), "rank_of": _maybe(_or_none(RANK)), "time": _maybe(NUMBER)}
_AS_LONG = {"parameters": ("names", "shapes", "before")}
"""Lists with a place for each parameter."""


def check(events: Iterable[Event], path: str) -> None:
    """Raises UsageError for the first event that does not hold what the rules read of its kind, with its line."""
    for number, event in enumerate(events, 1):
        fields = KINDS.get(event["event"])
        wrong = _wrong(event, _EVERY) or (fields and _wrong(event, fields))
        if not wrong and "plan" in event and number == 1:
            wrong = _wrong(event["plan"], _PLAN)
        if not wrong and event["event"] in _AS_LONG:
            lengths = {name: len(event[name]) for name in _AS_LONG[event["event"]]}
            if len(set(lengths.values())) > 1:
                wrong = " and ".join(f"`{name}`" for name in lengths) + " have to be of one length"
        if wrong:
            kind = event["event"][:40]
            raise UsageError(f"{path}:{number}: the event `{kind}` is not as this version writes it: {wrong}: {AGAIN}")


def _wrong(held: Mapping[str, Any], fields: Mapping[str, Is]) -> str:
    for name, kind in fields.items():
        if name not in held:
            if not kind.missing:
                return f"there is no `{name}`"
        elif not kind.holds(held[name]):
            return f"`{name}` has to be {kind.words}, and is {_shown(held[name])}"
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, list | dict | array | Site):
        return "a list or an object"
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    try:
        text = repr(value)
    except ValueError:  # of thousands of digits
        return "a number with thousands of digits"
    return text if len(text) <= 40 else text[:37] + "..."
