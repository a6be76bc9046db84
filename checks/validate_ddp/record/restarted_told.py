"""What a comparison of runs has found becomes the event of the command: differences with their lines, what was looked
at, and what was not compared."""

from __future__ import annotations

from validate_ddp.findings import INFO
from validate_ddp.record.restart import SAMPLES, Runs, Seen, Unclear, Wrong, moments
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol


class Comparison:
    """Of the restarted run with what it is to go on from."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.found: list[protocol.Difference] = []
        self.looked: list[str] = []
        self.unclear: list[str] = []
        self.place, self.saved = runs.place()

    def take(self, kind: str, seen: Seen) -> None:
        """What was seen of a kind."""
        for each in seen:
            if isinstance(each, Unclear):
                self.unclear.append(each.text)
                continue
            self.looked.append(kind)
            if each is not None:
                at = each.place or (_loop(self.runs) if kind == SAMPLES else None) or self.place
                self.found.append(difference(each, kind, at, self.saved if self.saved != at else None))

    def has(self, *kinds: str) -> bool:
        """Whether there is a difference of one of these kinds."""
        return any(each.kind in kinds for each in self.found)

    @property
    def clean(self) -> bool:
        """Whether nothing differs but what may."""
        return all(each.severity == INFO for each in self.found)

    def event(self, resumed: int) -> protocol.Restart:
        """resumed: the steps before the first one of the restarted run."""
        runs = self.runs
        return protocol.Restart(
            compared=True, ended=runs.ended, after=runs.at, resumed=resumed, ranks=len(runs.resumed.ranks),
            steps=len(moments(runs.resumed, runs.resumed.ranks[0])), differences=self.found, unclear=self.unclear,
            looked=list(dict.fromkeys(self.looked)),
        )  # fmt: skip


def difference(
    wrong: Wrong, kind: str, place: protocol.Frame | None, saved: protocol.Frame | None
) -> protocol.Difference:
    """What goes into the event."""
    return protocol.Difference(
        kind=kind, severity=wrong.severity, rank=wrong.rank, step=wrong.step, text=wrong.text, place=place, also=saved,
        note="saved here",
    )  # fmt: skip


def _loop(runs: Runs) -> protocol.Frame | None:
    """The line at which the restarted run takes the last batch before its first step."""
    rank = runs.resumed.ranks[0]
    until = moments(runs.resumed, rank)[0].event.time
    sites = [each.site for each in runs.resumed.of(rank, protocol.Batch) if each.time < until]
    return sites[-1].own if sites and sites[-1].frames else None
