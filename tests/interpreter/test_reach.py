"""How far the walk follows a program: candidates, registries, partial, records, command lines, delegation."""

from __future__ import annotations

import os
from typing import Any

import pytest
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import trace
from validate_ddp.models.known import registry
from validate_ddp.source.summaries import Summaries

HEAD = "import os\nimport torch\nimport torch.distributed as dist\n"
START = 'dist.init_process_group("nccl")\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\nmodel = torch.nn.Linear(2, 2)\n'
END = "dist.destroy_process_group()\n"
SAVE = 'import torch\n\n\ndef save(model, path="m.pt"):\n    torch.save(model.state_dict(), path)\n'
OTHER = 'def load(model):\n    return torch.load("m.pt", map_location="cpu")\n'
TRAINER = (
    "import torch\n\n\nclass Trainer:\n    def __init__(self, model=None, lr=1):\n"
    "        self.model = model or torch.nn.Linear(2, 2)\n\n"
    '    def run(self):\n        torch.save(self.model.state_dict(), "m.pt")\n'
)
REGISTRY = """
class Registry:
    def __init__(self, name):
        self._name = name
        self._held = {}

    def register(self, name=None):
        def wrap(cls):
            self._held[name or cls.__name__] = cls
            return cls

        return wrap

    def get(self, name):
        found = self._held.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def build(self, cfg):
        return self.get(cfg.pop("type"))(**cfg)


TRAINERS = Registry("trainers")


def build_from_cfg(cfg, registry):
    args = cfg.copy()
    kind = args.pop("type")
    return registry.get(kind)(**args)
"""
REGISTERED = "from registry import TRAINERS\n" + TRAINER.replace("class", "@TRAINERS.register()\nclass")
IDLE = '\n\n@TRAINERS.register("idle")\nclass Idle:\n    def run(self):\n        return torch.load("m.pt", map_location="cpu")\n'
LIBRARY = 'from fvcore.common.registry import Registry\n\nTRAINERS = Registry("trainers")\n'


def found(lint: Any, train: str, **modules: str) -> set[tuple[str, str]]:
    lint.write(train=HEAD + train, **modules)
    return {(finding.code, finding.severity) for finding in lint.run("train.py") if finding.code != "DDP504"}


ERROR = {("DDP502", "error")}


def hangs(lint: Any, train: str, **modules: str) -> set[bool]:
    """Whether what is saved hangs on something unknown, for each save."""
    lint.write(train=HEAD + train, **modules)
    program = trace(Summaries(), os.path.abspath("train.py"), registry())
    return {fact.hangs_on_unknown for fact in program.facts(facts.Save)}


@pytest.mark.parametrize(
    "pick",
    [
        "getattr(actions, os.environ['ACTION'])",
        "actions.__dict__[os.environ['ACTION']]",
        "{'save': actions.save, 'load': actions.load}[os.environ['ACTION']]",
        "{'save': actions.save, 'load': actions.load}.get(os.environ['ACTION'])",
        "getattr(__import__('importlib').import_module('actions'), 'save')",
    ],
)
def test_what_one_of_several_candidates_does_is_found_as_something_that_may_be(lint: Any, pick: str) -> None:
    script = f"import importlib\nimport actions\n{START}{pick}(model)\n{END}"
    if "__import__" in pick:
        script = script.replace("__import__('importlib')", "importlib")
        assert found(lint, script, actions=SAVE + OTHER) == ERROR
        return
    assert hangs(lint, script, actions=SAVE + OTHER) == {True}


def test_what_the_only_candidate_does_is_certain(lint: Any) -> None:
    assert found(lint, f"import actions\n{START}getattr(actions, os.environ['A'])(model)\n{END}", actions=SAVE) == ERROR


def test_objects_of_several_candidates_stay_candidates(lint: Any) -> None:
    idle = (
        "\n\nclass Idle:\n    def __init__(self, model):\n        pass\n\n    def run(self):\n        dist.barrier()\n"
    )
    script = f"import trainers\n{START}trainer = getattr(trainers, os.environ['KIND'])(model)\ntrainer.run()\n{END}"
    assert hangs(lint, script, trainers="import torch.distributed as dist\n" + TRAINER + idle) == {True}


def test_networks_of_several_candidates_are_not_taken_for_each_other(lint: Any) -> None:
    network = (
        "class {}(torch.nn.Module):\n    def forward(self, x):\n        return x * torch.distributed.get_rank()\n\n\n"
    )
    networks = "import torch\nimport torch.distributed\n\n\n" + network.format("A") + network.format("B")
    script = (
        f"import networks\n{START}net = getattr(networks, os.environ['KIND'])()\n"
        "net = torch.nn.parallel.DistributedDataParallel(net.cuda())\n"
        f"optimizer = torch.optim.SGD(net.module.parameters(), lr=1)\n{END}"
    )
    assert found(lint, script, networks=networks) == set()


