"""The options of ``validate-ddp`` and what their values may be."""

from __future__ import annotations

import argparse
from typing import NoReturn

from validate_ddp import __version__
from validate_ddp.arguments import Arguments
from validate_ddp.config import FAIL_ON
from validate_ddp.console import UsageError

_EPILOG = """commands:
  validate-ddp [check] [PATH ...]   check files and folders (`check` for a path named like a command)
  validate-ddp run SCRIPT           rehearse a training script on CPU processes (`validate-ddp run --help`)
  validate-ddp explain RULE         what a rule finds, why, and what to do
  validate-ddp rules                all rules

exit codes: 0 nothing at or above --fail-on; 1 findings; 2 bad usage, or a file that could not be read or parsed
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all of ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def check_arguments(arguments: list[str]) -> Arguments:
    """The command line of ``validate-ddp [check]``."""
    values = vars(parse(check_parser(), arguments))
    return Arguments(**{**values, "paths": tuple(values["paths"])})


def parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """The options; paths may stand anywhere between them, and after ``--`` everything is a path."""
    rest: list[str] = []
    if "--" in arguments:
        border = arguments.index("--")
        arguments, rest = arguments[:border], arguments[border + 1 :]
    args = parser.parse_intermixed_args(arguments)
    if hasattr(args, "paths"):
        args.paths = [*args.paths, *rest] or ["."]
    elif rest:
        args.rules = [*getattr(args, "rules", ()), *rest]
    return args


def _comma_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _ignores(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """``pattern:RULE,RULE,pattern:RULE`` as pairs; an item without a colon belongs to the pattern before it."""
    pairs: list[tuple[str, tuple[str, ...]]] = []
    for item in _comma_list(text):
        pattern, colon, selector = item.rpartition(":")
        if colon and pattern and selector:
            pairs.append((pattern.strip(), (selector.strip(),)))
        elif not colon and pairs:
            pairs[-1] = (pairs[-1][0], (*pairs[-1][1], item))
        else:
            raise argparse.ArgumentTypeError(f"`{item}` is not PATTERN:RULE, such as `tests/*:DDP201`")
    return pairs


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of processes: a whole number, 0 for automatic")
    return int(text)


def check_parser() -> argparse.ArgumentParser:
    """The parser of ``validate-ddp [check]``."""
    parser = _Parser(
        prog="validate-ddp",
        description="Is this multi-GPU PyTorch training right? Checks scripts without importing or running them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files and folders (default: .); `-` reads standard input")
    add("-V", "--version", action="version", version=f"validate-ddp {__version__}")
    _add_rules(parser)
    _add_files(parser)
    _add_report(parser)
    fixes = parser.add_argument_group("fixes").add_argument
    fixes("--fix", action="store_true", help="carry out the safe fixes")
    fixes("--unsafe-fixes", action="store_true", help="with --fix or --diff: the unsafe ones too; they ask for a look")
    fixes("--diff", action="store_true", help="print what --fix would change, and change nothing; 1 if it would")
    return parser


def _add_rules(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("rules (codes, prefixes such as DDP2, names, or ALL; with commas)").add_argument
    add("--select", type=_comma_list, action="extend", metavar="RULES", help="the rules to enable (default: ALL)")
    add("--ignore", type=_comma_list, action="extend", metavar="RULES", help="rules to leave out")
    add("--extend-select", type=_comma_list, action="extend", metavar="RULES", help="rules to enable in addition")
    add("--per-file-ignores", type=_ignores, action="extend", metavar="PATTERN:RULE", help="left out in some files")
    add("--fail-on", choices=FAIL_ON, help="least severity that gives exit code 1 (default: error)")


def _add_files(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("files and settings").add_argument
    add("--exclude", type=_comma_list, action="extend", metavar="PATTERNS", help="in place of the built-in excludes")
    add("--extend-exclude", type=_comma_list, action="extend", metavar="PATTERNS", help="in addition to the excludes")
    add(
        "--no-respect-gitignore",
        dest="respect_gitignore",
        action="store_const",
        const=False,
        help="look at files that .gitignore names too",
    )
    add("--stdin-filename", metavar="PATH", help="the name under which `-` is reported")
    add("--config", metavar="FILE", help="read [tool.validate-ddp] from this file")
    add("--isolated", action="store_true", help="read no configuration file")
    add("--cache-dir", metavar="DIR", help="where results are kept (default: the user's cache directory)")
    add("--no-cache", action="store_true", help="neither read nor write the cache")
    add("--jobs", type=_count, metavar="N", help="processes (default: chosen by the number of files)")


def _add_report(parser: argparse.ArgumentParser) -> None:
    from validate_ddp.report import FORMATS

    add = parser.add_argument_group("report").add_argument
    add("--output-format", choices=FORMATS, default="text", help="default: text")
    add("--output-file", metavar="FILE", help="write the report there")
    add("--explain-evidence", action="store_true", help="show how each finding was derived")
    add("--statistics", action="store_true", help="count findings a rule in place of listing them")
    add("-q", "--quiet", action="store_true", help="findings only, no summary")
    _add_color(parser)


def _add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="default: auto; NO_COLOR is honoured"
    )


def explain_parser() -> argparse.ArgumentParser:
    """The parser of ``validate-ddp explain``."""
    parser = _Parser(prog="validate-ddp explain", description="What a rule finds, why, and what to do.")
    parser.add_argument("rules", nargs="*", metavar="RULE", help="code or name")
    parser.add_argument("--output-format", choices=("text", "json"), default="text")
    _add_color(parser)
    return parser


def rules_parser() -> argparse.ArgumentParser:
    """The parser of ``validate-ddp rules``."""
    parser = _Parser(prog="validate-ddp rules", description="All rules of the catalogue.")
    parser.add_argument("--output-format", choices=("text", "json"), default="text")
    _add_color(parser)
    return parser
