"""Carries out fixes on the texts of files: all edits of a fix or none, and every other byte stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from validate_ddp.edit.imports import IMPORTS_FIRST
from validate_ddp.edit.layout import Declined, Plan, Splice, Text
from validate_ddp.edit.splices import plan
from validate_ddp.edit.tree import parse, same
from validate_ddp.findings import Edit, Fix, Span


class Applied(NamedTuple):
    """What became of fixes.

    texts: the changed texts. done: the fixes carried out. deferred: those in conflict with one that is done; to be
    asked for again after a new check. declined: those that cannot be carried out, each with the reason.
    """

    texts: dict[str, str]
    done: tuple[Fix, ...]
    deferred: tuple[Fix, ...]
    declined: tuple[tuple[Fix, str], ...]


def apply(text: str, fixes: Iterable[Fix], path: str) -> Applied:
    """Fixes of a single file; a fix with an edit elsewhere is declined."""
    return apply_all({path: text}, fixes)


def apply_all(texts: Mapping[str, str], fixes: Iterable[Fix]) -> Applied:
    """Carries out as many fixes as agree with each other.

    The spans of the edits refer to ``texts``, by path. Equal edits of several fixes are done once; of fixes that
    overlap the first one wins. The result is kept only if it parses to the very tree which the edits describe.
    """
    texts_after: dict[str, str] = {}
    done: list[Fix] = []
    deferred: list[Fix] = []
    declined: list[tuple[Fix, str]] = []
    for group in _groups(list(dict.fromkeys(fixes))):
        made = _of_launch_files(texts, group) or _of_group(texts, group)
        texts_after.update(made.texts)
        done += made.done
        deferred += made.deferred
        declined += made.declined
    return Applied(texts_after, tuple(done), tuple(deferred), tuple(declined))


def _of_launch_files(texts: Mapping[str, str], wanted: list[Fix]) -> Applied | None:
    """What became of fixes of launch files; None for those of Python."""
    paths = {edit.path for fix in wanted for edit in fix.edits}
    if not all(edit.kind == "replace" for fix in wanted for edit in fix.edits) or not paths <= texts.keys():
        return None
    from validate_ddp.edit.launch_files import is_launch_file, spliced

    if not all(is_launch_file(path, texts[path]) for path in paths):
        return None
    changed, done, deferred, declined = spliced(texts, wanted)
    reason = "the file would not mean what the fix says"
    return Applied(changed, tuple(done), tuple(deferred), tuple((fix, reason) for fix in declined))


def _groups(fixes: list[Fix]) -> list[list[Fix]]:
    """Fixes that have a file in common, directly or through others, in the order given: one bad file spoils its own."""
    groups: list[tuple[set[str], list[int]]] = []
    for index, fix in enumerate(fixes):
        paths, members = {edit.path for edit in fix.edits}, [index]
        for group in [group for group in groups if group[0] & paths]:
            groups.remove(group)
            paths |= group[0]
            members += group[1]
        groups.append((paths, members))
    return [[fixes[index] for index in sorted(members)] for _, members in groups]


def _of_group(texts: Mapping[str, str], wanted: list[Fix]) -> Applied:
    result = _attempt(texts, wanted)
    if result is not None:
        return result
    # Together they do not come out right: each alone, and then those that did.
    sound: list[Fix] = []
    declined: list[tuple[Fix, str]] = []
    for fix in wanted:
        if _attempt(texts, [fix]) is None:
            declined.append((fix, "the file would not mean what the fix says"))
        else:
            sound.append(fix)
    together = _attempt(texts, sound)
    if together is None:  # pairwise trouble: the first one now, the others after a new check
        together = _attempt(texts, sound[:1]) or Applied({}, (), (), ())
        together = together._replace(deferred=(*together.deferred, *sound[1:]))
    return together._replace(declined=(*together.declined, *declined))


class _Round:
    """The plans taken on so far, by edit, and the texts they are on."""

    def __init__(self, texts: Mapping[str, str], fixes: list[Fix]) -> None:
        self.given = texts
        self.first_lines: dict[str, int] = {}
        for fix in fixes:
            for edit in fix.edits:
                if edit.kind not in ("add_import", "append"):  # what is appended runs last
                    line = self.first_lines.get(edit.path, edit.span.line)
                    self.first_lines[edit.path] = min(line, edit.span.line)
        self.texts: dict[str, Text] = {}
        self.plans: dict[Edit, Plan] = {}

    def text(self, path: str) -> Text:
        if path not in self.texts:
            if path not in self.given:
                raise Declined(f"the text of {path} is not at hand")
            self.texts[path] = Text(self.given[path], self.first_lines.get(path))
        return self.texts[path]

    def conflicts(self, path: str, splices: tuple[Splice, ...]) -> bool:
        """Whether one of the splices meets one that is taken; imports may share their place."""
        return any(
            _overlap(mine, other)
            for edit, taken in self.plans.items()
            if edit.path == path
            for other in taken.splices
            for mine in splices
            if not mine.order == other.order == IMPORTS_FIRST
        )


def _attempt(texts: Mapping[str, str], fixes: list[Fix]) -> Applied | None:
    """Carries the fixes out; None where the outcome is not what they describe."""
    state = _Round(texts, fixes)
    done: list[Fix] = []
    deferred: list[Fix] = []
    declined: list[tuple[Fix, str]] = []
    for fix in fixes:
        edits = [edit._replace(span=_ANYWHERE) if edit.kind == "add_import" else edit for edit in fix.edits]
        try:
            new = {edit: plan(state.text(edit.path), edit) for edit in edits if edit not in state.plans}
        except Declined as error:
            declined.append((fix, str(error)))
            continue
        if any(state.conflicts(edit.path, planned.splices) for edit, planned in new.items()):
            deferred.append(fix)
            continue
        state.plans.update(new)
        done.append(fix)
    changed: dict[str, str] = {}
    for path, text in state.texts.items():
        mine = [planned for edit, planned in state.plans.items() if edit.path == path and planned.splices]
        if not mine:
            continue
        after = _spliced(text.text, [splice for planned in mine for splice in planned.splices])
        try:
            for planned in sorted(mine, key=_in_tree_order):
                planned.change()
        except Declined:  # it took another edit for granted that is not carried out
            return None
        module = parse(after)
        if module is None or not same(module, text.tree.module):
            return None
        changed[path] = after
    return Applied(changed, tuple(done), tuple(deferred), tuple(declined))


_ANYWHERE = Span(1, 0, 1, 0)
"""An import has its place in the file whichever edit asks for it."""


def _in_tree_order(planned: Plan) -> tuple[int, tuple[int, ...]]:
    """Phase by phase; of imports at one place the one that comes last in the text first."""
    return planned.phase, tuple(-ord(character) for character in planned.splices[0].text)


def _overlap(left: Splice, right: Splice) -> bool:
    return left.start == right.start or (left.start < right.end and right.start < left.end)


def _spliced(text: str, splices: list[Splice]) -> str:
    pieces = []
    position = 0
    for splice in sorted(splices, key=lambda splice: (splice.start, splice.order, splice.end, splice.text)):
        pieces += [text[position : splice.start], splice.text]
        position = splice.end
    pieces.append(text[position:])
    return "".join(pieces)
