"""``validate-ddp run``: rehearses, judges, reports, and gives the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from validate_ddp.catalogue import Finding
from validate_ddp.cli import BAD_INPUT, FOUND, INTERRUPTED, OK, UsageError, colored, columns
from validate_ddp.rehearse import log as logs
from validate_ddp.rehearse import show
from validate_ddp.rehearse.options import Options, read
from validate_ddp.rehearse.outcome import Judged, judge
from validate_ddp.rehearse.parent.supervisor import supervise

FAILED = 3


def main(arguments: Sequence[str]) -> int:
    """0 nothing at or above ``--fail-on``, 1 findings, 2 bad usage, 3 the script itself failed or timed out."""
    options = read(list(arguments))
    if options.replay is not None:
        judged = judge(logs.read(options.replay))
    else:
        judged = _rehearsed(options)
        if judged.run.outcome == "interrupted":
            return INTERRUPTED
    _report(judged, options)
    return _code(judged, options.fail_on)


def _rehearsed(options: Options) -> Judged:
    assert options.plan is not None  # the parser gives one where nothing is replayed
    log = logs.Log(options.log)
    try:
        supervise(options.plan, log, _note)
    finally:
        log.close()
    return judge(log.events)


def _note(text: str) -> None:
    print(f"validate-ddp: {text}", file=sys.stderr, flush=True)


def _report(judged: Judged, options: Options) -> None:
    from validate_ddp.report import Options as Drawing

    drawing = Drawing(color=colored(options.color, sys.stdout.isatty()), width=columns())
    sys.stdout.write(show.as_text(judged, drawing))
    sys.stdout.flush()
    if options.report is not None:
        try:
            with open(options.report, "w", encoding="utf-8") as file:
                file.write(show.as_json(judged))
        except OSError as error:
            raise UsageError(f"{options.report}: the report cannot be written: {error.strerror or error}") from error


def _code(judged: Judged, fail_on: str) -> int:
    if judged.failed:
        return FAILED
    if judged.run.outcome == "hang":
        return FOUND  # whatever the findings that explain it: ranks that wait for ever are one
    return FOUND if _counts(judged.findings, fail_on) else OK


def _counts(findings: tuple[Finding, ...], fail_on: str) -> bool:
    from validate_ddp.cli import exit_code

    return exit_code(findings, fail_on) not in (OK, BAD_INPUT)