def test_a_module_of_a_package_by_its_name(lint: Any) -> None:
    lint.write({"recipes/__init__.py": "", "recipes/a.py": SAVE, "recipes/b.py": "def load():\n    pass\n"})
    script = "import importlib\n" + START + 'module = importlib.import_module(f"recipes.{{os.environ}}")\n' + END
    script = script.replace("{{os.environ}}", "{os.environ['R']}")
    assert hangs(lint, script.replace(END, "module.save(model)\n" + END)) == {True}


@pytest.mark.parametrize("registry", [REGISTRY, LIBRARY], ids=["own", "library"])
@pytest.mark.parametrize(
    "built",
    ["TRAINERS.build(cfg)", "TRAINERS.get(cfg['type'])()", "TRAINERS.get(cfg.kind)()"],
)
def test_what_a_decorator_registers_is_found_by_a_name_that_only_a_run_knows(
    lint: Any, registry: str, built: str
) -> None:
    script = (
        f"import yaml\nimport registered\nfrom registry import TRAINERS\n"
        f"cfg = yaml.safe_load('a')\n{START}{built}.run()\n{END}"
    )
    assert found(lint, script, registry=registry, registered=REGISTERED) == ERROR
    assert hangs(lint, script, registry=registry, registered=REGISTERED + IDLE) == {True}


def test_a_function_that_builds_from_a_registry(lint: Any) -> None:
    script = (
        "import yaml\nimport registered\nfrom registry import TRAINERS, build_from_cfg\n"
        f"cfg = yaml.safe_load('a')\n{START}build_from_cfg(cfg, TRAINERS).run()\n{END}"
    )
    assert found(lint, script, registry=REGISTRY, registered=REGISTERED) == ERROR


@pytest.mark.parametrize(
    "called",
    [
        "partial(save, model)()",
        "partial(partial(save), model, path='x')()",
        "partial(Trainer, lr=2)(model).run()",
        "partial(partial(Trainer, model), lr=2)().run()",
    ],
)
def test_partial_keeps_its_arguments(lint: Any, called: str) -> None:
    modules = {"actions": SAVE + "\n\n" + TRAINER.partition("\n\n\n")[2]}
    script = f"from functools import partial\nfrom actions import Trainer, save\n{START}{called}\n{END}"
    assert found(lint, script, **modules) == ERROR


def test_partial_hands_a_rank_on(lint: Any) -> None:
    script = (
        "from functools import partial\n\n\ndef wait(rank, model):\n    if rank == 0:\n        dist.barrier()\n\n\n"
        f"{START}partial(wait, dist.get_rank())(model)\n{END}"
    )
    assert ("DDP401", "error") in found(lint, script)


def test_partial_of_a_loader_keeps_its_sampler(lint: Any) -> None:
    script = (
        "from functools import partial\nfrom torch.utils.data import DataLoader, DistributedSampler\n"
        f"{START}data = list(range(8))\nwrapped = torch.nn.parallel.DistributedDataParallel(model)\n"
        "sampler = DistributedSampler(data)\nloader = partial(DataLoader, sampler=sampler)(data)\n"
        "for epoch in range(3):\n    sampler.set_epoch(epoch)\n    for x in loader:\n        wrapped(x).sum().backward()\n"
        + END
    )
    assert found(lint, script) == set()


LOADER = "DataLoader(data, sampler=DistributedSampler(data))"
LOOP = (
    "optimizer = torch.optim.SGD(model.parameters(), lr=1)\nfor epoch in range(3):\n    for x in {}:\n"
    "        optimizer.zero_grad()\n        wrapped(x).sum().backward()\n        optimizer.step()\n"
)


