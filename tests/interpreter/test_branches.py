"""What both branches of a condition on the rank lead to, and what is known of a library that may be missing."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = "import torch\nimport torch.distributed as dist\n"
START = 'dist.init_process_group("nccl")\n'
END = "dist.destroy_process_group()\n"
BOTH = """
def write(path, log):
    if log:
        print(path)
    torch.save(torch.ones(1), path)

if dist.get_rank() == 0:
    write({}, True)
else:
    write({}, False)
"""


def found(lint: Any, body: str, **modules: str) -> set[tuple[str, int]]:
    lint.write(train=HEAD + START + body + END, **modules)
    return {(finding.code, finding.line) for finding in lint.run("train.py")}


def test_what_both_branches_call_every_rank_does(lint: Any) -> None:
    assert found(lint, BOTH.format('"m.pt"', '"m.pt"')) == {("DDP502", 8)}


@pytest.mark.parametrize("first, second", [('"a.pt"', '"b.pt"'), ('"m.pt"', 'f"{dist.get_rank()}.pt"')])
def test_what_they_call_with_other_arguments_they_do_apart(lint: Any, first: str, second: str) -> None:
    assert found(lint, BOTH.format(first, second)) == set()


def test_a_collective_that_both_branches_lead_to_is_met_by_all(lint: Any) -> None:
    body = "def meet(log):\n    print(log)\n    dist.barrier()\n\nif dist.get_rank() == 0:\n    meet(1)\n{}"
    assert found(lint, body.format("else:\n    meet(2)\n")) == set()
    assert {code for code, _ in found(lint, body.format(""))} == {"DDP401"}


@pytest.mark.parametrize("handler", ["except ImportError:\n    wandb = None\n", "except:\n    wandb = None\n"])
@pytest.mark.parametrize("asks", ["if wandb is not None:\n    ", "if wandb:\n    ", ""])
def test_a_library_that_may_be_missing_is_known_where_it_is_there(lint: Any, handler: str, asks: str) -> None:
    body = f"try:\n    import wandb\n{handler}{asks}wandb.init(project='p')\n"
    assert {code for code, _ in found(lint, body)} == {"DDP502"}


COMMANDS = """
import argparse

def train(args):
    dist.init_process_group("nccl")
    torch.save(args, "options.pt")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()

def export(args):
    {}
    torch.save(args, "exported.pt")

parser = argparse.ArgumentParser()
commands = parser.add_subparsers(dest="command")
commands.add_parser("train")
commands.add_parser("export", aliases=["ex"])
args = parser.parse_args()
{}
"""
CHAIN = """
if args.command == "train":
    train(args)
elif args.command in ["export", "ex"]:
    export(args)
"""
TURNED = """
if args.command != "train":
    export(args)
else:
    train(args)
"""
MATCH = """
match args.command:
    case "train":
        train(args)
    case "export":
        export(args)
"""
TABLE = """
{"train": train, "export": export}[args.command](args)
"""


def saves(lint: Any, ways: str, inside: str = "print(args)") -> list[int]:
    lint.write(train=HEAD + COMMANDS.format(inside, ways))
    return sorted(finding.line for finding in lint.run("train.py") if finding.code == "DDP502")


@pytest.mark.parametrize("ways", [CHAIN, TURNED, MATCH, TABLE])
def test_a_command_beside_the_one_that_starts_the_group_runs_on_one_rank_for_all_we_know(lint: Any, ways: str) -> None:
    assert saves(lint, ways) == [8]


@pytest.mark.parametrize("inside", ['dist.init_process_group("gloo")', "dist.barrier()"])
def test_unless_it_has_to_do_with_ranks_itself(lint: Any, inside: str) -> None:
    assert saves(lint, CHAIN, inside) == [8, 14]


@pytest.mark.parametrize(("trained", "told"), [("print(args)", [8]), ("export(args)", [8, 14])])
def test_nor_is_what_several_of_them_do_unless_the_one_that_starts_it_does_too(
    lint: Any, trained: str, told: list[int]
) -> None:
    ways = f"""
def train_and_more(args):
    train(args)
    {trained}

def convert(args):
    print(args)
    export(args)

{{"export": export, "convert": convert, "train": train_and_more}}[args.command](args)
"""
    assert saves(lint, ways) == told


def test_a_command_in_a_group_that_is_there_for_all_runs_on_every_rank(lint: Any) -> None:
    assert saves(lint, 'dist.init_process_group("gloo")\nexport(args)\n') == [14]
    assert saves(lint, 'dist.init_process_group("gloo")\n' + CHAIN) == [8, 14]


def test_a_helper_that_gives_back_what_it_was_handed(lint: Any) -> None:
    """It is not walked itself: nothing in it has to do with ranks."""
    helper = "def thawed(net):\n    names = set()\n    for name in net.children():\n        names.add(name)\n    return net\n"
    body = 'from parts import thawed\nif dist.get_rank() == 0:\n    torch.save(thawed(ddp).state_dict(), "m.pt")\n'
    wrap = "ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
    assert {code for code, _ in found(lint, wrap + body, parts=helper)} == {"DDP501"}
    other = helper.replace("    return net", "    net = net.inner\n    return net")
    assert found(lint, wrap + body, parts=other) == set()


@pytest.mark.parametrize(
    "made",
    [
        "from project import config",
        "import argparse; config = argparse.ArgumentParser().parse_args()",
        "class Config:\n    track = True\nconfig = Config()",
    ],
)
def test_what_a_branch_writes_is_one_alternative_of_a_setting(lint: Any, made: str) -> None:
    body = f"{made}\nif torch.cuda.device_count() == 3:\n    config.track = False\nif not config.track:\n    assert False\n"
    assert found(lint, body) == set()
    certain = body.replace("if torch.cuda.device_count() == 3:\n    ", "")
    assert {code for code, _ in found(lint, certain)} == {"DDP101"}


@pytest.mark.parametrize("times", [1, 4])
def test_what_one_process_alone_has_done_ahead_is_found_where_all_ranks_do_it(lint: Any, times: int) -> None:
    script = f"""import sys


def write(net):
    with open("net.txt", "w") as file:
        file.write(str(net))
    print(net)


net = torch.nn.Linear(1, 1)
if len(sys.argv) > 2:
    {"write(net); " * times}sys.exit()
{START}write(net)
{END}"""
    lint.write(train=HEAD + script)
    assert "DDP502" in {finding.code for finding in lint.run("train.py")}
