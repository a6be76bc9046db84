"""The page of all settings is what the dataclasses say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_settings_is_current():
    script = runpy.run_path(str(ROOT / "ci" / "configuration.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run python ci/configuration.py"
