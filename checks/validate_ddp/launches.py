"""Launch files from paths to findings: which are read, what the rules propose, which proposals comments silence."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from validate_ddp.catalogue import BrokenRule, Stub, every, launch_trigger, load
from validate_ddp.console import UsageError
from validate_ddp.findings import Finding, Place, Proposal
from validate_ddp.launch import kinds
from validate_ddp.launch.project import candidates, handed_on, root_of, started
from validate_ddp.source.discovery import DEFAULT_EXCLUDES, SUFFIXES, near
from validate_ddp.source.summaries import Summaries
from validate_ddp.source.text import FOREIGN, UNREADABLE, Problem

if TYPE_CHECKING:
    from validate_ddp.config import Settings
    from validate_ddp.interpreter.started import Command, Launched
    from validate_ddp.launch.records import Launch, Start

_MOST_NAMES = 2000
_MOST_BESIDE = 300
"""Names of files and folders, and launch files, that are looked at round a script: what takes some ms."""
_JSON = re.compile(rb"[\"']([\w./-]{1,200}\.json)[\"']")
_AS_MANY = frozenset("@*")
"""The parameters of a shell that are any number of words."""
_OF_SEVERAL = "started on several ranks here"
_NOT_ALL = "launch files of what is named: of a large project only the nearest files were looked at; `.` reads them all"


def told_apart(files: Iterable[str], named: set[str], summaries: Summaries) -> tuple[list[str], dict[str, str]]:
    """The files of Python, and the launch files with their kinds.

    One that was met in a folder counts only where it has a word of a launcher, and is no file of data.
    """
    python: list[str] = []
    launches: dict[str, str] = {}
    for file in files:
        if file.endswith(SUFFIXES):
            python.append(file)
            continue
        is_named = file in named
        if not is_named and not _may_launch(file):
            continue
        kind = kinds.kind(file, (summaries.data(file) or b"")[:200])
        if kind:
            launches[file] = kind
        elif is_named:
            python.append(file)
    return python, launches


def _may_launch(file: str, names: re.Pattern[bytes] | None = None) -> bool:
    """Whether a file that a walk has met is worth a parse. names: what it has to name, if anything."""
    try:
        met = os.stat(file)
        if not stat.S_ISREG(met.st_mode) or met.st_size > kinds.LARGEST:  # a pipe is waited for
            return False
        with open(file, "rb") as stream:
            data = stream.read(kinds.LARGEST)
    except OSError:
        return False
    return kinds.may_launch(data) and (names is None or names.search(data) is not None)


def read_all(files: dict[str, str], named: set[str], summaries: Summaries) -> dict[str, Launch]:
    """The launch files that can be read, given with their kinds; a problem is noted of each other one.

    That is a note where the user has not named it: folders hold templates and data by those names.
    """
    found: dict[str, Launch] = {}
    if not files:
        return found  # before what reads them is imported
    from validate_ddp.launch.reading import read
    from validate_ddp.launch.records import Launch
    from validate_ddp.scripts import own_fault

    for file, kind in files.items():
        source = summaries.source(file)
        if source is None:
            launch: Launch | Problem = _in_own_words(summaries.problems[file])
        else:
            try:
                launch = read(summaries.shown(file), source.text, kind)
            except Exception as error:  # noqa: BLE001 - a fault of ours in one file is told, and the others are checked
                launch = own_fault(summaries.shown(file), error)
        if isinstance(launch, Launch):
            found[file] = launch
        else:
            summaries.problems[file] = launch if file in named else launch._replace(cause=FOREIGN)
    return found


def beside(
    scripts: Sequence[str], known: Iterable[str], settings: Settings, summaries: Summaries
) -> tuple[dict[str, Launch], tuple[str, ...]]:
    """The launch files that start one of these scripts, but for the known ones, and a line where a project was too
    large to be looked through.

    They are looked for round each script, up to the top of its project. No parser is imported before one of them has a
    word of a launcher and the name of a script.
    """
    if not scripts:
        return {}, ()
    nearest, is_all = near(
        {os.path.dirname(script): root_of(script) for script in scripts},
        exclude=(*(DEFAULT_EXCLUDES if settings.exclude is None else settings.exclude), *settings.extend_exclude),
        respect_gitignore=settings.respect_gitignore,
        root=settings.root or None,
        wanted=kinds.is_candidate,
        most=_MOST_NAMES,
    )
    names, others, naming = kinds.naming(scripts), set(known), dict[str, str]()
    for file in nearest[:_MOST_BESIDE]:
        if file not in others and _may_launch(file, names):
            kind = kinds.kind(file, (summaries.data(file) or b"")[:200])
            naming.update({file: kind} if kind else {})
    found = read_all(naming, set(), summaries)
    configurations = set(_named_by_scripts(scripts, summaries))
    if found:
        from validate_ddp.launch.deepspeed import file_of
        from validate_ddp.launch.records import Start

        wanted = set(scripts)
        for file, launch in list(found.items()):
            starts = [start for start in launch.facts(Start) if not wanted.isdisjoint(started(file, start))]
            configurations |= {named[0] for start in starts if (named := file_of(file, start)) is not None}
            if not starts:
                del found[file]
    found.update(read_all(dict.fromkeys(sorted(configurations - others), kinds.JSON), set(), summaries))
    return found, () if is_all and len(nearest) <= _MOST_BESIDE else (_NOT_ALL,)


def _named_by_scripts(scripts: Sequence[str], summaries: Summaries) -> Iterator[str]:
    """The configurations of DeepSpeed that scripts name in a string, as absolute paths."""
    for script in scripts:
        data = summaries.data(script) or b""
        for name in _JSON.findall(data) if b"deepspeed" in data else ():
            path = next(filter(os.path.isfile, candidates(script, os.fsdecode(name))), None)
            if path is not None and kinds.may_be_deepspeed(summaries.data(path) or b""):
                yield path


def told_of(scripts: Collection[str], summaries: Summaries) -> dict[str, Launch]:
    """The READMEs of the folders that hold these scripts, and of those above, that name one of them and a launcher.

    What they tell people to type is evidence of several ranks, and nothing else: it is checked where they are named.
    """
    names = {os.path.splitext(os.path.basename(script))[0].encode(errors="replace") for script in scripts}
    found = {}
    for folder in _folders_above(scripts):
        for name in kinds.READMES:
            file = os.path.join(folder, name)
            if _may_launch(file, kinds.TYPED) and kinds.names_one(summaries.data(file) or b"", names):
                found[file] = kinds.MARKDOWN
    return read_all(found, set(), summaries)


def _folders_above(files: Collection[str]) -> list[str]:
    """The folders that hold these files, and those above up to the tops of their projects."""
    found: dict[str, None] = {}
    for folder in dict.fromkeys(map(os.path.dirname, files)):
        top = root_of(os.path.join(folder, "_"))
        while folder not in found:
            found[folder] = None
            if folder == top:
                break
            folder = os.path.dirname(folder)
    return list(found)


def launched_by(
    launches: dict[str, Launch], documents: dict[str, Launch], scripts: Collection[str]
) -> dict[str, Launched]:
    """How the launch files start these scripts; of what documents tell people to type only whether it is several ranks.

    Commands that start several ranks count; those of plain `python` only where no other starts the script.
    """
    found: dict[str, Launched] = {}
    if not scripts or not (launches or documents):
        return found
    from validate_ddp.interpreter.started import Launched
    from validate_ddp.launch.meaning import is_of_several

    starts, typed = _starts(launches), _starts(documents)
    for script in (starts.keys() | typed.keys()) & set(scripts):
        rows = starts.get(script, [])
        of_several = [row for row in rows if row[1].launcher != "python" or row[1].srun is not None]
        ranks = (
            Place(launch.path, start.span, _OF_SEVERAL)
            for launch, start in (*rows, *typed.get(script, ()))
            if is_of_several(start, launch.job)
        )
        nodes = (place for row in rows if (place := _several_nodes(*row)) is not None)
        commands = tuple(_command(*row) for row in of_several or rows)
        found[script] = Launched(next(ranks, None), next(nodes, None), commands, _is_for_one_node(of_several))
    return found


def _starts(launches: dict[str, Launch]) -> dict[str, list[tuple[Launch, Start]]]:
    """The commands that start each script."""
    from validate_ddp.launch import records

    found: dict[str, list[tuple[Launch, Start]]] = {}
    for file, launch in launches.items():
        for start in launch.facts(records.Start):
            for script in started(file, start):
                found.setdefault(script, []).append((launch, start))
    return found


def _several_nodes(launch: Launch, start: Start) -> Place | None:
    """The word by which a command surely starts its script on several nodes."""
    from validate_ddp.launch.meaning import nodes

    count = nodes(start, launch.job)
    if count is None or count.least < 2 or start.script is None or start.script.only is None:
        return None
    return Place(launch.path, count.word.span, f"started on {count.least} nodes")


def _is_for_one_node(rows: list[tuple[Launch, Start]]) -> bool:
    from validate_ddp.launch.meaning import nodes

    counts = [nodes(start, launch.job) for launch, start in rows]
    return bool(counts) and all(count is not None and count.most == 1 for count in counts)


_TEMPLATE = re.compile(r"\{\{|%[sd]|^<.*>$|\{[^}]*,.*\}")
"""Of a word that something else fills in, or that the shell makes several of."""


def _command(launch: Launch, start: Start) -> Command:
    from validate_ddp.interpreter.started import Command

    words = handed_on(start)
    whole = all(_AS_MANY.isdisjoint(word.names) and (word.only is not None or not word.many) for word in words)
    whole = whole and not any("{{" in (word.only or "") for word in words)
    known = (None if _TEMPLATE.search(word.only or "") else word.only for word in words)
    return Command(tuple(known), whole, Place(launch.path, start.span))


def check(launches: dict[str, Launch], summaries: Summaries, enabled: dict[str, frozenset[str]]) -> list[Finding]:
    """The findings in launch files that were read. enabled: the codes that are looked for, by file."""
    findings: list[Finding] = []
    if not launches:
        return findings
    from validate_ddp.edit.suppressions import Scan, suppress
    from validate_ddp.edit.telling import as_findings
    from validate_ddp.scripts import own_fault

    for file, launch in launches.items():
        try:
            proposals = _distinct(proposed(launch, enabled[file]))
        except UsageError:  # of a rule of ours that cannot be as it is written
            raise
        except Exception as error:  # noqa: BLE001 - as above
            summaries.problems[file] = own_fault(launch.path, error)
            continue
        scan = Scan(launch.comments, {comment.line for comment in launch.comments if comment.own_line}, set())
        suppression = suppress(launch.text, launch.path, proposals, enabled[file], scanned=scan)
        findings += suppression.unused
        findings += as_findings(launch.text, suppression.kept, [True] * len(suppression.kept), None)
    return findings


def of_python(files: Iterable[str], summaries: Summaries, enabled: frozenset[str]) -> list[Proposal]:
    """What the rules on launch files propose for the commands that Python files hold."""
    found: list[Proposal] = []
    for file in files:
        if file.endswith(".ipynb") or not kinds.may_launch_from_python(summaries.data(file) or b""):
            continue
        from validate_ddp.launch.python import of_python
        from validate_ddp.scripts import own_fault

        source = summaries.source(file)
        if source is None:
            continue
        try:
            launch = of_python(summaries.shown(file), source.text)
            found += _distinct(proposed(launch, enabled)) if launch is not None else []
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            summaries.problems[file] = own_fault(summaries.shown(file), error)
    return found


def proposed(launch: Launch, enabled: frozenset[str]) -> Iterator[Proposal]:
    """What the rules propose for one file."""
    from validate_ddp.launch.records import BY_NAME

    present = {type(record) for record in launch.records}
    for stub in _triggered(enabled):
        declared = launch_trigger(stub)
        if declared not in BY_NAME:
            raise BrokenRule(f"rule {stub.code} ({stub.name}) has the trigger `{declared}`, which is no kind of fact")
        if not present.isdisjoint(BY_NAME[declared]):
            for proposal in load(stub).check_launch(launch):
                yield proposal._replace(code=stub.code)


def _triggered(enabled: frozenset[str]) -> list[Stub]:
    return [stub for stub in every() if stub.code in enabled and launch_trigger(stub)]


def _distinct(proposals: Iterable[Proposal]) -> list[Proposal]:
    """One proposal for each code and place, the first."""
    chosen: dict[tuple[str, object], Proposal] = {}
    for proposal in proposals:
        chosen.setdefault((proposal.code, proposal.span), proposal)
    return list(chosen.values())


def _in_own_words(problem: Problem) -> Problem:
    """What decoding says of Python, said of a launch file."""
    message = problem.message.replace("it is not Python text", "it is no text").replace(
        ", which Python does not read", ""
    )
    message = message.partition(", or declare its encoding")[0]
    return problem._replace(message=message, kind=UNREADABLE)
