"""What is put into factories, registries and lists of hooks, and runs when they are asked for it."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = "import os\nimport argparse\nimport torch\nimport torch.distributed as dist\n"
START = 'dist.init_process_group("nccl")\n'
END = "dist.destroy_process_group()\n"
FACTORY = """
class Factory:
    def __init__(self):
        self._builders = {}

    def add(self, name, builder):
        self._builders[name] = builder

    def create(self, name, **kwargs):
        builder = self._builders.get(name)
        if not builder:
            raise ValueError(name)
        return builder(**kwargs)
"""
AGENTS = """
import torch
import torch.distributed as dist

class {name}:
    def run(self):
        dist.barrier()
        torch.save([1], "{name}.pt")
"""
FACTORIES = """
import parts
import first
import second

class Runner:
    def __init__(self):
        self.agents = parts.Factory()
        self.agents.add("first", lambda **kwargs: first.First(**kwargs))
        self.agents.add("second", lambda **kwargs: second.Second(**kwargs))

    def run(self, name):
        agent = self.agents.create(name)
        agent.run()

Runner().run(os.environ["AGENT"])
"""
HOOKS = """
class Registry:
    def __init__(self, name):
        self._held = {}

    def register_module(self, name=None):
        def _register(cls):
            self._register(cls, name)
            return cls
        return _register

    def _register(self, cls, names=None):
        if names is None:
            names = cls.__name__
        if isinstance(names, str):
            names = [names]
        for name in names:
            self._held[name] = cls

    def build(self, cfg):
        return self._held.get(cfg.pop("type"))(**cfg)

HOOKS = Registry("hooks")

def build_hooks(cfg):
    hooks = []
    for each in cfg:
        hooks.append(HOOKS.build(each))
    return hooks
"""
OWN_HOOKS = "import torch\nfrom registry import HOOKS\n\n" + "".join(
    f'@HOOKS.register_module()\nclass Hook{number}:\n    def after(self):\n        torch.save([1], "{number}.pt")\n\n'
    for number in range(12)
)
TRAINER = """
import own_hooks
from registry import build_hooks

class Base:
    def __init__(self):
        self.hooks = []
        self.epoch = 0
        self.name = "base"

    def register(self, cfg):
        self.hooks.extend(build_hooks(cfg))

    def after(self):
        for hook in self.hooks:
            hook.after()

class Trainer(Base):
    def __init__(self, cfg):
        super().__init__()
        self.register(cfg)

    def train(self):
        self.after()

with open(os.environ["CONFIG"]) as stream:
    Trainer(eval(stream.read())).train()
"""
COMMANDS = """
def train(args):
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    torch.save([1], "trained.pt")
    dist.destroy_process_group()

def export(args):
    torch.save([1], "exported.pt")

parser = argparse.ArgumentParser()
commands = parser.add_subparsers()
commands.add_parser("train").set_defaults(func=train)
{}
args = parser.parse_args()
args.func(args)
"""
DATA = """
from torch_geometric.data import InMemoryDataset

class Ratings(InMemoryDataset):
    def __init__(self, root):
        super().__init__(root)
        self.load(self.processed_paths[0])

    def process(self):
        torch.save([1], "ratings.pt")

