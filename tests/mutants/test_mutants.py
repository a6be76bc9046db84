"""Correct scripts stay silent, planted defects are found; a subset of ``make mutants`` that takes seconds."""

from __future__ import annotations

import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from ci.mutants.checking import rules, run_checker
from ci.mutants.grepping import run_grep
from ci.mutants.plants import Mutant
from ci.mutants.scoring import accusations, verdict
from ci.mutants.script import CORRECT, Script, correct_scripts

SCRIPTS = correct_scripts()
ONE_EACH = ("classifier_argparse", "package_run", "iterate_steps")
"""A single file, several modules, and a loop over steps: their mutants are checked here, one a rule."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_correct_scripts_are_not_accused(script: Script) -> None:
    assert accusations(run_checker, script) == []


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.name in ONE_EACH], ids=lambda script: script.name)
def test_a_mutant_of_each_of_the_first_rules_is_killed(script: Script) -> None:
    codes = set("DDP101 DDP103 DDP201 DDP202 DDP203 DDP301 DDP401 DDP402 DDP501 DDP502 DDP504".split())
    first: dict[str, Mutant] = {}
    for mutant in script.mutants:
        if mutant.code in codes:
            first.setdefault(mutant.code, mutant)
    assert len(first) >= 8
    outcomes = {code: verdict(run_checker, script, mutant, severe=True).outcome for code, mutant in first.items()}
    assert set(outcomes.values()) == {"killed"}, outcomes


def test_every_rule_has_mutants() -> None:
    planted = Counter(mutant.code for script in SCRIPTS for mutant in script.mutants)
    assert set(planted) == set(rules())
    assert [code for code, severities in rules().items() if set(severities) != {"info"} and planted[code] < 2] == []
    assert planted.total() >= 378, "a plant was lost"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_mutants_differ_and_their_findings_have_a_line(script: Script) -> None:
    assert len({(mutant.code, tuple(mutant.texts.values())) for mutant in script.mutants}) == len(script.mutants)
    for mutant in script.mutants:
        assert mutant.texts != script.texts
        assert mutant.expected and mutant.also <= set(rules())
        assert all(1 <= line <= mutant.texts[path].count("\n") for path, line in mutant.expected)


def test_plants_are_comments_and_nothing_of_them_is_checked() -> None:
    for script in SCRIPTS:
        for path, text in script.texts.items():
            marked = CORRECT / script.name / path if len(script.texts) > 1 else CORRECT / path
            assert "mutant" not in text
            assert _code(marked.read_text(encoding="utf-8")) == _code(text)


def _code(text: str) -> list[str]:
    passed = (tokenize.COMMENT, tokenize.NL)
    return [token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in passed]


def test_the_grep_reads_words_and_misses_flow(tmp_path: Path) -> None:
    script = next(script for script in SCRIPTS if script.name == "tutorial_plain")
    outcomes = {
        mutant.code: verdict(run_grep, script, mutant, severe=True, by_line=False).outcome
        for mutant in script.mutants
        if mutant.code in ("DDP201", "DDP104")
    }
    assert outcomes["DDP201"] == "killed"
    assert run_grep({"train.py": "print()"}, "train.py", tmp_path) == []
