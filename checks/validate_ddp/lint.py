"""The static check, end to end: from paths to findings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from validate_ddp.catalogue import name_of
from validate_ddp.findings import ERROR, INFO, WARNING, Finding, Proposal
from validate_ddp.launch import kinds
from validate_ddp.source.discovery import DEFAULT_EXCLUDES, SUFFIXES, discover
from validate_ddp.source.summaries import Summaries

if TYPE_CHECKING:
    from validate_ddp.config import Settings

_UNREADABLE, _SYNTAX = "DDP001", "DDP002"

Progress = Callable[[int, int], None]


class Outcome(NamedTuple):
    """What a check found.

    findings: sorted by path, cell, line, column and code; those that are selected and not suppressed.
    files: number of files looked at. texts: the text of a path, as findings name it, for code frames.
    notes: lines for people on what was left out. considered: absolute paths of all files that were found, read or not.
    """

    findings: tuple[Finding, ...]
    files: int
    texts: Callable[[str], str | None]
    notes: tuple[str, ...] = ()
    considered: frozenset[str] = frozenset()


def check(
    targets: Sequence[str],
    settings: Settings,
    stdin: bytes | None = None,
    on_progress: Progress | None = None,
    edited: Mapping[str, bytes] | None = None,
) -> Outcome:
    """Check files and folders; ``-`` stands for ``stdin``. A fault in one file becomes a finding, the rest goes on.

    edited: bytes to use in place of those on disk, by path as findings name it.
    """
    summaries = Summaries(_cache(settings))
    if edited:
        from validate_ddp.source.decoding import from_bytes

        settings = settings._replace(jobs=1)  # other processes would read the files
        for path, data in edited.items():
            source = from_bytes(path, data)
            if hasattr(source, "text"):
                summaries.provide(os.path.abspath(path), source)
    named = {os.path.abspath(settings.stdin_filename if target == "-" else target) for target in targets}
    summaries.named = named
    found, problems = _files(targets, settings, stdin, summaries, named)
    from validate_ddp import launches
    from validate_ddp.scripts import entries, kept

    files, started = launches.told_apart(found, named, summaries)
    launched = launches.read_all(started, named, summaries)
    scripts = [file for file in files if file in named and file.endswith(".py")]
    beside, notes = launches.beside(scripts, found, settings, summaries)
    launched.update(beside)
    considered = {*found, *beside}
    summaries.launched = launches.launched_by(launched, launches.told_of(files, summaries), files)

    survivors = kept(files, summaries)
    scripts = entries(survivors, summaries)
    proposals, reached = _propose(scripts, survivors, summaries, settings, on_progress)
    held = dict.fromkeys([*files, *sorted(reached)])  # what an imported module sets counts as what it calls
    proposals += launches.of_python(held, summaries, settings.enabled())
    findings = [*problems, *_findings(proposals, files, settings, summaries)]
    codes = {file: settings.enabled() - settings.ignored_in(summaries.shown(file)) for file in launched}
    findings += launches.check(launched, summaries, codes)
    for file in files:
        if file in named:
            summaries.body(file)  # a file that the user names is parsed in any case, to tell of a syntax error
    wanted = {*files, *started, *beside}
    findings += [
        _as_finding(_judged(problem, file, summaries) if file in named else problem, file in named)
        for file, problem in summaries.problems.items()
        if file in wanted
    ]
    chosen = {finding: None for finding in findings if finding.code not in settings.ignored_in(finding.path)}
    ordered = sorted(chosen, key=lambda f: (f.path, f.cell or 0, f.line, f.column, f.code))
    return Outcome(tuple(ordered), len(wanted) + len(problems), _texts(summaries), notes, frozenset(considered))


def _cache(settings: Settings) -> Any:
    if settings.cache_dir is None:
        return None
    from validate_ddp.source.cache import Cache, default_directory

    return Cache(settings.cache_dir or default_directory())


def _files(
    targets: Sequence[str], settings: Settings, stdin: bytes | None, summaries: Summaries, named: set[str]
) -> tuple[list[str], list[Finding]]:
    """Absolute paths of the files to check, and findings for targets that are none, or are no Python."""
    files: list[str] = []
    problems: list[Finding] = []
    if "-" in targets:
        from validate_ddp.source.decoding import from_bytes
        from validate_ddp.source.text import Problem

        name = settings.stdin_filename
        source = from_bytes(name, stdin or b"")
        if isinstance(source, Problem):
            problems.append(_as_finding(source, True))
        else:
            files.append(os.path.abspath(name))
            summaries.provide(files[0], source)
    found = discover(
        [target for target in targets if target != "-"],
        exclude=DEFAULT_EXCLUDES if settings.exclude is None else settings.exclude,
        extend_exclude=settings.extend_exclude,
        respect_gitignore=settings.respect_gitignore,
        root=settings.root or None,
        also=kinds.is_candidate,
    )
    for row in found:
        if row.problem is None:
            files.append(os.path.abspath(row.path))
        else:
            problems.append(_finding(_UNREADABLE, row.path, 1, 1, row.problem))
    files = list(dict.fromkeys(files))
    for file in named.intersection(files):
        kind = _foreign(file, summaries)
        if kind and not kinds.kind(file, _head(file, summaries)):
            message = f"is {kind}, which is neither Python nor a launch file: it is not read"
            problems.append(_finding(_UNREADABLE, summaries.shown(file), 1, 1, message, INFO))
            files.remove(file)
    return files, problems


def _foreign(file: str, summaries: Summaries) -> str:
    """What a file that the user names is, where it is no Python."""
    if file.endswith(SUFFIXES):
        return ""
    from validate_ddp.source.kinds import foreign

    return foreign(file, _head(file, summaries))


def _head(file: str, summaries: Summaries) -> bytes:
    return b"" if file.endswith(SUFFIXES) else (summaries.data(file) or b"")[:200]


def _judged(problem: Any, file: str, summaries: Summaries) -> Any:
    """A named file that does not parse is broken Python only where its name or its first line say that it is Python."""
    from validate_ddp.source.kinds import says_python

    if problem.kind != "syntax" or says_python(file, _head(file, summaries)):
        return problem
    return problem._replace(
        message=f"is no Python, and is not read ({problem.message})", kind="unreadable", cause="foreign"
    )


def _propose(
    scripts: list[str], survivors: list[str], summaries: Summaries, settings: Settings, on_progress: Progress | None
) -> tuple[list[Proposal], set[str]]:
    """What the rules propose for these scripts, and for the survivors that none of them reaches; the files reached."""
    from validate_ddp.scripts import propose

    found: list[Proposal] = []
    reached: set[str] = set()
    pending = scripts
    done = 0
    while pending:
        for proposals, files in propose(pending, summaries, settings.enabled(), settings.jobs):
            found += proposals
            reached.update(files)
            done += 1
            if on_progress is not None:
                on_progress(done, len(survivors))
        reached.update(pending)
        pending = [file for file in survivors if file not in reached][:1]
    return found, reached


def _findings(proposals: list[Proposal], files: list[str], settings: Settings, summaries: Summaries) -> list[Finding]:
    """Proposals by file: suppressed ones taken out, the others confirmed on the concrete syntax."""
    by_file: dict[str, list[Proposal]] = {}
    for proposal in _distinct(proposals):
        by_file.setdefault(os.path.abspath(proposal.path), []).append(proposal)
    findings: list[Finding] = []
    for file in dict.fromkeys([*files, *by_file]):
        held = by_file.get(file, [])
        source = summaries.source(file) if held or _has_comment(summaries, file) else None
        if source is None:
            continue
        path = summaries.shown(file)
        enabled = settings.enabled() - settings.ignored_in(path)
        from validate_ddp.edit.suppressions import suppress

        suppression = suppress(source.text, path, held, enabled, source.cells)
        findings += suppression.unused
        if suppression.kept:
            findings += _confirmed(source, suppression.kept, summaries.cache)
    return findings


def _has_comment(summaries: Summaries, file: str) -> bool:
    """Whether a file without findings may hold a suppression that is now unused."""
    data = summaries.data(file) or b""
    return b"validate-ddp" in data or (b"noqa" in data and b"DDP" in data)


def _distinct(proposals: list[Proposal]) -> list[Proposal]:
    """One proposal for each code and place: the most severe, and of equals the first."""
    chosen: dict[tuple[str, str, Any], Proposal] = {}
    order = ("info", "warning", "error")
    for proposal in proposals:
        key = (proposal.code, proposal.path, proposal.span)
        held = chosen.get(key)
        if held is None or order.index(proposal.severity) > order.index(held.severity):
            chosen[key] = proposal
    return list(chosen.values())


def _confirmed(source: Any, proposals: list[Proposal], cache: Any) -> list[Finding]:
    """Confirm on LibCST, or remember having done so.

    Only whether each was confirmed is remembered: no entry of the cache can take a finding away, or word one.
    """
    from validate_ddp.edit.telling import as_findings

    key = ""
    if cache is not None:
        import json

        from validate_ddp.findings import to_plain
        from validate_ddp.source.cache import digest

        key = digest(source.data, json.dumps([to_plain(proposal) for proposal in proposals]))
        known = cache.get("confirmed", key)
        if isinstance(known, list) and len(known) == len(proposals) and all(isinstance(sure, bool) for sure in known):
            return as_findings(source.text, proposals, known, source.cells)
    from validate_ddp.edit.confirm import confirmed

    sure = confirmed(source.text, proposals)
    if cache is not None:
        cache.put("confirmed", key, sure)
    return as_findings(source.text, proposals, sure, source.cells)


def _as_finding(problem: Any, is_named: bool) -> Finding:
    """A problem as it is told. A broken file ends the run with 2 only where the user names it: many a folder holds
    one, as a template, and the others in it are checked all the same."""
    if problem.cause == "broken":
        severity = ERROR if is_named else WARNING
    else:
        severity = ERROR if problem.cause == "refused" else INFO
    code = _UNREADABLE if problem.kind == "unreadable" else _SYNTAX
    finding = _finding(code, problem.path, max(problem.line, 1), max(problem.column, 1), problem.message, severity)
    return finding._replace(cell=problem.cell)


def _finding(code: str, path: str, line: int, column: int, message: str, severity: str = ERROR) -> Finding:
    return Finding(code, name_of(code), severity, path, line, column, line, column, message)


def _texts(summaries: Summaries) -> Callable[[str], str | None]:
    def text(path: str) -> str | None:
        source = summaries.source(os.path.abspath(path))
        return None if source is None else str(source.text)

    return text
