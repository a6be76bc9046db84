"""Events of the restart check: what each step is made from, what is saved, and what the whole and the restarted run
differ in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from .bounds import Count, Digest, Flag, Floats, Is, Numbers, Path, Rank, Size, Text, Texts, each, integer, is_text
from .event import Event, Timed
from .records import Record, wrong
from .values import CallSite, Line

_digests = each(integer(-(1 << 63), 1 << 64))


def _by_aspect(test: Any) -> Any:
    return lambda held: type(held) is dict and all(map(is_text, held)) and all(map(test, held.values()))


Names = Annotated[dict[str, list[str]], Is("an object of lists of names", _by_aspect(each(is_text)))]
Digests = Annotated[dict[str, list[int]], Is("an object of lists of digests", _by_aspect(_digests))]


class Moment(Timed):
    """An optimizer is about to step. count: the steps of all optimizers before it. batches: a digest of each that it
    is made from; turns: a number for the iteration over a loader that each is of, sizes: how many samples it has.
    samples: their indices, where known. inputs: digests of what the model was called with, where no batch of a loader
    was found in it. losses: of its backwards. rates: what the groups are set to. scale: the GradScaler's. digests: by
    aspect ("parameters", "buffers", "state", "averages", "averages_before", "random", "whole"), names: of these,
    where they are not those of the moment before."""

    optimizer: Count
    count: Count
    site: CallSite
    samples: Numbers | None = None
    batches: Numbers = ()
    turns: Numbers = ()
    sizes: Numbers = ()
    inputs: Numbers = ()
    losses: Floats = ()
    rates: Floats = ()
    rate_names: Texts = ()
    scale: Floats = ()
    digests: Digests = {}  # noqa: RUF012 - read, and never written to
    names: Names = {}  # noqa: RUF012


class Kept(Event):
    """What is saved, by key: names, a digest of each, and numbers and texts as they are. after: steps before it."""

    SAME_LENGTH = ("names", "numbers", "shown")
    path: Path | None
    after: Count
    site: CallSite
    names: Texts
    numbers: Numbers
    shown: Texts


class Randomness(Event):
    """The state of a generator is asked for, or set. generator: "torch", "numpy" or "python"."""

    generator: Text
    is_set: Flag
    digest: Digest
    after: Count
    site: CallSite


class Settings(Event):
    """Whole numbers that a command line has set, or left as they are, by the option that sets each."""

    SAME_LENGTH = ("names", "values")
    names: Texts
    values: Numbers


class Difference(Record):
    """Something in which the restarted run is not as the whole one. kind: the rule that it is of, as a word. step: the
    whole run's, from 1; place: the line that is reported; also: a second one, and why it matters."""

    kind: Text
    severity: Text
    rank: Rank
    step: Count
    text: Text
    place: Line | None = None
    also: Line | None = None
    note: Text = ""


class Side(Record):
    """A step of a rank in both runs. rows: of what, in the whole run, in the restarted one, and "differs" or "" each
    in turn."""

    step: Count
    rank: Rank
    rows: Texts


def _records(kind: type[Record]) -> Any:
    words = f"a list of {kind.__name__.lower()}s"
    read = lambda rows: [kind(**{k: _made(kind, k, v) for k, v in row.items() if k in kind.fields}) for row in rows]  # noqa: E731
    return Is(words, each(lambda row: type(row) is dict and not wrong(row, kind)), read)


def _made(kind: type[Record], name: str, value: Any) -> Any:
    from .records import bounds_of

    made = bounds_of(kind)[name][0].made if name in bounds_of(kind) else None
    return made(value) if made is not None and value is not None else value


class Restart(Event):
    """The command: what a restart has shown. why: in words, where nothing was compared. after: steps before the first
    run was ended; resumed: before that from which the third went on. ranks: of the third. looked: kinds that were
    looked at. unclear: what was not compared, and why. ended: by what the first run
    has come to its own end, at which it saves."""

    compared: Flag
    why: Text = ""
    ended: Text = ""
    after: Count = 0
    resumed: Count = 0
    ranks: Size = 1
    steps: Count = 0
    looked: Texts = ()
    unclear: Texts = ()
    differences: Annotated[Sequence[Difference], _records(Difference)] = ()
    sides: Annotated[Sequence[Side], _records(Side)] = ()
