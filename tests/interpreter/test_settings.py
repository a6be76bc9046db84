"""Where a setting comes from changes nothing: its default, read or not, is not its value."""

from __future__ import annotations

from typing import Any

import pytest

FIELDS = {
    "ddp": ("bool", False),
    "evaluate": ("bool", True),
    "epochs": ("int", 1),
    "rank": ("int", 0),
    "resume": ("str", None),
    "strategy": ("str", "none"),
}
USE = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def main():
    dist.init_process_group("nccl")
    model = torch.nn.Linear(1, 1)
    if settings.strategy == "ddp":
        dist.barrier()
    if settings.ddp:
        model = DDP(model)
        sampler = DistributedSampler(range(8))
    else:
        sampler = None
    loader = DataLoader(range(8), sampler=sampler)
    if settings.resume is not None:
        model.load_state_dict(torch.load(settings.resume))
    if settings.evaluate:
        return
    for epoch in range(settings.epochs):
        for batch in loader:
            model(batch).sum().backward()
        torch.save(model.state_dict(), "model.pt")
    if settings.rank == 0:
        dist.barrier()


if __name__ == "__main__":
    main()
"""
DATACLASS = "from dataclasses import dataclass, field\n\n@dataclass\nclass Config:\n" + "".join(
    f"    {name}: {kind} = {value!r}\n" for name, (kind, value) in FIELDS.items()
)
BY_FIELD = "from dataclasses import dataclass, field\n\n@dataclass\nclass Config:\n" + "".join(
    f"    {name}: {kind} = field(default={value!r})\n" for name, (kind, value) in FIELDS.items()
)
NODE = "".join(f"_C.{name} = {value!r}\n" for name, (_, value) in FIELDS.items())
MAPPING = repr({name: value for name, (_, value) in FIELDS.items()})
PARAMETERS = ", ".join(f"{name}={value!r}" for name, (_, value) in FIELDS.items())
ENVIRONMENT = "class settings:\n" + "".join(
    f"    {name} = os.environ.get({'MY_JOB_' + name.upper()!r}, {value!r})\n" for name, (_, value) in FIELDS.items()
)
ARGPARSE = (
    "import argparse\n\nparser = argparse.ArgumentParser()\n"
    + "".join(f"parser.add_argument('--{name}', default={value!r})\n" for name, (_, value) in FIELDS.items())
    + "settings = parser.parse_args()\n"
)
MERGED = "import sys\n\nsettings.merge_from_list(sys.argv[1:])\n"
READ = {
    "argparse": ARGPARSE,
    "yacs": f"from yacs.config import CfgNode as CN\n\n_C = CN()\n{NODE}settings = _C\n{MERGED}",
    "yacs, cloned": (
        f"from yacs.config import CfgNode\n\n_C = CfgNode()\n{NODE}\ndef get():\n    return _C.clone()\n\n"
        f"settings = get()\nsettings.merge_from_file('a.yaml')\n"
    ),
    "an attribute dictionary": f"from easydict import EasyDict as edict\n\n_C = edict()\n{NODE}settings = _C\n",
    "ml_collections": f"import ml_collections\n\n_C = ml_collections.ConfigDict()\n{NODE}settings = _C\n",
    "OmegaConf": f"from omegaconf import OmegaConf\n\nsettings = OmegaConf.create({MAPPING})\n",
    "OmegaConf, structured": (
        f"from omegaconf import OmegaConf\n{DATACLASS}\n"
        "settings = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.from_cli())\n"
    ),
    "HfArgumentParser": (
        f"from transformers import HfArgumentParser\n{DATACLASS}\n"
        "settings = HfArgumentParser(Config).parse_args_into_dataclasses()[0]\n"
    ),
    "tyro": f"import tyro\n{DATACLASS}\nsettings = tyro.cli(Config)\n",
    "simple_parsing": f"import simple_parsing\n{DATACLASS}\nsettings = simple_parsing.parse(Config)\n",
    "settings of pydantic": (
        "from pydantic_settings import BaseSettings\n"
        + DATACLASS.replace("@dataclass\nclass Config", "class Config(BaseSettings)")
        + "\nsettings = Config()\n"
    ),
    "a dataclass from a file": (f"import yaml\n{DATACLASS}\nsettings = Config(**yaml.safe_load(open('a.yaml')))\n"),
    "a dataclass by position": f"import sys\n{DATACLASS}\nsettings = Config(*sys.argv)\n",
    "a dataclass overridden": (
        f"import sys\n{DATACLASS}\nsettings = Config()\nfor text in sys.argv:\n"
        "    setattr(settings, *text.split('='))\n"
    ),
    "a dataclass overridden in a function": (
        f"import sys\n{DATACLASS}\ndef fill(target, texts):\n    for text in texts:\n        name, value = text.split('=')\n"
        "        value = int(value)\n        setattr(target, name, value)\n\nsettings = Config()\nfill(settings, sys.argv)\n"
    ),
    "a dataclass updated": f"import yaml\n{DATACLASS}\nsettings = Config()\nvars(settings).update(yaml.safe_load('a'))\n",
    "the environment": f"import os\n\n{ENVIRONMENT}",
}
CALLED = {
    "hydra": f"import hydra\n{DATACLASS}\n@hydra.main(config_name='a')\ndef main(settings: Config):",
    "pyrallis": f"import pyrallis\n{BY_FIELD}\n@pyrallis.wrap()\ndef main(settings: Config):",
    "click": f"import click\n\n@click.command()\ndef main({PARAMETERS}):",
    "an annotation": f"import engine\n{DATACLASS}\ndef main(settings: Config):",
    "fire": f"import fire\n\ndef main({PARAMETERS}):",
    "typer": f"import typer\n\ndef main({PARAMETERS}):",
}
STARTED = {"an annotation": "main(engine.load())", "fire": "fire.Fire(main)", "typer": "typer.run(main)"}


def findings(lint: Any, train: str, **modules: str) -> set[tuple[str, str]]:
    lint.write(**modules)
    return set(lint(train, ignore=("DDP101",)).told)


EXPECTED = {
    ("DDP201", "error"),
    ("DDP401", "warning"),
    ("DDP501", "info"),
    ("DDP502", "error"),
    ("DDP504", "warning"),
}


def test_options_of_the_command_line_are_unknown(lint: Any) -> None:
    assert findings(lint, ARGPARSE + USE) == EXPECTED


@pytest.mark.parametrize("read", READ.values(), ids=READ.keys())
def test_settings_are_like_options_wherever_they_come_from(lint: Any, read: str) -> None:
    assert findings(lint, read + USE) == EXPECTED


@pytest.mark.parametrize("read", READ.values(), ids=READ.keys())
def test_settings_of_another_module_are_the_same_settings(lint: Any, read: str) -> None:
    assert findings(lint, config=read, train="from config import settings\n" + USE) == EXPECTED


@pytest.mark.parametrize("name", CALLED)
def test_arguments_that_something_else_fills_in_are_settings(lint: Any, name: str) -> None:
    script = USE.replace("def main():", CALLED[name])
    script = script.replace("settings.", "") if "settings" not in CALLED[name] else script
    start = STARTED.get(name, "main()")
    assert findings(lint, script.replace("    main()\n", f"    {start}\n")) == EXPECTED


@pytest.mark.parametrize("overridden", ["exec(open('configurator.py').read())", "exec(source())"])
def test_constants_of_a_module_that_executes_a_file_are_settings(lint: Any, overridden: str) -> None:
    constants = "".join(f"{name} = {value!r}\n" for name, (_, value) in FIELDS.items())
    assert findings(lint, constants + overridden + USE.replace("settings.", "")) == EXPECTED


def test_settings_in_a_dictionary_that_a_file_updates_are_unknown(lint: Any) -> None:
    script = USE
    for name in FIELDS:
        script = script.replace(f"settings.{name}", f"settings[{name!r}]")
    for made in (
        f"import json\nsettings = {MAPPING}\nsettings.update(json.load(open('a.json')))\n",
        f"import json\nsettings = {{**{MAPPING}, **json.load(open('a.json'))}}\n",
        f"import engine\nsettings = {MAPPING}\nsettings.update(engine.read())\n",
    ):
        assert findings(lint, made + script) == EXPECTED


CONSTANTS = {
    "of a class": DATACLASS + "\nsettings = Config()\n",
    "of a class that is told": DATACLASS.replace("= True", "= False") + "\nsettings = Config(evaluate=True)\n",
    "of a namespace": "import argparse\nsettings = argparse.Namespace()\nsettings.evaluate = True\n",
}


@pytest.mark.parametrize("made", CONSTANTS.values(), ids=CONSTANTS.keys())
def test_what_nothing_can_override_is_known(lint: Any, made: str) -> None:
    assert "DDP201" not in {code for code, _ in findings(lint, made + USE)}


PRESUMED = """
import argparse
import torch
import torch.distributed as dist
from project import load

