"""A run shows DDP602: a schedule was made for as many times more steps as there are ranks."""

from __future__ import annotations

from collections import Counter

from validate_ddp.findings import WARNING
from validate_ddp.rehearse.iterations import training_turns
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict

_CLOSE = 0.06
_ENOUGH = 4
"""Steps of an epoch from which on rounding explains little else."""


def judge(run: Run) -> Verdict:
    """Only of runs that came to their end whole: a run that is cut short takes fewer steps by intent."""
    if run.world_size < 2 or run.truncated or run.outcome != "finished" or not run.ranks:
        return NOT_OBSERVED
    rank = run.ranks[0]
    looked = False
    counts = Counter(event["schedule"] for event in run.of(rank, "scheduled"))
    for schedule in run.of(rank, "schedule"):
        taken = counts[schedule["schedule"]]
        if not taken:
            continue
        looked = True
        ratio = schedule["steps"] / taken
        if abs(ratio / run.world_size - 1) < _CLOSE or _rounded(run, rank, schedule["steps"], taken):
            message = (
                f"`{schedule['kind']}` is made for {schedule['steps']:g} steps, and the run takes {taken}: "
                f"{run.world_size} times fewer, as many as there are ranks"
            )
            return Verdict(True, (Observation("DDP602", WARNING, schedule["site"], message, (), (rank,)),))
    return HELD if looked else NOT_OBSERVED


def _rounded(run: Run, rank: int, steps: float, taken: int) -> bool:
    """Whether it is as many times more in each epoch, but for the last batch, which need not be whole."""
    epochs = len([turn for turn in training_turns(run, rank) if turn.exhausted is not None])
    if not epochs or taken % epochs or taken // epochs < _ENOUGH:
        return False
    each = taken // epochs
    return each - 1 < steps / epochs / run.world_size <= each
