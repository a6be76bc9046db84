"""Rules are found by their file names, and described by their modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from validate_ddp.catalogue import SEVERITIES, registry

SECTIONS = ("## What it does", "## Why is this bad?", "## Example", "## Use instead")


def test_every_rule_file_is_found_and_described() -> None:
    stubs = registry.every()
    assert [stub.code for stub in stubs] == sorted({stub.code for stub in stubs})
    assert len({stub.name for stub in stubs}) == len(stubs)
    files = Path(registry._RULES).glob("*/ddp*.py")
    assert len(registry.stubs()) == len(list(files))
    shown = {path.name[:6].upper() for path in Path(registry._OBSERVED).glob("ddp*.py")}
    read = {stub.code for stub in registry.stubs()}
    assert {stub.code for stub in registry.observed()} == shown - read
    for stub in stubs:
        rule = registry.describe(stub)
        assert rule.code == stub.code and rule.name == stub.name
        assert rule.summary.endswith(".") and "\n" not in rule.summary
        assert set(rule.severities) <= set(SEVERITIES) and rule.severities
        assert rule.fix in ("safe", "unsafe", "-") and set(rule.evidence) <= set("SLR")
        positions = [rule.documentation.find(section) for section in SECTIONS]
        assert -1 not in positions and positions == sorted(positions), stub
        assert ("## Fix safety" in rule.documentation) == (rule.fix != "-"), stub


def test_rules_that_read_files_raise_no_cases_but_others_have_three_of_each() -> None:
    for stub in registry.stubs():
        rule = registry.describe(stub)
        if stub.trigger != "source":
            assert len(rule.valid) >= 3 and len(rule.invalid) >= 3, stub
            assert all("# expect" in script for script in rule.invalid), stub
            assert not any("# expect" in script for script in rule.valid), stub


def test_only_well_named_files_are_rules(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    names = (
        "ddp201_missing_set_epoch.py", "ddp201_missing_set_epoch.py.orig", "._ddp202_x.py", "ddp2_x.py", "ddp203.py",
        "ddp203_.py", "__init__.py", "seen_with.py", "ddp20a_x.py", "ddp204_x.pyc",
    )  # fmt: skip
    for name in names:
        (folder / name).write_text("")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "ddp999_x.py").write_text("")
    stubs = registry._discover(str(tmp_path))
    assert [(stub.code, stub.name, stub.trigger) for stub in stubs] == [("DDP201", "missing-set-epoch", "data")]
    assert stubs[0].module == "validate_ddp.rules.data.ddp201_missing_set_epoch"


def test_look_up_by_code_and_name_in_any_case(six_rules: None) -> None:
    for text in ("DDP201", "ddp201", "missing-set-epoch", " Missing-Set-Epoch "):
        stub = registry.find(text)
        assert stub is not None and stub.code == "DDP201"
    assert registry.find("DDP20") is None
    assert registry.find("") is None
    assert registry.name_of("DDP999") == "ddp999"


def test_selectors(six_rules: None) -> None:
    everything = {"DDP001", "DDP002", "DDP003", "DDP201", "DDP203", "DDP502"}
    assert registry.codes_matching("ALL") == registry.codes_matching("ddp") == everything
    assert registry.codes_matching("DDP2") == {"DDP201", "DDP203"}
    assert registry.codes_matching("ddp50") == {"DDP502"}
    assert registry.codes_matching("save-on-every-rank") == {"DDP502"}


@pytest.mark.parametrize(
    "selector", ["", "D", "DD", "E501", "DDP9", "DDP2011", "no-such-rule", "DDP201 DDP203", "\x1b[31m"]
)
def test_unknown_selectors_are_refused_in_one_line(six_rules: None, selector: str) -> None:
    with pytest.raises(ValueError) as caught:
        registry.codes_matching(selector)
    assert str(caught.value).isprintable()


def test_the_nearest_rule_is_named(six_rules: None) -> None:
    assert "did you mean DDP201 (missing-set-epoch)?" in registry.unknown("mising-set-epoch")
    assert "did you mean DDP502" in registry.unknown("ddp5o2")


def test_discovery_imports_no_rule() -> None:
    code = (
        "import sys; from validate_ddp.catalogue import registry; registry.find('DDP003');"
        "print([name for name in sys.modules if name.startswith('validate_ddp.rules')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
