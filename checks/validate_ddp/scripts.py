"""Which of the files are scripts, and what the rules propose for each; remembered while nothing it reads changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from validate_ddp.catalogue import BrokenRule, Stub, every, load, trigger
from validate_ddp.console import UsageError
from validate_ddp.findings import Proposal
from validate_ddp.source.summaries import Summaries
from validate_ddp.source.text import Problem

if TYPE_CHECKING:
    from validate_ddp.interpreter.fact import Fact
    from validate_ddp.interpreter.started import Started
    from validate_ddp.interpreter.trace import Program

_BETWEEN_COLLECTIONS = 20
_MOST_BLOCKS = 3_000_000
"""Blocks of memory, about 250 MB: above that the syntax of projects that are done with is let go."""
_WORTH_PROCESSES = 48
"""From so many scripts on, starting processes pays."""
_MOST_PROCESSES = 8

Row = tuple[list[Proposal], list[str], dict[str, Problem]]
"""What a process tells of a script: the proposals, the files of its program, and the problems so far."""


def kept(files: list[str], summaries: Summaries) -> list[str]:
    """The files that can matter: with a word of distributed training, or importing such a file, transitively."""
    launched = {file for file, how in summaries.launched.items() if how.several is not None}
    surviving = [file for file in files if file in launched or summaries.matters(file)]
    others = set(files).difference(surviving)
    rest = [file for file in files if file in others]
    stems = {_stem(file) for file in surviving}
    words = {file: _imported_words(file, summaries) for file in rest} if surviving else {}
    grown = True
    while grown and rest and surviving:
        grown = False
        waiting = []
        for file in rest:
            if not stems.isdisjoint(words[file]):
                surviving.append(file)
                stems.add(_stem(file))
                grown = True
            else:
                waiting.append(file)
        rest = waiting
    surviving += [
        file for file in rest if file not in surviving and _is_script(file, summaries) and _reaches(file, summaries)
    ]
    order = {file: index for index, file in enumerate(files)}
    return sorted(surviving, key=order.__getitem__)


def _is_script(file: str, summaries: Summaries) -> bool:
    return b"__main__" in (summaries.data(file) or b"")


def _reaches(script: str, summaries: Summaries) -> bool:
    from validate_ddp.interpreter.finder import Finder

    return Finder(summaries, script).reaches(script)


def _stem(file: str) -> str:
    name = os.path.splitext(os.path.basename(file))[0]
    return os.path.basename(os.path.dirname(file)) if name == "__init__" else name


def _imported_words(file: str, summaries: Summaries) -> set[str]:
    return {word for dotted in summaries.imports(file) for word in dotted.split(".")}


def entries(files: list[str], summaries: Summaries) -> list[str]:
    """The scripts among the files: those with a main block, and those that no other file imports."""
    importers: dict[str, set[str]] = {}
    for file in files:
        for dotted in summaries.imports(file):
            for word in dotted.split(".")[-2:]:
                importers.setdefault(word, set()).add(file)
    imported = {file for file in files if importers.get(_stem(file), set()) - {file}}
    return [file for file in files if file not in imported or b"__main__" in (summaries.data(file) or b"")]


def propose(
    scripts: list[str], summaries: Summaries, enabled: frozenset[str], jobs: int
) -> Iterator[tuple[list[Proposal], list[str]]]:
    """For each script, what the rules propose and the absolute paths of the files of its program."""
    missing = []
    for script in scripts:
        remembered = _remembered(script, summaries, enabled)
        if remembered is not None:
            yield remembered
        else:
            missing.append(script)
    workers = jobs or os.cpu_count() or 1
    if len(missing) < _WORTH_PROCESSES or workers < 2:
        rows = _examined(missing, summaries, enabled)
    else:
        _prepare(enabled)
        rows = _in_processes(_shares(missing, min(workers, _MOST_PROCESSES)), summaries, enabled)
    for proposals, files, problems in rows:
        summaries.problems.update(problems)
        yield proposals, files


def _in_processes(shares: list[list[str]], summaries: Summaries, enabled: frozenset[str]) -> Iterator[Row]:
    """Examine the first share here and each other one in a process of its own; the rows in the order of the shares.

    Raises ChildProcessError where one of them is killed.
    """
    from multiprocessing import Pipe, Process

    from validate_ddp.own_path import start_outside

    running = []
    for share in shares[1:]:
        receiver, sender = Pipe(duplex=False)
        # What the files hold is known by now: a forked process need not read them again.
        process = Process(target=_send, args=(sender, share, summaries, enabled), daemon=True)
        start_outside(process)
        sender.close()
        running.append((process, receiver))
    yield from _examined(shares[0], summaries, enabled)
    for process, receiver in running:
        try:
            yield from receiver.recv()
        except EOFError as error:
            process.join()
            raise ChildProcessError(f"a process of this check ended with {process.exitcode}; try `--jobs 1`") from error
        process.join()


def _send(sender: Any, share: list[str], summaries: Summaries, enabled: frozenset[str]) -> None:
    _end_with_parent()
    try:
        sender.send(list(_examined(share, summaries, enabled)))
    except (KeyboardInterrupt, BrokenPipeError):
        return  # nobody waits for it any more


def _end_with_parent() -> None:
    """Has this process end when the one that started it is gone, as by SIGKILL: a large share would take it minutes."""
    from multiprocessing import connection, parent_process
    from threading import Thread

    parent = parent_process()
    assert parent is not None  # it was started by `_in_processes`

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _prepare(enabled: frozenset[str]) -> None:
    """Import what every process needs, before there are several."""
    import validate_ddp.interpreter.trace
    import validate_ddp.models.known
    import validate_ddp.source.lowering
    import validate_ddp.source.parsing  # noqa: F401 - all for their being there

    for stub, _ in _triggered(enabled):
        load(stub)


def _shares(scripts: list[str], count: int) -> list[list[str]]:
    """The scripts in so many shares, by project: scripts of one import the same modules, read once in each process."""
    folders = [os.path.dirname(script) for script in scripts]
    try:
        top = os.path.commonpath(folders)
    except ValueError:  # on several drives
        top = ""
    projects: dict[str, list[str]] = {}
    for script, folder in zip(scripts, folders, strict=True):
        projects.setdefault(folder[len(top) + 1 :].partition(os.sep)[0], []).append(script)
    most = -(-len(scripts) // count)
    portions = [rows[start : start + most] for rows in projects.values() for start in range(0, len(rows), most)]
    shares: list[list[str]] = [[] for _ in range(count)]
    for portion in sorted(portions, key=len, reverse=True):
        min(shares, key=len).extend(portion)
    return shares


def _tidy(summaries: Summaries) -> None:
    """Free the bodies that the last scripts have not asked for; only where that is not enough, look for what walks have
    left that holds itself. What stays are bodies, which are many and hold no cycles: frozen, they are not gone through
    again.
    """
    import gc

    summaries.let_go()
    if sys.getallocatedblocks() > 2 * _MOST_BLOCKS:
        gc.collect()
        gc.freeze()


def _examined(scripts: list[str], summaries: Summaries, enabled: frozenset[str]) -> Iterator[Row]:
    most, frozen = _MOST_BLOCKS, False
    try:
        for number, script in enumerate(scripts, 1):
            proposals, files = _examine(script, summaries, enabled)
            yield proposals, files, dict(summaries.problems)
            if number % _BETWEEN_COLLECTIONS == 0 and sys.getallocatedblocks() > most:
                _tidy(summaries)
                frozen = True
                most = max(_MOST_BLOCKS, sys.getallocatedblocks() * 5 // 4)
    finally:
        if frozen:  # or the caller's own objects would never be collected again
            import gc

            gc.unfreeze()


def _examine(script: str, summaries: Summaries, enabled: frozenset[str]) -> tuple[list[Proposal], list[str]]:
    from validate_ddp.interpreter.finder import Finder
    from validate_ddp.interpreter.started import NOT_LAUNCHED

    summaries.begin()
    found: list[Proposal] = []
    files: list[str] = []
    try:
        defines = script in summaries.named and summaries.starts(script)
        launched = summaries.launched.get(script, NOT_LAUNCHED)
        several = launched.several is not None
        runs = defines or (summaries.acts(script) and (several or Finder(summaries, script).starts(script)))
        program = _walked(script, summaries) if runs else None
        files = [script] if program is None else program.files
        if program is None:
            summaries.parsed(script)
        else:
            found = _found(program, enabled)
            if program.asks and launched.is_whole:
                found = _found_as_started(script, summaries, enabled, found)
            program.let_go()
    except UsageError:  # of a rule or a row of ours that cannot be as it is written
        raise
    except Exception as error:  # noqa: BLE001 - a fault of ours in one script is told, and the others are still checked
        summaries.problems[script] = own_fault(summaries.shown(script), error)
        return found, files
    _remember(script, summaries, enabled, found, files)
    return found, files


def _walked(script: str, summaries: Summaries, started: Started | None = None) -> Program:
    from validate_ddp.interpreter.trace import trace  # a script that starts nothing needs no interpreter
    from validate_ddp.models.known import registry

    return trace(summaries, script, registry(), started)


def _found_as_started(
    script: str, summaries: Summaries, enabled: frozenset[str], found: list[Proposal]
) -> list[Proposal]:
    """What is found of a script whose options are what the launch files give, beside what is whatever starts it."""
    from validate_ddp.interpreter.started import Started, joined, missing, without

    commands = summaries.launched[script].commands
    program = _walked(script, summaries, Started(commands))
    if program.is_distributed:  # or it is one of one process, of which nothing is asked
        proposals = _found(program, enabled)
        gone = missing(found, proposals, program)
        found = without(joined(found, proposals, commands), gone, commands)
    program.let_go()
    return found


def _found(program: Program, enabled: frozenset[str]) -> list[Proposal]:
    """What the rules propose, and of a program of which not all was looked at, that it was not."""
    found = _proposals(program, enabled)
    launch = program.several_ranks
    if launch is not None:
        found = [proposal._replace(evidence=(*proposal.evidence, launch)) for proposal in found]
    return _of_part(program, found, enabled) if program.stop is not None else found


def _proposals(program: Program, enabled: frozenset[str]) -> list[Proposal]:
    from validate_ddp.interpreter import facts

    kinds = program.kinds if program.is_distributed else program.kinds & {facts.DataParallel}  # one process is enough
    return [
        proposal._replace(code=stub.code)
        for stub in _rules_for(kinds, enabled)
        for proposal in load(stub).check(program)
    ]


def _of_part(program: Program, found: list[Proposal], enabled: frozenset[str]) -> list[Proposal]:
    """The proposals on a program of which not all was looked at, and that it was not."""
    from validate_ddp.interpreter.incomplete import CODE, told, weakened

    found = weakened(found, _proposals(program.without_open(), enabled))
    note = told(program)
    return [*found, note] if note is not None and CODE in enabled else found


def own_fault(path: str, error: Exception) -> Problem:
    """What is told of a script on which we failed; the project's tests put a function here that raises the error."""
    trail = error.__traceback__
    while trail is not None and trail.tb_next is not None:
        trail = trail.tb_next
    place = f"{os.path.basename(trail.tb_frame.f_code.co_filename)}:{trail.tb_lineno}" if trail is not None else "?"
    message = f"validate-ddp failed on this script ({type(error).__name__} in {place}); please report it"
    return Problem(path, 1, 1, message, "unreadable", cause="refused")