Ratings("data")
"""


def saves(lint: Any, train: str, **modules: str) -> list[tuple[str, int]]:
    lint.write(train=HEAD + train, **modules)
    return sorted((finding.path, finding.line) for finding in lint.run("train.py") if finding.code == "DDP502")


def test_a_factory_of_a_file_without_a_word_of_ranks_makes_what_was_put_into_it(lint: Any) -> None:
    modules = {"parts": FACTORY, "first": AGENTS.format(name="First"), "second": AGENTS.format(name="Second")}
    assert saves(lint, START + FACTORIES + END, **modules) == [("first.py", 8), ("second.py", 8)]


def test_hooks_that_a_registry_holds_run_when_the_list_of_them_is_gone_through(lint: Any) -> None:
    found = saves(lint, START + TRAINER + END, registry=HOOKS, own_hooks=OWN_HOOKS)
    assert len(found) == 12


@pytest.mark.parametrize("other", ["", 'commands.add_parser("export").set_defaults(func=export)'])
def test_a_sub_command_runs_the_function_that_it_names(lint: Any, other: str) -> None:
    assert saves(lint, COMMANDS.format(other)) == [("train.py", 10)]


def test_a_data_set_of_pyg_is_processed_by_its_constructor(lint: Any) -> None:
    assert len(saves(lint, START + DATA + END)) == 1


def test_what_both_alternatives_do_is_done_on_many_ranks_too(lint: Any) -> None:
    lint.write(
        train=HEAD
        + """
from torch.utils.data import DataLoader, DistributedSampler


def prepare():
    os.makedirs("out")


def train():
    prepare()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    data = torch.zeros(64, 2)
    for x in DataLoader(data, sampler=DistributedSampler(data)):
        model(x).sum().backward()


parser = argparse.ArgumentParser()
parser.add_argument("--show", action="store_true")
args = parser.parse_args()
if args.show:
    prepare()
else:
    dist.init_process_group("nccl")
    train()
    dist.destroy_process_group()
"""
    )
    assert [(each.code, each.line) for each in lint.run("train.py") if each.code == "DDP208"] == [("DDP208", 10)]


KEPT_BY_KIND = """
import collections

class Registry:
    held = collections.defaultdict(dict)

    @classmethod
    def register(cls, kind, name):
        def wrap(made):
            cls.held[kind][name] = made
            return made
        return wrap

    @classmethod
    def get(cls, kind, name):
        return cls.held[kind].get(name)
"""
KINDS = """
from registry import Registry

@Registry.register("trainer", "plain")
class Trainer:
    def run(self):
        dist.barrier()
        torch.save([1], "model.pt")

@Registry.register("model", "small")
class Small:
    def run(self):
        torch.save([1], "small.pt")

Registry.get("trainer", os.environ["TRAINER"])().run()
"""


def test_a_registry_may_make_the_dictionary_of_each_kind(lint: Any) -> None:
    script = HEAD + START + KINDS + END
    lint.write({"registry.py": KEPT_BY_KIND, "train.py": script})
    found = lint.run("train.py").of("DDP502")
    assert [script.splitlines()[finding.line - 1].strip() for finding in found] == ['torch.save([1], "model.pt")']


BUS = """
import torch.distributed as dist
from collections import defaultdict

class Bus:
    def __init__(self):
        self.handlers = defaultdict(list)

    def on(self, event, main_only=False):
        def register(handler):
            self.handlers[event].append((handler, main_only))
            return handler
        return register

    def fire(self, event, engine):
        for handler, main_only in self.handlers[event]:
            if engine.is_main or not main_only:
                handler(engine)

class Engine:
    def __init__(self):
        self.is_main = dist.get_rank() == 0
        self.bus = Bus()

    def run(self):
        for _ in range(3):
            self.bus.fire("epoch", self)

def attach(engine):
    @engine.bus.on("epoch"{})
    def save(engine):
        {}

dist.init_process_group("gloo")
engine = Engine()
attach(engine)
engine.run()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "options, body, codes",
    [
        ("", "dist.barrier()", set()),
        ("", "if engine.is_main:\n            dist.barrier()", {"DDP401"}),
        (", main_only=True", "dist.barrier()", {"DDP401"}),
        (", main_only=True", "print(engine)", set()),
    ],
)
def test_a_handler_that_a_method_of_an_object_registers_runs_when_it_is_fired(
    lint: Any, options: str, body: str, codes: set[str]
) -> None:
    lint.write(train=BUS.format(options, body))
    assert {finding.code for finding in lint.run("train.py")} == codes
