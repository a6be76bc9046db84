"""The command ``validate-ddp``: argument parsing and exit codes, nothing else."""

from __future__ import annotations

import os
import sys

from validate_ddp.console import BAD_INPUT, FOUND, INTERRUPTED, OK, UsageError, colored, columns

TYPE_CHECKING = False  # as `typing` has it, whose import would take a third of the time of `--version`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from validate_ddp.arguments import Arguments
    from validate_ddp.config import Settings
    from validate_ddp.findings import Finding
    from validate_ddp.lint import Outcome
    from validate_ddp.report import Options

_MANY_FILES = 200
"""From so many files on, progress is shown on a terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 nothing found, 1 findings, 2 bad usage or unreadable input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["--version"], ["-V"]):  # before anything is imported
        from validate_ddp import __version__

        print(f"validate-ddp {__version__}")
        return OK
    import gc

    gc.disable()  # trees are many objects and no garbage, and looking for it takes a third of the time
    try:
        return _dispatch(arguments)
    except (UsageError, ChildProcessError) as error:
        from validate_ddp.report.printable import escape

        message = " ".join(str(error).split())
        print(f"validate-ddp: error: {escape(message)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FOUND


def run() -> NoReturn:
    """The command as a process: ends it with the exit code, and without taking apart what is on the heap.

    To free the trees of some hundred files one by one takes a fifth of a run.
    """
    from validate_ddp.own_path import leave_out_working_directory

    leave_out_working_directory()
    _open_closed_streams()
    import atexit

    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or FOUND  # the reader has gone, or the disk is full
    atexit._run_exitfuncs()
    os._exit(code)


def _open_closed_streams() -> None:
    """A stream that the caller has closed (``>&-``) is None, and the next file that is opened would take its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the life of the process


def _dispatch(arguments: list[str]) -> int:
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError("the working directory is gone: change to one that exists") from error
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character must not end the run
            stream.reconfigure(errors="backslashreplace")
    if arguments[:1] == ["explain"]:
        return _explain(arguments[1:])
    if arguments[:1] == ["rules"]:
        return _rules(arguments[1:])
    if arguments[:1] == ["run"]:
        from validate_ddp.rehearse.parent import ending

        with ending.handled():  # before anything of weight is imported
            from validate_ddp.rehearse.command import main as rehearse

            return rehearse(arguments[1:])
    if arguments[:1] == ["check"]:
        arguments = arguments[1:]
    from validate_ddp.arguments import plain

    args = plain(arguments)
    if args is None:
        from validate_ddp.options import check_arguments

        args = check_arguments(arguments)
    return _check(args)


def _check(args: Arguments) -> int:
    if args.output_file is not None:
        from validate_ddp.output_files import objection

        told = objection("--output-file", args.output_file, (*args.paths, args.config or ""))
        if told is not None:
            raise UsageError(told)
    settings = _settings(args)
    options = _options(args)
    stdin = sys.stdin.buffer.read() if "-" in args.paths else None
    if args.fix or args.diff:
        return _fix(args, settings, options, stdin)
    from validate_ddp.lint import check

    outcome = check(args.paths, settings, stdin, _progress())
    _write(_report(outcome, args, options), args.output_file)
    return exit_code(outcome.findings, settings.fail_on)


def exit_code(findings: Sequence[Finding], fail_on: str) -> int:
    """2 where a file that was to be checked could not be read or parsed, else 1 for a finding at or above ``fail_on``,
    else 0. A broken file that was only met in a folder is a warning, and newer syntax is a note: neither gives 2."""
    from validate_ddp.config import ALWAYS_ON
    from validate_ddp.findings import ERROR, SEVERITIES

    if any(finding.code in ALWAYS_ON and finding.severity == ERROR for finding in findings):
        return BAD_INPUT
    if fail_on == "never":
        return OK
    least = SEVERITIES.index(fail_on)
    return FOUND if any(SEVERITIES.index(finding.severity) >= least for finding in findings) else OK


def _report(outcome: Outcome, args: Arguments, options: Options) -> str:
    if args.statistics:
        from validate_ddp.report import statistics

        as_json = args.output_format == "json"
        return statistics.render_json(outcome) if as_json else statistics.render(outcome, options)
    from validate_ddp.report import render

    return render(outcome, args.output_format, options)


