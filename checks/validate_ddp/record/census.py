"""What ranks compute with, laid side by side: the state of the same model, called by all of them at the same moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from validate_ddp.record.one_model import sharers
from validate_ddp.record.run import Run, Site, once
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

_Key = tuple[object, ...]


class Look(NamedTuple):
    """One moment at which all ranks that share a model call it. state: of the first of them. digests: of each name, by
    rank."""

    state: protocol.State
    digests: list[tuple[int | None, ...]]

    def apart(self) -> set[int]:
        """Places of what ranks were seen to hold different values of."""
        return {at for at, values in enumerate(self.digests) if None not in values and len(set(values)) > 1}

    def equal(self) -> set[int]:
        """Places of what they were seen to hold in common."""
        return {at for at, values in enumerate(self.digests) if None not in values and len(set(values)) == 1}


class Common(NamedTuple):
    """A model that several ranks call, in one way: with gradients or without, for training or for evaluation. looks: in
    their order, by the first rank."""

    model: protocol.Model
    training: bool
    grad: bool
    looks: list[Look]

    def names(self, places: set[int]) -> str:
        """The first of some names."""
        shown = [f"`{self.model.names[at]}`" for at in sorted(places)]
        return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")


@once
def models(run: Run, overwritten: bool = False) -> list[Common]:
    """Those that all ranks which train one model call. Models that are made of the same are told apart by their order,
    if each rank has as many of them. overwritten: what they hold before a wrapper makes it that of one rank, instead of
    what they compute with."""
    ranks = sharers(run)
    by_rank = [_states(run, rank, overwritten) for rank in ranks]
    told = [Counter(model.made_of for model in run.of(rank, protocol.Model)) for rank in ranks]
    found: dict[_Key, Common] = {}
    for key, (model, state) in by_rank[0].items() if ranks else ():
        others = [states.get(key) for states in by_rank]
        if any(other is None for other in others) or any(one[model.made_of] != told[0][model.made_of] for one in told):
            continue
        rows = [other[1].digests for other in others if other is not None]
        common = found.setdefault(key[:-1], Common(model, state.training, state.grad, []))
        common.looks.append(Look(state, list(zip(*rows, strict=True))))
    return list(found.values())


def _states(run: Run, rank: int, overwritten: bool) -> dict[_Key, tuple[protocol.Model, protocol.State]]:
    """The states that a rank has told of, by what is the same on other ranks."""
    made: dict[int, tuple[int, protocol.Model]] = {}
    seen: Counter[object] = Counter()
    found: dict[_Key, tuple[protocol.Model, protocol.State]] = {}
    for event in run.of(rank, protocol.Model, protocol.State):
        if isinstance(event, protocol.Model):
            made[event.model] = seen[event.made_of], event
            seen[event.made_of] += 1
        elif (
            event.overwritten is overwritten
            and event.model in made
            and len(event.digests) == len(made[event.model][1].names)
        ):
            order, model = made[event.model]
            key = (model.made_of, order, event.training, event.grad, (event.steps, event.backwards))
            found.setdefault(key, (model, event))
    return found


def calls(run: Run, common: Common) -> Iterator[protocol.Called]:
    """What the first calls of it on the first rank show."""
    for event in run.of(sharers(run)[0], protocol.Called):
        if (event.model, event.training, event.grad) == (common.model.model, common.training, common.grad):
            yield event


def changed_at(run: Run, common: Common, places: set[int]) -> Site | None:
    """The line of the script that was seen to change some of these last, on the first rank."""
    found = None
    for event in run.of(sharers(run)[0], protocol.Changed):
        if event.model == common.model.model and places.intersection(event.places):
            found = Site((event.line,))
    return found
