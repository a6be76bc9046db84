"""The rules over the events of a run: one file a code, found by its name, each with ``judge(run) -> Verdict``."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

from validate_ddp.rehearse.pace import OutOfTime
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import NOT_JUDGED, NOT_OBSERVED, Verdict

Judge = Callable[[Run], Verdict]


def judges() -> dict[str, Judge]:
    """``judge`` of every rule, by code."""
    found: dict[str, Judge] = {}
    for file in sorted(os.listdir(os.path.dirname(os.path.abspath(__file__)))):
        code = file[:-3].partition("_")[0]
        if file.endswith(".py") and len(code) == 6 and code.startswith("ddp") and code[3:].isdigit():
            found[code.upper()] = import_module(f"{__name__}.{file[:-3]}").judge
    return found


def judged(run: Run) -> dict[str, Verdict]:
    """What every rule says of the run, by code, after what one defect makes several rules say has been sorted out."""
    verdicts = _all(run)
    late = {code: verdict for code, verdict in verdicts.items() if not verdict.in_time}
    return _one_a_place(_cause_alone(verdicts)) | late


def _all(run: Run) -> dict[str, Verdict]:
    """Of the rules for which the time was too short: not judged."""
    every = judges()
    verdicts = dict.fromkeys(every, NOT_JUDGED)
    for done, (code, judge) in enumerate(every.items()):
        try:
            if run.pace is not None:
                run.pace.done, run.pace.total = done, len(every)
            with run.bounded():
                run.look()
                verdicts[code] = judge(run)
        except OutOfTime:
            break
    return verdicts


_CAUSES = (("DDP104", "DDP202"), ("DDP303", "DDP301"), ("DDP310", "DDP501"))
"""Pairs of a rule and another that sees its consequence at the same line."""


def _cause_alone(verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    for cause, consequence in _CAUSES:
        if cause in verdicts and consequence in verdicts:
            places = {finding.site.place for finding in verdicts[cause].findings}
            left = tuple(each for each in verdicts[consequence].findings if each.site.place not in places)
            verdicts[consequence] = verdicts[consequence]._replace(findings=left)
    return verdicts


_PRECEDENCE = ("DDP506", "DDP403", "DDP402", "DDP404", "DDP408", "DDP401", "DDP407")


def _one_a_place(verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    """Ranks that part show it once: the most telling of the rules on collectives speaks, the others say nothing."""
    spoken = False
    for code in _PRECEDENCE:
        verdict = verdicts.get(code)
        if verdict is None or not verdict.findings:
            continue
        if spoken:
            verdicts[code] = NOT_OBSERVED  # where ranks have parted, what comes after says nothing
        spoken = True
    if spoken and "DDP303" in verdicts:
        verdicts["DDP303"] = NOT_OBSERVED  # it compares step by step: they are not of the same batches any more
    return verdicts
