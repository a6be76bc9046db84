"""Carries out fixes on launch files: words replaced as bytes, kept only where the file then says the same otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from validate_ddp.edit.layout import Splice
from validate_ddp.findings import Edit, Fix
from validate_ddp.launch import kinds
from validate_ddp.launch.reading import read
from validate_ddp.launch.records import Launch, Misquoted
from validate_ddp.source.positions import line_starts, offset_of


def is_launch_file(path: str, text: str) -> bool:
    """Whether a fix of this file is ours."""
    return bool(kinds.kind(path, text[:200].encode("utf-8", "replace")))


def spliced(texts: Mapping[str, str], fixes: list[Fix]) -> tuple[dict[str, str], list[Fix], list[Fix], list[Fix]]:
    """The changed texts; the fixes that were carried out, that wait for the next round, and that cannot be."""
    done: list[Fix] = []
    deferred: list[Fix] = []
    declined: list[Fix] = []
    taken: dict[str, list[Splice]] = {}
    for fix in fixes:
        mine = {path: [_splice(texts[path], edit) for edit in fix.edits if edit.path == path] for path in _paths(fix)}
        if any(_meet(one, other) for path, new in mine.items() for one in new for other in taken.get(path, ())):
            deferred.append(fix)
        elif all(_keeps(path, texts[path], new) for path, new in mine.items()):
            done.append(fix)
            for path, new in mine.items():
                taken.setdefault(path, []).extend(new)
        else:
            declined.append(fix)
    return {path: _put(texts[path], splices) for path, splices in taken.items()}, done, deferred, declined


def _paths(fix: Fix) -> list[str]:
    return list(dict.fromkeys(edit.path for edit in fix.edits))


def _splice(text: str, edit: Edit) -> Splice:
    starts = line_starts(text)
    start = offset_of(text, starts, edit.span.line, edit.span.column)
    return Splice(start, offset_of(text, starts, edit.span.end_line, edit.span.end_column), edit.text)


def _meet(one: Splice, other: Splice) -> bool:
    return one.start < other.end and other.start < one.end


def _put(text: str, splices: list[Splice]) -> str:
    for splice in sorted(splices, reverse=True):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return text


def _keeps(path: str, text: str, splices: list[Splice]) -> bool:
    """Whether the file has the same facts in the same order afterwards, and no quoting that is broken anew."""
    kind = kinds.kind(path, text[:200].encode("utf-8", "replace"))
    before, after = read(path, text, kind), read(path, _put(text, splices), kind)
    if not isinstance(before, Launch) or not isinstance(after, Launch):
        return False
    if [type(each) for each in before.records] != [type(each) for each in after.records]:
        return False
    return len(list(before.facts(Misquoted))) == len(list(after.facts(Misquoted)))