@pytest.mark.parametrize(
    ("defined", "made", "loader"),
    [
        (
            "@dataclass\nclass Loaders:\n    train: DataLoader\n    val: DataLoader = None\n",
            f"Loaders({LOADER})",
            "it.train",
        ),
        (
            "@dataclass\nclass Base:\n    train: DataLoader\n\n\n@dataclass\nclass Loaders(Base):\n    val: int = 1\n",
            f"Loaders({LOADER}, 2)",
            "it.train",
        ),
        ("class Loaders(NamedTuple):\n    val: int\n    train: DataLoader\n", f"Loaders(1, {LOADER})", "it[1]"),
        ("class Loaders(NamedTuple):\n    val: int\n    train: DataLoader\n", f"Loaders(1, {LOADER})[1]", "it"),
        (
            "@dataclass\nclass Loaders:\n    val: int = 1\n    train: DataLoader = None\n",
            f"replace(Loaders(), train={LOADER})",
            "it.train",
        ),
        (
            "@dataclass\nclass Loaders:\n    n: int\n\n    def __post_init__(self):\n"
            f"        data = list(range(8))\n        self.train = {LOADER}\n",
            "Loaders(3)",
            "it.train",
        ),
        (
            "class Loaders:\n    def __init__(self, **given):\n        for name, value in given.items():\n"
            "            setattr(self, name, value)\n",
            f"Loaders(train={LOADER}, n=3)",
            "it.train",
        ),
        (
            "class Loaders:\n    def __init__(self, **given):\n        self.__dict__.update(given)\n",
            f"Loaders(train={LOADER}, n=3)",
            "it.train",
        ),
        ("", "DataLoader(data, **(dict(batch_size=4) | dict(sampler=DistributedSampler(data))))", "it"),
    ],
)
def test_a_loader_is_followed_through_records(lint: Any, defined: str, made: str, loader: str) -> None:
    script = (
        "from dataclasses import dataclass, replace\nfrom typing import NamedTuple\n"
        f"from torch.utils.data import DataLoader, DistributedSampler\n{defined}\n"
        f"{START}data = list(range(8))\nwrapped = torch.nn.parallel.DistributedDataParallel(model)\nit = {made}\n"
        f"{LOOP.format(loader)}{END}"
    )
    assert ("DDP201", "error") in found(lint, script)


@pytest.mark.parametrize(
    "getter",
    [
        "return getattr(self.inner, name)",
        "try:\n            return super().__getattr__(name)\n        except AttributeError:\n"
        "            return getattr(self.inner, name)",
    ],
)
def test_attributes_that_another_object_answers_for(lint: Any, getter: str) -> None:
    script = (
        "from trainers import Trainer\n\n\nclass Wrapping(torch.nn.Module):\n    def __init__(self, inner):\n"
        f"        super().__init__()\n        self.inner = inner\n\n    def __getattr__(self, name):\n        {getter}\n\n\n"
        f"{START}Wrapping(Trainer(model)).run()\n{END}"
    )
    assert found(lint, script, trainers=TRAINER) == ERROR


RUN = (
    "def train(lr: float = 1):\n"
    + "".join("    " + line + "\n" for line in START.splitlines())
    + ('    torch.save(model.state_dict(), "m.pt")\n    dist.destroy_process_group()\n')
)
METHOD = "class App:\n" + "".join("    " + line + "\n" for line in RUN.replace("(lr", "(self, lr").splitlines())


@pytest.mark.parametrize(
    "script",
    [
        f"import typer\napp = typer.Typer()\n\n\n@app.command()\n{RUN}\n\napp()\n",
        f"import typer\napp = typer.Typer()\n\n\n{RUN}\n\napp.command()(train)\napp()\n",
        f"import click\n\n\n@click.group()\ndef cli():\n    pass\n\n\n@cli.command()\n{RUN}\n\ncli()\n",
        f"import fire\n\n\n{RUN}\n\nfire.Fire({{'train': train}})\n",
        f"import fire\n\n\n{RUN}\n\nfire.Fire()\n",
        f"import fire\n\n\n{METHOD}\n\nfire.Fire(App)\n",
        f"from jsonargparse import auto_cli\n\n\n{RUN}\n\nauto_cli([train])\n",
        f"import tyro\n\n\n{RUN}\n\ntyro.cli(train)\n",
    ],
)
def test_the_function_that_a_command_line_calls_is_walked(lint: Any, script: str) -> None:
    assert found(lint, script) == ERROR


def test_one_of_several_commands_may_be_what_runs(lint: Any) -> None:
    other = "@app.command()\ndef show():\n    torch.load('m.pt', map_location='cpu')\n"
    script = f"import typer\napp = typer.Typer()\n\n\n@app.command()\n{RUN}\n\n{other}\n\napp()\n"
    assert hangs(lint, script) == {True}


@pytest.mark.parametrize(
    "newer",
    [
        "type Pair[T] = tuple[T, T]\n",
        "class Box[\n    T: int,\n]:\n    def get[U](self, x: U) -> U:\n        return x\n",
        'text = t"hello {os.name}"\n',
        "try:\n    pass\nexcept KeyError, ValueError:\n    pass\n",
        'names = {"a": 1}\ntype Name = str\nprint(f"{names["a"]}")\n',
    ],
)
def test_syntax_of_a_newer_python_is_read(lint: Any, newer: str) -> None:
    lint.write(train=HEAD + newer + START + 'torch.save(model.state_dict(), "m.pt")\n' + END)
    (finding,) = lint.run("train.py")
    line = HEAD.count("\n") + newer.count("\n") + START.count("\n") + 1
    assert (finding.code, finding.line, finding.column, finding.confirmed) == ("DDP502", line, 1, True)


