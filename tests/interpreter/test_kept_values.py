"""Values that are not lost on the way: names round a decorator's wrapper, fields that a branch sets, counters of loops."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = "import os\nimport torch\nimport torch.distributed as dist\n"
START = """dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(2, 2)
"""
END = "dist.destroy_process_group()\n"
TRAINER = """import torch


class Trainer:
    def __init__(self, model):
        self.model = model

    def run(self):
        torch.save(self.model.state_dict(), "m.pt")
"""
ERROR = {("DDP502", "error")}


def told(lint: Any, train: str, **modules: str) -> set[tuple[str, str]]:
    lint.write(train=HEAD + train, **modules)
    return set(lint.run("train.py").told)


DECORATOR = """
import functools
import torch.distributed as dist


def calm(label):
    def decorator(function):
        @functools.wraps(function)
        def wrapper(self, *args, **kwargs):
            try:
                return function(self, *args, **kwargs)
            except KeyboardInterrupt:
                print(label, dist.get_rank())

        return wrapper

    return decorator
"""


def test_a_method_behind_a_decorator_of_another_file_is_walked(lint: Any) -> None:
    trainer = "from calm import calm\n" + TRAINER.replace("    def run", '    @calm("stopped")\n    def run')
    script = "from work import Trainer\n" + START + "Trainer(model).run()\n" + END
    assert told(lint, script, calm=DECORATOR, work=trainer) == ERROR


def test_a_field_that_a_branch_sets_is_otherwise_what_it_was(lint: Any) -> None:
    script = """from absl import flags
config = flags.FLAGS.config
if config.count == 1:
    config.tracks = False
if config.tracks:
    print("tracks")
else:
    raise ValueError
torch.save(model.state_dict(), "m.pt")
"""
    assert told(lint, START + script + END) == ERROR


@pytest.mark.parametrize("counter", ["step", "trainer.step"])
def test_a_loop_is_walked_with_counters_of_any_turn(lint: Any, counter: str) -> None:
    script = f"""
class Trainer:
    step = None

trainer = Trainer()
{counter} = 0
while True:
    if {counter} > 0 and {counter} % 10 == 0:
        torch.save(model.state_dict(), "m.pt")
    {counter} += 1
"""
    assert told(lint, START + script) >= ERROR


PARAMS = """
import yaml


class Params:
    def __init__(self, path):
        self.held = {}
        with open(path) as file:
            self.update(yaml.safe_load(file))

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value
        SETTER

    def update(self, others):
        for key, value in others.items():
            self[key] = value
"""
SAVE = 'torch.save(model.state_dict(), "m.pt")'


@pytest.mark.parametrize(
    "setter",
    ["self.__setattr__(key, value)", "super().__setattr__(key, value)", "object.__setattr__(self, key, value)"],
)
@pytest.mark.parametrize("read", ["params.report", 'params["report"]'])
def test_an_item_that_an_object_keeps_itself_is_what_was_put_there(lint: Any, setter: str, read: str) -> None:
    params = PARAMS.replace("SETTER", setter)
    head = f'import sys\nfrom params import Params\n{START}params = Params(sys.argv[1])\nparams["epochs"] = 3\n'
    guarded = f'params["report"] = dist.get_rank() == 0 and params["report"]\nif {read}:\n    {SAVE}\n'
    assert told(lint, head + guarded + END, params=params) == set()
    unguarded = f'params["report"] = dist.is_initialized()\nif {read}:\n    {SAVE}\n'
    assert told(lint, head + unguarded + END, params=params) == ERROR


CONFIG = """
import helpers
import torch.distributed as dist


class Config:
    def __init__(self, given):
        self.final = helpers.collected(given)
        self.ranks = dist.get_world_size()

    def __getitem__(self, key):
        return self.final.get(key)
"""


def test_what_a_key_gives_is_told_apart_from_what_other_keys_give_however_many_are_asked_for(lint: Any) -> None:
    asked = "".join(f'print(config["option{number}"])\n' for number in range(60))
    head = f"import sys\nfrom config import Config\n{START}config = Config(sys.argv[1])\n"
    guarded = f'if config["local_rank"] == 0:\n    {SAVE}\n'
    other = 'if not config["single"]:\n    dist.barrier()\n'
    assert told(lint, head + guarded + asked + other + END, config=CONFIG) <= {("DDP503", "info")}
    unguarded = f'if config["single"] != 1:\n    {SAVE}\n'
    codes = {
        code for code, _ in told(lint, head + 'print(config["local_rank"])\n' + asked + unguarded + END, config=CONFIG)
    }
    assert codes == {"DDP502"}
