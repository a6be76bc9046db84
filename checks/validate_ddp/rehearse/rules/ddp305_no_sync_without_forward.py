"""A run shows DDP305: the wrapper's forward never lets its backward reduce, or the wrong one does."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.updates import agree, averaged_by_hand, differing, wrapped_steps
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Note, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Looks at steps whose gradients differ although the wrapper was called, and at backwards that reduce anyway. Local
    SGD has them differ, and averages the parameters now and then."""
    looked = False
    by_hand: dict[int, bool] = {}
    for number, count, update in wrapped_steps(run):
        training = [event for event in update.forwards if event["grad"]]
        if not training or not update.backwards:
            continue
        vain = [event for event in update.backwards if event["armed"] and not event["sync"]]
        if vain:
            message = "`no_sync()` round the backward alone has no effect: the forward decides, and it was outside"
            notes = (Note(training[-1]["site"], "the forward, with synchronisation on"),)
            return Verdict(True, (Observation("DDP305", ERROR, vain[0]["site"], message, notes, (run.ranks[0],)),))
        if not training[-1]["sync"] and number not in by_hand:
            by_hand[number] = averaged_by_hand(run, number)
        if training[-1]["sync"] or by_hand[number]:
            looked = True
            continue
        looked = looked or agree(run, number, count, "grads", wrapped=True)
        if differing(run, number, count, "grads", wrapped=True):
            reduced = any(event["sync"] for event in training)
            message = f"at step {count} the gradients differ between ranks: " + (
                "the last forward before it ran under `no_sync()`, and what an earlier one reduced is not all"
                if reduced
                else "every forward before it ran with synchronisation off, so no backward reduces them"
            )
            found = Observation("DDP305", ERROR, training[-1]["site"], message, (), tuple(run.ranks))
            return Verdict(True, (found,))
    return HELD if looked else NOT_OBSERVED
