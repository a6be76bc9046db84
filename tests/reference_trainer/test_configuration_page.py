"""The page of all settings is what the dataclasses say, and the commands that the pages show can be given."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from reference_trainer.config import Config
from reference_trainer.settings import in_new_form, made, parsed, typed, types_of

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"(?:reference-trainer|-m reference_trainer) train\b([^\n#`|>]*)")


def test_the_page_of_settings_is_current():
    script = runpy.run_path(str(ROOT / "ci" / "configuration.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run python ci/configuration.py"


def shown_commands():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for words in COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
            if not {"...", "--own.width", "--help"} & set(words.split()):  # of a class that is not here
                yield f"{page.relative_to(ROOT)}:{words}"


@pytest.mark.parametrize("shown", list(shown_commands()))
def test_a_command_that_a_page_shows_can_be_given(shown):
    given = parsed(shlex.split(shown.partition(":")[2]), types_of(Config))
    given.pop("config", None)
    made(Config(), typed(in_new_form(given, "page", launched=True)[0], types_of(Config)))
