"""DDP502: logs that a dictionary configures, or a text of the program that is read into one."""

from __future__ import annotations

from typing import Any

import pytest

CONFIGURED = {
    "emptied": ('"filename": "a.log", "mode": "w"', ["warning"]),
    "appended to": ('"filename": "a.log"', ["info"]),
    "filtered": ('"filename": "a.log", "filters": ["first"]', []),
    "emptied by all": ('"filename": "a.log", "filters": ["first"], "mode": "w"', ["warning"]),
    "no file": ('"stream": "ext://sys.stdout"', []),
}


@pytest.mark.parametrize(("fields", "severities"), CONFIGURED.values(), ids=CONFIGURED.keys())
def test_so_is_a_log_that_a_dictionary_or_a_text_configures(lint: Any, fields: str, severities: list[str]) -> None:
    made = "logging.FileHandler" if "filename" in fields else "logging.StreamHandler"
    handlers = f'{{"version": 1, "handlers": {{"one": {{"class": "{made}", {fields}}}}}}}'
    start = 'import logging.config\ndist.init_process_group("gloo")\n'
    for config in (handlers, f"json.loads('{handlers}')"):
        script = f"{start}config = {config}\nlogging.config.dictConfig(config)\n"
        assert lint.body(script, "DDP502").severities == severities
