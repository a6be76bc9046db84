"""One table of options: command line, file, schema and page say the same of each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from validate_ddp import cli, config
from validate_ddp.commands import Explained, Listed
from validate_ddp.config import Settings
from validate_ddp.options import POSITIONAL, SWITCH, ConfigError, combined, filed, parser, said, table
from validate_ddp.rehearse.options import Options, on_top, read

DOCS = Path(__file__).resolve().parents[1] / "docs"
SCHEMA = json.loads((DOCS / "options.schema.json").read_text())
INTEGER = jsonschema.Draft7Validator.TYPE_CHECKER.redefine(  # as TOML tells 2.0 from 2
    "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
)
VALIDATOR = jsonschema.validators.extend(jsonschema.Draft7Validator, type_checker=INTEGER)(SCHEMA)
VALUES: dict[str, tuple[str, Any]] = {
    "a table of intra and inter = GB/s above 0": ("inter=50,intra=450", {"inter": 50.0, "intra": 450.0}),
    "a list of selectors": ("DDP2,double-wrap", ["DDP2", "double-wrap"]),
    "a list of patterns": ("a,b/*", ["a", "b/*"]),
    "a table of pattern = list of selectors": ("t/*:DDP2,DDP3", {"t/*": ["DDP2", "DDP3"]}),
    'a folder, or "off"': ("off", "off"),
    'a file, or "off"': ("off", "off"),
    "a whole number, 0 for automatic": ("3", 3),
    "a whole number above 0": ("3", 3),
    "a number of seconds above 0": ("2.5", 2.5),
    'a table of NAME = "VALUE"': ("A=1=2", {"A": "1=2"}),
    "a list of KIND:PATH": ("text:a", ["text:a"]),
}
"""For each kind of value that is no choice and no switch: a word of the command line, and the same in a file."""


@pytest.mark.parametrize("of", [Settings, Options, Explained, Listed])
def test_every_option_of_the_help_is_in_the_table_and_on_the_page(of: type[Any]) -> None:
    page = (DOCS / "options.md").read_text()
    actions = [each for each in parser(of, prog="validate-ddp x")._actions if each.help != argparse.SUPPRESS]
    shown = {flag for each in actions for flag in each.option_strings} - {"-h", "--help"}
    assert shown == {flag for row in table(of).values() for flag in row.flags}
    assert [flag for flag in shown if f"`{flag}`" not in page] == []
    for row in table(of).values():
        assert row.no_key or f"| `{row.key}` | {row.kind.told} |" in page


KEYED = [(of, name) for of in (Settings, Options) for name, row in table(of).items() if not row.no_key]


@pytest.mark.parametrize(("of", "name"), KEYED)
def test_a_key_means_what_its_flag_means(of: type[Any], name: str) -> None:
    row = table(of)[name]
    words = [row.flags[-1]]
    if row.kind is SWITCH:
        value: Any = not row.default
    elif "enum" in row.kind.schema:
        value = row.kind.schema["enum"][-1]
        words.append(value)
    else:
        word, value = VALUES[row.kind.told]
        words.append(word)
    by_flag, by_key = said(of, words, prog="x"), filed(of, {row.key: value}, "f", "t")
    assert by_flag == by_key and list(by_flag) == [name]
    assert combined(of(), by_flag) != of()
    if of is Settings:
        assert config.override(Settings(), by_flag) == config.override(Settings(), by_key)
    if row.kind is SWITCH:
        opposite = f"--{'no-' if value else ''}{row.key}"
        off = of()._replace(**{name: bool(row.default)})  # of a switch that is neither on nor off: off
        assert combined(combined(of(), by_key), said(of, [opposite], prog="x")) == off


@pytest.mark.parametrize("of", [Settings, Options])
def test_options_without_a_key_say_why_and_are_refused_in_a_file(of: type[Any]) -> None:
    keyless = {name: row for name, row in table(of).items() if row.no_key}
    assert {row.no_key for row in keyless.values()} <= {"input", "source", "writes", "act", "cache-dir"}
    assert all(row.no_key for row in table(of).values() if row.group == POSITIONAL)
    for row in keyless.values():
        with pytest.raises(ConfigError, match="unknown key"):
            filed(of, {row.key: True}, "f", "t")


WORDS = st.sampled_from(["", "off", "DDP2", "double-wrap", "DDP99", "error", "json", "auto", "env", "\0", "A=1"])
SCALARS = st.one_of(WORDS, st.integers(-2, 2), st.just(10**10), st.booleans(), st.floats(-1, 3), st.just(1e12))
ANY = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(WORDS, st.one_of(SCALARS, st.lists(WORDS))))


def good(row: Any) -> Any:
    if row.kind is SWITCH:
        return st.booleans()
    return st.sampled_from(row.kind.schema["enum"]) if "enum" in row.kind.schema else st.just(VALUES[row.kind.told][1])


def tables(of: type[Any]) -> Any:
    """Mostly good values, some of any kind, now and then a key that is none."""
    rows = {row.key: row for row in table(of).values() if not row.no_key}
    pairs = [st.tuples(st.just(key), st.one_of(good(row), ANY)) for key, row in rows.items()]
    return st.lists(st.one_of(*pairs, st.tuples(st.sampled_from(["paths", "fix", "selct"]), SCALARS)), max_size=3).map(
        dict
    )


@given(tables(Settings), st.one_of(tables(Options), SCALARS))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_the_schema_accepts_what_is_accepted_and_refuses_the_rest(values: dict[str, Any], run: Any) -> None:
    whole = {**values, "run": run}
    try:
        chosen = config._settings(whole, "pyproject.toml")
        on_top(Options(above={"replay": "log"}), chosen)
        accepted = True
    except ConfigError as error:
        assert str(error)
        accepted = False
    assert VALIDATOR.is_valid(whole) is accepted, whole


def test_both_verdicts_are_met() -> None:
    assert VALIDATOR.is_valid({"select": ["DDP2"], "run": {"env": {"A": "1"}, "timeout": 3}})
    for wrong in ({"select": ["DDP99"]}, {"fix": True}, {"jobs": -1}, {"run": 3}, {"run": {"log": "x"}}):
        assert not VALIDATOR.is_valid(wrong)


def test_a_run_takes_the_files_options_under_those_of_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    table = 'nproc-per-node = 4\nhang = 5\nenv = {A = "1"}\nshim = false\nlive = false\nfail-on = "never"\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.validate-ddp.run]\n{table}")
    words = ["--hang", "7", "--env", "A=2", "--shim", "train.py", "x"]
    options = on_top(read(words), config.read("train.py"))
    plan = options.plan
    assert plan is not None and (plan.nproc_per_node, plan.hang, plan.shim) == (4, 7.0, True)
    assert plan.environment == (("A", "1"), ("A", "2")) and (plan.script, plan.arguments) == (("train.py",), ("x",))
    assert (options.live, options.fail_on) == (False, "never")
    launched = on_top(read(["--", "torchrun", "--nproc-per-node", "3", "train.py"]), config.read("train.py"))
    assert launched.plan is not None and launched.plan.nproc_per_node == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run = 3", "`tool.validate-ddp.run` must be a table"),
        ("run.nproc = 3", "unknown key `nproc` in [tool.validate-ddp.run]: the keys are nproc-per-node, nnodes"),
        ("run.hang = 0", "`hang` in [tool.validate-ddp.run] must be a number of seconds above 0, not 0"),
        ('run.env = {"" = "1"}', "must be a table of NAME ="),
    ],
)
def test_slips_in_the_table_of_runs_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(9)\n")
    (tmp_path / "pyproject.toml").write_text(f"[tool.validate-ddp]\n{text}\n")
    assert cli.main(["run", "train.py"]) == 2
    error = capsys.readouterr().err
    assert words in error and "pyproject.toml: " in error and error.count("\n") == 1
