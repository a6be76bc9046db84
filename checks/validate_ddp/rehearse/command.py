"""``validate-ddp run``: rehearses, judges, reports, and gives the exit code."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from validate_ddp.config import Settings
from validate_ddp.console import FOUND, INTERRUPTED, OK, UsageError, colored, columns
from validate_ddp.findings import SEVERITIES, Finding
from validate_ddp.output_files import write_report
from validate_ddp.record import pace
from validate_ddp.rehearse import fake_data, flight, imports, reading, restart, show, simulated, sizes
from validate_ddp.rehearse import log as logs
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.options import Options, on_top, read_trace
from validate_ddp.rehearse.options import read as read_options
from validate_ddp.rehearse.outcome import Judged, judge
from validate_ddp.rehearse.page import as_html
from validate_ddp.rehearse.page.sizes import as_html as sizes_as_html
from validate_ddp.rehearse.parent import ending
from validate_ddp.rehearse.parent.supervisor import supervise
from validate_ddp.rehearse.parent.view import Plain, View
from validate_ddp.rehearse.partition import check_partition
from validate_ddp.rehearse.report_json import as_json, sizes_as_json
from validate_ddp.rehearse.restart import Restarting, run_restarted
from validate_ddp.report.printable import escape

FAILED = 3


def main(arguments: Sequence[str]) -> int:
    """0 nothing at or above ``--fail-on``, 1 findings, 2 bad usage, 3 the script itself failed or timed out."""
    options = read_options(list(arguments))
    if options.plan is None:
        assert options.replay is not None
        events = logs.read(options.replay)
        with _replaying(options.replay):
            start = events[0]
            script = start.plan.get("script") if isinstance(start, protocol.Start) else None
            settings = reading.settings_for(reading.file_of(tuple(script or ())))
        options = on_top(options, settings)
    else:
        file = reading.file_of(options.plan.script)
        settings = reading.settings_for(file)
        options = on_top(options, settings)
        for order in options.fake_data:
            Plain().note(fake_data.make(order))
        if len(options.as_world) > 1:
            return _sizes(options, file, settings)
        events = _rehearsed(options, file, settings)
    judged = _judged(events, settings, options)
    if judged.run.outcome == "interrupted":
        return INTERRUPTED
    with _replaying(options.replay):
        _report(judged, options)
    return _code(judged, options.fail_on or settings.fail_on)


def _sizes(options: Options, file: str | None, settings: Settings) -> int:
    """The table of several sizes; the worst exit code of them."""
    judged: list[Judged] = []
    assert options.plan is not None
    for size in options.as_world:
        plan = simulated.planned(options.plan, size, options.as_ranks, options.per_node)
        judged.append(_judged(_rehearsed(options._replace(plan=plan), file, settings), settings, options))
        if judged[-1].run.outcome == "interrupted":
            return INTERRUPTED
    _say(sizes.as_table(judged), options, lambda: sizes_as_json(judged), lambda: sizes_as_html(judged))
    return max(_code(each, options.fail_on or settings.fail_on) for each in judged)


def trace(arguments: Sequence[str]) -> int:
    """What the dumps of PyTorch's flight recorder say of a job that hung: exit codes as of ``main``."""
    options = read_trace(list(arguments))
    events, said = flight.events(options.dumps, os.getcwd())
    path = options.dumps[0]
    settings = reading.settings_for(None)
    told = Options(replay=path, report=options.report, color=options.color)
    judged = _judged(events, settings, told)
    with _replaying(path):
        _report(judged, told)
    for line in said:
        print(f"validate-ddp: {escape(line)}", file=sys.stderr)
    return _code(judged, settings.fail_on)


def _judged(events: list[protocol.Event], settings: Settings, options: Options) -> Judged:
    with (
        _replaying(options.replay),
        pace.shown(options.timeout, len(events), options.live and _on_terminal()) as bound,
    ):
        return judge(
            events, reading.wanted(settings, events[0].cwd if isinstance(events[0], protocol.Start) else ""), bound
        )


