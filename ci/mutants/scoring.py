"""The score of a validator: which mutants it kills, and which correct scripts it accuses."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from ci.mutants.checking import Said, Validator
from ci.mutants.plants import Mutant
from ci.mutants.script import Script


class Verdict(NamedTuple):
    """How a mutant fared.

    outcome: killed, elsewhere (right code, wrong line) or survived. advice: killed by an info, where the rule has more
    to say in other cases. extra: errors and warnings that are not true of it.
    """

    script: Script
    mutant: Mutant
    outcome: str
    advice: bool
    extra: tuple[Said, ...]


def accusations(validator: Validator, script: Script) -> list[Said]:
    """Errors and warnings about a correct script."""
    return [said for said in _say(validator, script.texts, script.entry) if said.severity != "info"]


def verdict(validator: Validator, script: Script, mutant: Mutant, severe: bool, by_line: bool = True) -> Verdict:
    """What a validator makes of a mutant. severe: its rule can say more. by_line: the place must be right."""
    said = _say(validator, mutant.texts, script.entry)
    right = [one for one in said if one.code == mutant.code]
    placed = [one for one in right if not by_line or (one.path, one.line) in mutant.expected]
    extra = tuple(one for one in said if one.code not in {mutant.code, *mutant.also} and one.severity != "info")
    extra += tuple(one for one in right if one not in placed and one.severity != "info")
    outcome = "killed" if placed else "elsewhere" if right else "survived"
    advice = severe and bool(placed) and all(one.severity == "info" for one in placed)
    return Verdict(script, mutant, outcome, advice, extra)


def _say(validator: Validator, texts: dict[str, str], entry: str) -> list[Said]:
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        return validator(texts, entry, Path(folder))
