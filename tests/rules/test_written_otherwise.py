"""Settings renamed or moved, functions in another module: nothing changes in what is found, or how severe it is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from moved_settings import WAYS, Texts

from ci.mutants.script import correct_scripts

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
_OF_EACH = 2
"""Mutants of each correct script: enough to meet every rule that reads."""
UNITS: dict[str, Texts] = {
    path.parent.name: {"train.py": path.read_text(encoding="utf-8")} for path in sorted(FIXTURES.glob("*/buggy.py"))
}
for script in correct_scripts():
    step = max(1, len(script.mutants) // _OF_EACH)
    for number, mutant in enumerate(script.mutants[::step]):
        UNITS[f"{script.name}-{number}-{mutant.code}"] = dict(mutant.texts)


def found(lint: Any, texts: Texts, folder: str) -> list[tuple[str, str]]:
    lint.write({f"{folder}/{path}": text for path, text in texts.items()})
    return sorted(lint.run(folder).told)


def test_there_are_enough_units_and_each_way_changes_most_of_them() -> None:
    assert len(UNITS) >= 60
    for way in WAYS.values():
        assert sum(way(texts) != texts for texts in UNITS.values()) >= 40


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_changes(lint: Any, unit: str) -> None:
    texts = {path: ast.unparse(ast.parse(text)) for path, text in UNITS[unit].items()}
    before = found(lint, texts, "before")
    after = {name: found(lint, way(texts), f"after{number}") for number, (name, way) in enumerate(WAYS.items())}
    assert after == dict.fromkeys(after, before)


NUMBERED = """
parser = argparse.ArgumentParser()
parser.add_argument("--NAME")
cfg = parser.parse_args()
dist.init_process_group("nccl")
model = torch.nn.Linear(1, 1)
sampler = None
if TEST:
    model = DDP(model)
    sampler = DistributedSampler(range(8))
loader = DataLoader(range(8), sampler=sampler)
for epoch in range(3):
    for batch in loader:
        model(batch).sum().backward()
    if TEST:
        torch.save(model.module.state_dict(), "model.pt")
if TEST and dist.get_rank() == 0:
    dist.barrier()
"""


@pytest.mark.parametrize("test", ["cfg.NAME", "not cfg.NAME", "cfg.NAME is not None", "cfg.NAME >= 0"])
def test_whether_to_use_a_gpu_is_a_setting_like_any_other(lint: Any, test: str) -> None:
    said = [lint.body(NUMBERED.replace("TEST", test).replace("NAME", name)).told for name in ("gpu", "flag")]
    assert said[0] == said[1] and ("DDP401", "error") in said[0]