def test_a_loop_over_what_is_empty_on_other_ranks_runs_on_one(lint: Any) -> None:
    script = f"import trainers\n{START}held = [trainers.Trainer(model)] if dist.get_rank() == 0 else []\nfor it in held:\n    it.run()\n{END}"
    assert found(lint, script, trainers=TRAINER) == set()
    assert found(lint, script.replace("else []", "else {}"), trainers=TRAINER) == set()
    assert found(lint, script.replace("else []", "else [trainers.Trainer(model)]"), trainers=TRAINER) == ERROR


def test_a_function_that_hands_itself_to_its_command_line_is_not_run_again(lint: Any) -> None:
    body = "def setup(lr: int = 1):\n    dist.init_process_group('nccl')\n    if dist.get_rank() == 0:\n        keep(setup)\n    dist.barrier()\n"
    script = f"from jsonargparse import CLI\n\n\n{body}\n\ndef keep(function):\n    CLI(function)\n\n\nCLI(setup)\n"
    assert "DDP401" not in {code for code, _ in found(lint, script)}


def test_a_field_given_by_position_is_known(lint: Any) -> None:
    script = (
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Job:\n    name: str\n    out: str = 'out'\n\n\n"
        f"{START}job = Job('a', f'{{dist.get_rank()}}.pt')\ntorch.save(model.state_dict(), job.out)\n{END}"
    )
    assert found(lint, script) == set()
    assert found(lint, script.replace("dist.get_rank()", "'m'")) == ERROR


def test_a_copy_of_what_an_object_holds_is_a_dictionary(lint: Any) -> None:
    text = "class A:\n    x = 1\n\n\na = A()\na.rank = 0\nheld = vars(a).copy()\nmore = a.__dict__.copy()\n"
    lint.write(train=HEAD + text + START + END)
    assert [finding.code for finding in lint.run("train.py")] == []


FLOW = """
class Flow:
    def __init__(self, net, scale=1.0):
        self.net = net
        self.scale = scale
        self.shift = 0.0

    def loss(self, x):
        scaled = x * self.scale
        shifted = scaled + self.shift
        return self.net(shifted).mean()

    def loss_of(self, net, x):
        scaled = x * self.scale
        shifted = scaled + self.shift
        return net(shifted).mean()
"""
MAKER = 'def make(kind):\n    if kind == "a":\n        scale = 1.0\n    else:\n        scale = 2.0\n'


def bypassed(lint: Any, train: str, **modules: str) -> set[str]:
    """Where a training forward goes round the wrapper."""
    wrap = "net = torch.nn.Linear(2, 2)\n{}\nfor step in range(3):\n    {}.backward()\n"
    lint.write(train=HEAD + START + wrap.format(*train.split("|")) + END, **modules)
    return {f"{finding.path}:{finding.line}" for finding in lint.run("train.py") if finding.code == "DDP301"}


DDP = "torch.nn.parallel.DistributedDataParallel"


def test_a_file_without_a_word_is_followed_once_what_it_holds_is_wrapped(lint: Any) -> None:
    """What was made with the model before it was wrapped runs it round the wrapper."""
    made = f"from flow import Flow\nflow = Flow(net)\nddp = {DDP}(net)|flow.loss(x)"
    assert bypassed(lint, made, flow=FLOW) == {"flow.py:11"}
    late = f"from flow import Flow\nddp = {DDP}(net)\nflow = Flow(net)|flow.loss(x)"
    assert bypassed(lint, late, flow=FLOW) == {"flow.py:11"}
    wrapped = f"from flow import Flow\nddp = {DDP}(net)\nflow = Flow(ddp)|flow.loss(x)"
    assert bypassed(lint, wrapped, flow=FLOW) == set()


def test_what_is_put_into_another_object_later_is_what_it_holds(lint: Any) -> None:
    later = f"from flow import Flow\nflow = Flow(net)\nddp = {DDP}(net)\nflow.net = ddp|flow.loss(x)"
    assert bypassed(lint, later, flow=FLOW) == set()


def test_what_a_function_of_another_file_makes_is_followed_once_it_is_handed_a_model(lint: Any) -> None:
    maker = f"from flow import Flow\n\n\n{MAKER}    flow = Flow(None, scale)\n    return flow\n"
    handed = f"from maker import make\nflow = make('a')\nddp = {DDP}(net)|flow.loss_of({{}}, x)"
    assert bypassed(lint, handed.format("net"), flow=FLOW, maker=maker) == {"flow.py:16"}
    assert bypassed(lint, handed.format("ddp"), flow=FLOW, maker=maker) == set()
    assert bypassed(lint, handed.format("None"), flow=FLOW, maker=maker) == set()