settings = load()
model = torch.nn.Linear(1, 1)


def save(kind):
    SAVE


def main(settings):
    if START:
        dist.init_process_group("nccl")
    model(torch.ones(1)).backward()
    save(settings)
    if START:
        dist.destroy_process_group()


main(settings)
"""
FLAGS = [
    "settings.enable_fsdp",
    "not settings.single_process",
    "settings.fsdp.enabled",
    "settings.enable_fsdp and load()",
]


@pytest.mark.parametrize("flag", FLAGS)
def test_what_the_start_of_the_group_hangs_on_is_so_in_a_distributed_launch(lint: Any, flag: str) -> None:
    script = PRESUMED.replace("START", flag)
    renamed = flag.removesuffix(" and load()").replace("settings.", "kind.")
    other = renamed.removeprefix("not ") if "not " in renamed else f"not {renamed}"
    write = 'torch.save(model.state_dict(), "model.pt")'
    single = f"if {other}:\n        {write}"
    several = f"if {renamed}:\n        {write}"
    assert findings(lint, script.replace("SAVE", single)) == set()
    assert findings(lint, script.replace("SAVE", several)) == {("DDP502", "error")}


@pytest.mark.parametrize("flag", ["settings.test", "settings.run_tests"])
def test_a_flag_with_a_start_in_either_case_says_nothing(lint: Any, flag: str) -> None:
    script = PRESUMED.replace(
        "if START:\n        dist.init",
        'if START:\n        dist.init_process_group("gloo")\n    else:\n        dist.init',
    )
    script = script.replace("SAVE", f'if not {flag}:\n        torch.save(model.state_dict(), "model.pt")').replace(
        "(kind)", "(settings)"
    )
    assert findings(lint, script.replace("START", flag)) == {("DDP502", "error")}
