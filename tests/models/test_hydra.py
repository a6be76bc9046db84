"""What a configuration of hydra names under a key is made and walked where the script asks for what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

TRAINER = """
import torch
from accelerate import Accelerator

class Trainer:
    def __init__(self, settings=None, optim=None):
        self.accelerator = Accelerator()
        self.model = self.accelerator.prepare(torch.nn.Linear(1, 1))

    def run(self):
        if self.accelerator.is_main_process:
            self.accelerator.wait_for_everyone()
"""
SCRIPT = """
import os, hydra

@hydra.main(version_base="1.3", config_path={path}, config_name="train")
def main(cfg):
    {make}
    trainer.run()

if __name__ == "__main__":
    main()
"""
NESTED = """# @package _global_
loop:
  trainer:
    optim:
      _target_: torch.optim.AdamW
    _target_: own.loop.Trainer
"""
TOP = "_target_: own.loop.Trainer\nlr: 1e-3\n"


@pytest.mark.parametrize(
    ("name", "text", "make", "wanted"),
    [
        ("trainer/plain.yaml", TOP, "trainer = hydra.utils.instantiate(cfg.trainer)", True),
        ("exp/long.yml", NESTED, "trainer = hydra.utils.instantiate(cfg.loop.trainer, _recursive_=False)", True),
        ("train.yaml", TOP, "trainer = hydra.utils.get_class(cfg._target_)(cfg)", True),
        ("train.yaml", "# trainer:\n#   " + TOP, "trainer = hydra.utils.instantiate(cfg.trainer)", False),
        ("other/plain.yaml", TOP, "trainer = hydra.utils.instantiate(cfg.trainer)", False),
        ("trainer/plain.yaml", TOP, "trainer = hydra.utils.instantiate(cfg.trainer, _partial_=True)", False),
        (
            "trainer/plain.yaml",
            "_target_: own.missing.Trainer\n",
            "trainer = hydra.utils.instantiate(cfg.trainer)",
            False,
        ),
    ],
)
def test_what_a_configuration_names_is_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, make: str, wanted: bool
) -> None:
    paths = '"conf"', 'os.path.join(os.path.dirname(__file__), "conf")'
    script = SCRIPT.format(make=make, path=paths[name == "train.yaml"])
    files = {"train.py": script, "own/__init__.py": "", "own/loop.py": TRAINER, "conf/" + name: text}
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    found = [(each.code, each.path) for each in check(["train.py"], Settings()).findings]
    assert found == ([("DDP401", "own/loop.py")] if wanted else [])


ASKED = """
import os, hydra

{above}
{main}

if __name__ == "__main__":
    start()
"""
NESTED_MAIN = """
def start():
    held = []
    @hydra.main(version_base=None, config_path="conf")
    def read(cfg):
        held.append(cfg)
    read()
    config = held[0]
    trainer = hydra.utils.instantiate({asked})
    trainer.run()
"""
PLAIN_MAIN = """
@hydra.main(version_base=None, config_path={path})
def start(cfg):
    trainer = hydra.utils.instantiate(cfg.trainer)
    trainer.run()
"""


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        (ASKED.format(above="", main=NESTED_MAIN.format(asked='config["trainer"]')), True),
        (ASKED.format(above="", main=NESTED_MAIN.format(asked='config["other"]')), False),
        (ASKED.format(above="", main=NESTED_MAIN.format(asked='config["loop"]["trainer"]')), True),
        (
            ASKED.format(above='CONF = os.path.join(os.environ["HOME"], "conf")', main=PLAIN_MAIN.format(path="CONF")),
            True,
        ),
        (ASKED.format(above='CONF = os.environ["conf"]', main=PLAIN_MAIN.format(path="CONF")), False),
    ],
)
def test_a_key_is_the_same_as_an_item_and_a_folder_by_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, wanted: bool
) -> None:
    files = {"train.py": script, "own/__init__.py": "", "own/loop.py": TRAINER, "conf/trainer/plain.yaml": TOP}
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    found = [(each.code, each.path) for each in check(["train.py"], Settings()).findings]
    assert found == ([("DDP401", "own/loop.py")] if wanted else [])