def _rules_for(kinds: frozenset[type[Fact]], enabled: frozenset[str]) -> list[Stub]:
    """The rules whose trigger, a kind of fact, the program has."""
    return [stub for stub, kind in _triggered(enabled) if kind in kinds] if kinds else []


def _triggered(enabled: frozenset[str]) -> Iterator[tuple[Stub, type[Fact]]]:
    """The rules that read facts, each with its trigger. Raises BrokenRule for a trigger that no program can have."""
    from validate_ddp.interpreter import facts

    for stub in every():
        declared = trigger(stub) if stub.code in enabled else ""
        if not declared:
            continue
        if declared not in facts.BY_NAME:
            raise BrokenRule(f"rule {stub.code} ({stub.name}) has the trigger `{declared}`, which is no kind of fact")
        yield stub, facts.BY_NAME[declared]


def _key(script: str, summaries: Summaries, enabled: frozenset[str]) -> str:
    from validate_ddp.source.cache import digest

    launched = summaries.launched.get(script)
    more = (*([str(launched)] if launched is not None else ()), *(["named"] if script in summaries.named else ()))
    return digest(script, os.getcwd(), ",".join(sorted(enabled)), *more)


def _remembered(script: str, summaries: Summaries, enabled: frozenset[str]) -> tuple[list[Proposal], list[str]] | None:
    """What an earlier run found, if no file that it read has changed and none that it missed has appeared."""
    if summaries.cache is None:
        return None
    record = summaries.cache.get("proposals", _key(script, summaries, enabled))
    if not isinstance(record, dict):
        return None
    from validate_ddp.findings import from_plain

    try:
        if script not in record["files"] or script not in record["program"]:
            return None  # it tells of another script
        if any(summaries.digest(file) != known for file, known in record["files"].items()):
            return None
        if any(summaries.has_appeared(folder, name) for folder, names in record["absent"].items() for name in names):
            return None
        proposals = [from_plain(Proposal, row) for row in record["proposals"]]
        summaries.problems.update({file: Problem(*row) for file, row in record["problems"].items()})
        return proposals, list(record["program"])
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        return None  # written by something else: a miss


def _remember(
    script: str, summaries: Summaries, enabled: frozenset[str], proposals: list[Proposal], files: list[str]
) -> None:
    if summaries.cache is None:
        return
    from validate_ddp.findings import to_plain

    problems = {file: summaries.problems[file] for file in summaries.consulted if file in summaries.problems}
    record = {
        "files": {file: summaries.digest(file) for file in summaries.consulted},
        "absent": _by_folder(summaries),
        "problems": problems,
        "program": files,
        "proposals": [to_plain(proposal) for proposal in proposals],
    }
    summaries.cache.put("proposals", _key(script, summaries, enabled), record)


def _by_folder(summaries: Summaries) -> dict[str, list[str]]:
    """The names that are absent, by a folder that is there: of a folder that is absent itself, nothing else counts."""
    found: dict[str, set[str]] = {}
    for path in list(summaries.absent):
        folder, name = os.path.dirname(path.removesuffix(os.sep)), path
        while not summaries.is_folder(folder) and os.path.dirname(folder) != folder:
            folder, name = os.path.dirname(folder), folder + os.sep
        found.setdefault(folder, set()).add(name[len(folder.rstrip(os.sep)) + 1 :])
    return {folder: sorted(names) for folder, names in found.items()}
