"""What the rules say of a run: the ``judge(run) -> Verdict`` of each, and which of them speaks of one defect."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from validate_ddp.catalogue import every, load
from validate_ddp.rehearse.pace import OutOfTime
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import NOT_JUDGED, NOT_OBSERVED, Note, Observation, Verdict

Judge = Callable[[Run], Verdict]


def judges() -> dict[str, Judge]:
    """``judge`` of every rule, by code."""
    found: dict[str, Judge] = {}
    for stub in every():
        module = load(stub)
        if "R" in module.EVIDENCE:
            room = stub.module if hasattr(module, "judge") else stub.module.replace(".rules.", ".rehearse.rules.")
            found[stub.code] = import_module(room).judge
    return found


def judged(run: Run) -> dict[str, Verdict]:
    """What every rule says of the run, by code, after what one defect makes several rules say has been sorted out."""
    verdicts = _all(run)
    late = {code: verdict for code, verdict in verdicts.items() if not verdict.in_time}
    return _one_a_parting(_cause_alone(verdicts)) | late


def _all(run: Run) -> dict[str, Verdict]:
    """Of the rules for which the time was too short: not judged."""
    judging = judges()
    verdicts = dict.fromkeys(judging, NOT_JUDGED)
    for done, (code, judge) in enumerate(judging.items()):
        try:
            if run.pace is not None:
                run.pace.done, run.pace.total = done, len(judging)
            with run.bounded():
                run.look()
                verdicts[code] = judge(run)
        except OutOfTime:
            break
    return verdicts


_CAUSES = (
    ("DDP104", "DDP202"), ("DDP104", "DDP209"), ("DDP209", "DDP202"), ("DDP211", "DDP202"), ("DDP303", "DDP301"),
    ("DDP310", "DDP501"),
)  # fmt: skip
"""Pairs of a rule and another that sees its consequence at the same line."""


def _cause_alone(verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    for cause, consequence in _CAUSES:
        if cause in verdicts and consequence in verdicts:
            places = {finding.site.place for finding in verdicts[cause].findings}
            former = verdicts[consequence].findings
            left = tuple(each for each in former if each.site.place not in places)
            if len(left) < len(former):  # what was seen there is no proof that all is well
                verdicts[consequence] = Verdict(True, left) if left else NOT_OBSERVED
    if verdicts.get("DDP204", NOT_OBSERVED).findings:
        # Ranks that share out other splits miss samples and repeat others.
        verdicts |= {code: NOT_OBSERVED for code in ("DDP209", "DDP211") if code in verdicts}
    return verdicts


_PRECEDENCE = ("DDP506", "DDP403", "DDP402", "DDP404", "DDP408", "DDP401", "DDP407")
"""The rules by which ranks part, the most telling first."""


def _one_a_parting(verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    """Ranks that part show it at several places: the most telling of the rules speaks, and what the others say of the
    same parting becomes its notes. What was before it, or of other ranks, is another defect."""
    found = [each for code in _PRECEDENCE if code in verdicts for each in verdicts[code].findings]
    kept: list[Observation] = []
    for each in sorted(found, key=lambda each: _earlier(each, found)):
        at = next((at for at, cause in enumerate(kept) if cause.code != each.code and _follows(each, cause)), None)
        if at is None:
            kept.append(each)
        else:
            kept[at] = _with(kept[at], each)
    for code in _PRECEDENCE:
        if found and code in verdicts:
            left = tuple(each for each in kept if each.code == code)
            # Where ranks have parted, what comes after says nothing.
            verdicts[code] = Verdict(True, left) if left else NOT_OBSERVED
    drift = verdicts.get("DDP303", NOT_OBSERVED)
    if any(each.parts for each in kept):
        drift = NOT_OBSERVED  # it compares step by step: they are not of the same batches any more
    elif kept and drift.findings:
        apart = tuple(each for each in drift.findings if not any(_after(each, cause) for cause in kept))
        drift = Verdict(True, apart) if apart else NOT_OBSERVED
    return verdicts | ({"DDP303": drift} if "DDP303" in verdicts else {})


def _earlier(each: Observation, found: list[Observation]) -> tuple[bool, int]:
    """Causes first: what comes before others by which ranks part; else the more telling rule."""
    return any(other.parts and not _follows(other, each) and _follows(each, other) for other in found), (
        _PRECEDENCE.index(each.code)
    )


def _follows(each: Observation, cause: Observation) -> bool:
    """Whether one comes of the other: not before it on the ranks that both are of."""
    return cause.parts and _after(each, cause)


def _after(each: Observation, cause: Observation) -> bool:
    began = dict(cause.since)
    both = [(moment, began[rank]) for rank, moment in each.since if rank in began]
    return bool(both) and all(moment >= start for moment, start in both)


def _with(cause: Observation, each: Observation) -> Observation:
    """A cause with what comes of it among its notes."""
    site = each.call or each.site
    notes = [Note(site, f"it shows here: {each.message}"), *each.notes]
    told = {cause.site.place, *(note.site.place for note in cause.notes)}
    new = tuple(note for note in notes if note.site.place not in told)
    return cause._replace(notes=(*cause.notes, *new), consequences=(*cause.consequences, each))
