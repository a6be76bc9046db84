"""``validate-ddp run``: rehearses, judges, reports, and gives the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from validate_ddp.catalogue import Finding
from validate_ddp.cli import BAD_INPUT, FOUND, INTERRUPTED, OK, UsageError, colored, columns
from validate_ddp.rehearse import log as logs
from validate_ddp.rehearse import reading, show
from validate_ddp.rehearse.as_json import as_json
from validate_ddp.rehearse.differential import differential
from validate_ddp.rehearse.options import Options
from validate_ddp.rehearse.options import read as read_options
from validate_ddp.rehearse.outcome import Judged, judge
from validate_ddp.rehearse.page import as_html
from validate_ddp.rehearse.parent.supervisor import supervise
from validate_ddp.rehearse.parent.view import Plain, View

FAILED = 3


def main(arguments: Sequence[str]) -> int:
    """0 nothing at or above ``--fail-on``, 1 findings, 2 bad usage, 3 the script itself failed or timed out."""
    options = read_options(list(arguments))
    judged = _replayed(options.replay) if options.replay is not None else _rehearsed(options)
    if judged.run.outcome == "interrupted":
        return INTERRUPTED
    _report(judged, options)
    return _code(judged, options.fail_on)


def _replayed(path: str) -> Judged:
    events = logs.read(path)
    plan = events[0].get("plan", {})
    settings = reading.settings_for(reading.file_of(tuple(plan.get("script") or ())))
    return judge(events, reading.wanted(settings, events[0].get("cwd", "")))


def _rehearsed(options: Options) -> Judged:
    plan = options.plan
    assert plan is not None  # the parser gives one where nothing is replayed
    log = logs.Log(options.log)
    file = reading.file_of(plan.script)
    settings = reading.settings_for(file)
    read = reading.read(file, settings) if options.static and file is not None else None
    try:
        with _view(options, read or ()) as view:
            outcome = supervise(plan, log, view, read=None if read is None else reading.plain(read))
            if options.differential and outcome != "interrupted":
                differential(plan, log, view)
    finally:
        log.close()
    return judge(log.events, reading.wanted(settings, os.getcwd()))


@contextmanager
def _view(options: Options, read: tuple[Finding, ...]) -> Iterator[View]:
    """A table on a terminal, plain remarks elsewhere."""
    terminal = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if not (options.live and terminal):
        yield Plain()
        return
    from validate_ddp.rehearse.live import LiveView

    with LiveView(colored(options.color, terminal), [f"{each.code} {each.path}:{each.line}" for each in read]) as view:
        yield view


def _report(judged: Judged, options: Options) -> None:
    from validate_ddp.report import Options as Drawing

    drawing = Drawing(color=colored(options.color, sys.stdout.isatty()), width=columns())
    sys.stdout.write(show.as_text(judged, drawing))
    sys.stdout.flush()
    if options.report is not None:
        text = as_json(judged) if options.report.endswith(".json") else as_html(judged)
        try:
            with open(options.report, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
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
