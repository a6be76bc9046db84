"""The rules over the events of a run: one file a code, found by its name, each with ``judge(run) -> Verdict``."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import NOT_OBSERVED, Verdict

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
    verdicts = {code: judge(run) for code, judge in judges().items()}
    return _one_a_place(_cause_alone(verdicts))


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
