"""Correct scripts stay silent, planted defects are found; a subset of ``make mutants`` that takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.mutants.checking import rules, run_checker
from ci.mutants.grepping import run_grep
from ci.mutants.mutant import Edit, Mutant, Place
from ci.mutants.plant import planters
from ci.mutants.scoring import accusations, mutants_of, verdict
from ci.mutants.script import Script, correct_scripts

SCRIPTS = correct_scripts()
ONE_EACH = ("classifier_argparse", "package_run", "iterate_steps")
"""A single file, several modules, and a loop over steps: their mutants are checked here, one a rule."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_correct_scripts_are_not_accused(script: Script) -> None:
    assert accusations(run_checker, script) == []


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.name in ONE_EACH], ids=lambda script: script.name)
def test_a_mutant_of_each_of_the_first_rules_is_killed(script: Script) -> None:
    codes = {
        "DDP101",
        "DDP103",
        "DDP201",
        "DDP202",
        "DDP203",
        "DDP301",
        "DDP401",
        "DDP402",
        "DDP501",
        "DDP502",
        "DDP504",
    }
    first: dict[str, Mutant] = {}
    for mutant in mutants_of(script, codes):
        first.setdefault(mutant.code, mutant)
    assert len(first) >= 8
    outcomes = {code: verdict(run_checker, script, mutant, severe=True).outcome for code, mutant in first.items()}
    assert set(outcomes.values()) == {"killed"}, outcomes


@pytest.mark.slow
def test_every_planter_finds_places_and_each_mutant_differs() -> None:
    planted: dict[str, int] = {}
    for script in SCRIPTS:
        for mutant in mutants_of(script):
            planted[mutant.code] = planted.get(mutant.code, 0) + 1
            assert mutant.texts(script.texts) != script.texts
            lines = mutant.expected_lines(script.texts)
            texts = mutant.texts(script.texts)
            assert lines and all(1 <= line <= texts[path].count("\n") + 1 for path, line in lines), mutant
    assert set(planted) == set(planters())


def test_every_planter_is_of_a_rule_of_the_catalogue() -> None:
    assert set(planters()) <= set(rules())


def test_expected_places_move_with_the_edits() -> None:
    text = "a\nb\nc\nd\n"
    edits = (Edit("x.py", 0, 2, ""), Edit("x.py", 4, 4, "new\n"))
    mutant = Mutant("DDP201", "", edits, (Place("x.py", 4, 5), Place("x.py", 4, 4), Place("x.py", 6, 7)))
    assert mutant.texts({"x.py": text}) == {"x.py": "b\nnew\nc\nd\n"}
    assert mutant.expected_lines({"x.py": text}) == {("x.py", 2), ("x.py", 3), ("x.py", 4)}


def test_the_grep_reads_words_and_misses_flow(tmp_path: Path) -> None:
    script = next(script for script in SCRIPTS if script.name == "tutorial_plain")
    outcomes = {
        mutant.code: verdict(run_grep, script, mutant, severe=True, by_line=False).outcome
        for mutant in mutants_of(script, {"DDP201", "DDP104"})
    }
    assert outcomes["DDP201"] == "killed"
    assert run_grep({"train.py": "print()"}, "train.py", tmp_path) == []