@contextmanager
def _replaying(path: str | None) -> Iterator[None]:
    """What fails on a log that somebody else may have written is the log's fault: each event is as it should be, and
    they do not fit together."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if path is None or (isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG):
            raise  # an OSError is of what is written, as by a full disk
        told = f"{type(error).__name__}: {error}"[:200]
        raise UsageError(f"{path}: the events do not fit together ({told}): {logs.AGAIN}") from error


def _rehearsed(options: Options, file: str | None, settings: Settings) -> list[protocol.Event]:
    plan, log, began = options.plan, logs.Log(options.log), time.monotonic()
    assert plan is not None  # there is one where nothing is replayed
    read = reading.read(file, settings) if options.static and file is not None else None
    option = reading.option_of_rank(read or ()) if plan.launcher == "auto" else ""
    if option and not any(word.startswith(("--local_rank", "--local-rank")) for word in plan.arguments):
        said = f"`{option}` is given to each rank, as torch.distributed.launch did; torchrun does not (DDP105)"
        plan = replace(plan, arguments=(f"{option}=0", *plan.arguments), said=(said,))
    try:
        with ending.last(lambda: _cut_off(log, began)), _view(options, read or ()) as view:
            found = None if read is None else reading.plain(read)
            wrong = imports.missing(file, plan) if file is not None else None
            if wrong is not None:
                imports.tell(log, plan, wrong, found)
            elif plan.ranks:
                simulated.simulate(plan, log, view, found)
            elif options.restart_at is not None:
                words = restart.arguments(options.restart_args)
                run_restarted(plan, log, view, found, Restarting(options.restart_at, words, options.restart_nproc))
            elif supervise(plan, log, view, found) != "interrupted":
                check_partition(plan, log, view, options.partition)
    finally:
        log.close()
    return log.events


def _on_terminal() -> bool:
    return sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _cut_off(log: logs.Log, began: float) -> None:
    """The end of a log whose command is ended by a signal: what was seen can be replayed."""
    if log.file is not None and all(not isinstance(event, protocol.Finish) for event in reversed(log.events)):
        log.add(protocol.Finish(outcome="interrupted", seconds=round(time.monotonic() - began, 3)))
    log.close()


@contextmanager
def _view(options: Options, read: tuple[Finding, ...]) -> Iterator[View]:
    """A table on a terminal, plain remarks elsewhere."""
    terminal = _on_terminal()
    if not (options.live and terminal) or options.as_world:
        yield Plain()
        return
    from validate_ddp.rehearse.live import LiveView

    found = [f"{each.code} {each.path}:{each.line}" for each in read]
    with (
        LiveView(colored(options.color, terminal), found) as view,
        ending.last(_show_cursor),
        ending.last(view.live.stop),
    ):
        yield view  # what comes last there is called first


def _show_cursor() -> None:
    """Past the table, which may have been interrupted while it was written, and then cannot be ended in order."""
    os.write(2, b"\x1b[?25h")


def _report(judged: Judged, options: Options) -> None:
    from validate_ddp.report import Options as Drawing

    drawing = Drawing(color=colored(options.color, sys.stdout.isatty()), width=columns())
    _say(show.as_text(judged, drawing), options, lambda: as_json(judged), lambda: as_html(judged))


def _say(told: str, options: Options, in_json: Callable[[], str], in_html: Callable[[], str]) -> None:
    try:
        with _written("standard output"):
            sys.stdout.write(told)
            sys.stdout.flush()
    finally:  # a reader that has gone, or a full disk, is no reason to lose what goes elsewhere
        if options.report is not None:
            text = in_json() if options.report.endswith(".json") else in_html()
            with _written(options.report):
                write_report(options.report, text.encode("utf-8", "backslashreplace"))


@contextmanager
def _written(where: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"{where}: the report cannot be written: {error.strerror or error}") from error


def _code(judged: Judged, fail_on: str) -> int:
    if judged.failed:
        return FAILED
    if judged.run.outcome == "hang":
        return FOUND  # whatever the findings that explain it: ranks that wait for ever are one
    return (
        FOUND
        if fail_on != "never"
        and any(SEVERITIES.index(finding.severity) >= SEVERITIES.index(fail_on) for finding in judged.findings)
        else OK
    )
