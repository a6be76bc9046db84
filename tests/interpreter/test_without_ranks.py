"""Which scripts are settled by names alone, without a walk: those that reach nothing which starts several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.interpreter.finder import Finder
from validate_ddp.interpreter.reach import without_ranks
from validate_ddp.source.summaries import Summaries

TRAIN = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Wrapper

SIZE = 3


class Trainer:
    def __init__(self):
        self.size = SIZE

    def fit(self, model):
        dist.init_process_group("nccl")
        return Wrapper(model)


def helper():
    return 2


def main():
    Trainer().fit(None)


if __name__ == "__main__":
    main()
"""
LATE = "import importlib\n\n\ndef find(name):\n    return importlib.import_module(name)\n"


def settled(folder: Path, script: str, **others: str) -> bool:
    (folder / "pyproject.toml").write_text("")
    for name, text in {"train": TRAIN, "late": LATE, "script": script, **others}.items():
        (folder / f"{name}.py").write_text(text)
    file = str(folder / "script.py")
    return without_ranks(Finder(Summaries(), file), file) is not None


@pytest.mark.parametrize(
    "script",
    [
        "from train import main\nmain()\n",
        "import train\ntrain.main()\n",
        "from train import *\nmain()\n",
        "from train import Trainer as T\n\nT().fit(1)\n",
        "from train import Trainer\n\n\ndef run(trainer):\n    trainer.fit(1)\n\n\nrun(Trainer())\n",
        "from train import Wrapper\nWrapper(1)\n",
        "import train\nimport sys\ngetattr(train, sys.argv[1])()\n",
        'import train\ngetattr(train, "main")()\n',
        'from train import Trainer\ngetattr(Trainer(), "fit")(1)\n',
        'from late import find\nfind("train").main()\n',
        "from train import main\n\nCALLS = {1: main}\n\n\ndef run(n):\n    CALLS[n]()\n\n\nrun(1)\n",
        "import click\nfrom train import main\n\n\n@click.command()\ndef run():\n    main()\n\n\nprint(1)\n",
        "from train import main\nimport fire\n\n\ndef run():\n    main()\n\n\nfire.Fire()\n",
        "from train import main\n\n\nclass Model:\n    def __call__(self):\n        main()\n\n\nModel()()\n",
        "from train import main\n\n\nclass Model:\n    def forward(self):\n        main()\n\n\nModel()()\n",
        "from train import main\nif 1:\n    try:\n        main()\n    except Exception:\n        pass\n",
        "from lightning import Trainer\nimport train\nTrainer(devices=2)\n",
        "def run(accelerator: Accelerator):\n    pass\n\n\nimport train\nrun(1)\n",
        "import train\n\n\ndef run():\n    from torch.multiprocessing import spawn as begin\n\n    begin(run)\n\n\nrun()\n",
        "import other\nother.sub()\n",
    ],
)
def test_what_may_start_ranks_is_walked(tmp_path: Path, script: str) -> None:
    assert not settled(tmp_path, script, other="from train import main as sub\n")


@pytest.mark.parametrize(
    "script",
    [
        "import train\nprint(train.SIZE)\n",
        "from train import helper\nprint(helper())\n",
        "from train import Trainer\nprint(Trainer().size)\n",
        "from train import helper\n\n\ndef main():\n    helper()\n\n\nif __name__ == '__main__':\n    main()\n",
        "import train\nfrom torch.nn.parallel import DataParallel as D\n\n\ndef inner(m):\n    return isinstance(m, D)\n\n\ninner(1)\n",
        "from diffusers import DDPMScheduler\nimport train\nDDPMScheduler()\n",
        "from train import helper\nhelper()\n\n\ndef unused():\n    from train import main\n\n    main()\n",
    ],
)
def test_what_reaches_no_start_is_settled(tmp_path: Path, script: str) -> None:
    assert settled(tmp_path, script)


def test_what_is_registered_is_reached(tmp_path: Path) -> None:
    own = "from names import register\nfrom train import main\n\n\n@register('a')\ndef run():\n    main()\n"
    names = "HELD = {}\n\n\ndef register(name):\n    return lambda f: HELD.setdefault(name, f)\n"
    script = "import sys\nimport own\nfrom names import HELD\nHELD[sys.argv[1]]()\n"
    assert not settled(tmp_path, script, own=own, names=names)


def test_what_is_nested_too_deeply_is_left_to_the_walk(tmp_path: Path) -> None:
    ladder = "import train\nif 0:\n    pass\n" + "".join(f"elif {n}:\n    pass\n" for n in range(1, 1200))
    assert not settled(tmp_path, ladder)
