"""What ranks did with each batch of their loaders: forwards, backwards, steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Run, Site


@dataclass
class Batch:
    """One batch, and what followed until the next one."""

    event: Event
    forwards: list[Event] = field(default_factory=list)
    backwards: list[Event] = field(default_factory=list)
    steps: list[Event] = field(default_factory=list)


@dataclass
class Turn:
    """One iteration over a loader. ended: it ran out or was cut by ``--max-steps``; left: it was left before."""

    loader: int
    number: int
    site: Site
    batches: list[Batch] = field(default_factory=list)
    exhausted: bool | None = None

    @property
    def trains(self) -> bool:
        """Whether gradients are made of its batches."""
        return any(batch.backwards for batch in self.batches)

    @property
    def indices(self) -> list[list[int]]:
        """Indices by batch; empty lists where they are not known."""
        return [batch.event.get("indices") or [] for batch in self.batches]


def turns(run: Run, rank: int) -> list[Turn]:
    """The iterations of one rank, in the order in which they began; nested ones get what happens within them."""
    found: list[Turn] = []
    open_turns: list[Turn] = []
    for event in run.by_rank.get(rank, ()):
        kind = event["event"]
        if kind == "iteration":
            turn = Turn(event["loader"], event["turn"], event["site"])
            found.append(turn)
            open_turns.append(turn)
        elif kind == "batch":
            for turn in reversed(open_turns):
                if (turn.loader, turn.number) == (event["loader"], event["turn"]):
                    turn.batches.append(Batch(event))
                    # What lies above was left without an end, by a `break`.
                    del open_turns[open_turns.index(turn) + 1 :]
                    break
        elif kind == "iterated":
            for turn in open_turns[:]:
                if (turn.loader, turn.number) == (event["loader"], event["turn"]):
                    turn.exhausted = event["exhausted"]
                    open_turns.remove(turn)
        elif kind in ("forward", "inner_forward", "backward", "step"):
            last = next((turn for turn in reversed(open_turns) if turn.batches), None)
            if last is not None:
                batch = last.batches[-1]
                {"backward": batch.backwards, "step": batch.steps}.get(kind, batch.forwards).append(event)
    return found


def training_turns(run: Run, rank: int) -> list[Turn]:
    """Iterations over loaders from which the rank learns: all those of a loader that it ever does."""
    every = turns(run, rank)
    loaders = {turn.loader for turn in every if turn.trains}
    return [turn for turn in every if turn.loader in loaders]


def loader_of(run: Run, rank: int, number: int) -> Event | None:
    """The event of a loader's construction."""
    for event in run.of(rank, "loader"):
        if event["loader"] == number:
            return event
    return None


def sampler_of(run: Run, rank: int, loader: Event) -> Event | None:
    """The event of the construction of a loader's DistributedSampler."""
    for event in run.of(rank, "sampler"):
        if event["sampler"] == loader.get("numbered"):
            return event
    return None