def _fix(args: Arguments, settings: Settings, options: Options, stdin: bytes | None) -> int:
    from validate_ddp.edit import fixing
    from validate_ddp.report.printable import escape, plain_rows

    if stdin is not None and len(args.paths) > 1:
        raise UsageError("`-` can be fixed only alone: give it no other paths")
    result = fixing.fix(args.paths, settings, stdin, unsafe=args.unsafe_fixes, write=not args.diff)
    for line in result.problems:
        print(f"validate-ddp: {escape(line)}", file=sys.stderr)
    if args.diff:
        shown = fixing.diff(result.changes)
        _write(plain_rows(shown) if args.output_file is None and sys.stdout.isatty() else shown, args.output_file)
        print(fixing.would_fix(result), file=sys.stderr)
        bad = exit_code(result.outcome.findings, "never")
        return bad or (FOUND if result.changes else OK)
    # Machines read standard output as one report, and that of `-` as the fixed source: what was done goes beside it.
    beside = stdin is not None or args.output_format != "text" or args.output_file is not None
    if stdin is not None:
        _write(fixing.fixed_stdin(result, stdin), None)
    if result.fixed and not args.quiet:
        print(fixing.done(result), file=sys.stderr if beside else sys.stdout)
    report = _report(result.outcome, args, options)
    if stdin is not None and args.output_file is None:
        print(report, end="", file=sys.stderr)
    else:
        _write(report, args.output_file)
    return exit_code(result.outcome.findings, settings.fail_on)


def _write(report: str | bytes, path: str | None) -> None:
    try:
        _written(report, path)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = path or "standard output"
        raise UsageError(f"{where}: the report cannot be written: {error.strerror or error}") from error


def _written(report: str | bytes, path: str | None) -> None:
    if path is not None:
        from validate_ddp.output_files import write_report

        write_report(path, report if isinstance(report, bytes) else report.encode("utf-8", "backslashreplace"))
    elif isinstance(report, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(report)
        sys.stdout.buffer.flush()
    else:
        sys.stdout.write(report)
        sys.stdout.flush()


def _settings(args: Arguments) -> Settings:
    from validate_ddp import config

    try:
        settings = config.read(args.paths[0], config=args.config, isolated=args.isolated)
        return config.override(
            settings,
            select=args.select,
            ignore=args.ignore or (),
            extend_select=args.extend_select or (),
            fail_on=args.fail_on,
            per_file_ignores=args.per_file_ignores,
            exclude=args.exclude,
            extend_exclude=args.extend_exclude,
            respect_gitignore=args.respect_gitignore,
            cache_dir=args.cache_dir,
            no_cache=args.no_cache,
            jobs=args.jobs,
            stdin_filename=args.stdin_filename,
        )
    except config.ConfigError as error:
        raise UsageError(str(error)) from error


def _options(args: Arguments) -> Options:
    from validate_ddp.report import Options

    # A report for people on standard output may be coloured; one in a file only when asked for.
    color = colored(args.color, sys.stdout.isatty() and args.output_file is None)
    return Options(color=color, width=columns(), derivation=args.explain_evidence, summary=not args.quiet)


def _progress() -> Callable[[int, int], None] | None:
    """What ``lint.check`` calls with (files done, files in all): a bar, drawn only where it helps."""
    if not sys.stderr.isatty():
        return None
    bar = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        if total < _MANY_FILES:
            return
        if bar is None:
            from validate_ddp.report.progress import Bar

            bar = Bar(total)
        bar.show(done)

    return show


def _explain(arguments: list[str]) -> int:
    from validate_ddp import catalogue
    from validate_ddp.options import explain_parser, parse
    from validate_ddp.report import explain

    args = parse(explain_parser(), arguments)
    if not args.rules:
        raise UsageError("explain needs the code or the name of a rule: `validate-ddp rules` lists them")
    found = [(text, catalogue.find(text)) for text in args.rules]
    rules = []
    for text, stub in found:
        if stub is None:
            raise UsageError(catalogue.unknown(text))
        rules.append(catalogue.describe(stub))
    if args.output_format == "json":
        _write(explain.as_json(rules), None)
    elif colored(args.color, sys.stdout.isatty()):
        for rule in rules:
            explain.explain_on_terminal(rule)
    else:
        _write("\n".join(explain.explain(rule) for rule in rules), None)
    return OK


def _rules(arguments: list[str]) -> int:
    from validate_ddp import catalogue
    from validate_ddp.options import parse, rules_parser
    from validate_ddp.report import explain

    args = parse(rules_parser(), arguments)
    rules = [catalogue.describe(stub) for stub in catalogue.every()]
    if args.output_format == "json":
        _write(explain.as_json(rules), None)
    else:
        _write(explain.table(rules, colored(args.color, sys.stdout.isatty())), None)
    return OK
