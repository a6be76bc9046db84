"""A name alone decides nothing: what is guessed from one is no error, and the same by evidence is."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.findings import ERROR, WARNING
from validate_ddp.interpreter.values import Opaque, Rank, RankTest, join

HEAD = """
import deepspeed
from torch.utils.tensorboard import SummaryWriter
from project import comm, load, rank_zero_only

dist.init_process_group("nccl")
cfg = load()
model = torch.nn.Linear(1, 1)
"""
SPLIT = {
    "DDP401": "if TEST:\n    dist.barrier()",
    "DDP401 wrapped": "if TEST:\n    model = DDP(model)",
    "DDP401 after a return": "def run():\n    if not (TEST):\n        return\n    dist.barrier()\nrun()",
    "DDP401 by a flag": "main = False\nif TEST:\n    main = True\nif main:\n    dist.barrier()",
    "DDP401 in a while": "while TEST:\n    dist.barrier()\n    break",
    "DDP401 by an expression": "dist.barrier() if TEST else None",
    "DDP401 and more": "if dist.is_initialized() and TEST:\n    dist.barrier()",
    "DDP404": "net = DDP(model)\nfor step in range(9):\n    if TEST:\n        break\n    net(torch.ones(1)).backward()",
    "DDP405": "writer = None\nif TEST:\n    writer = SummaryWriter()\nwriter.add_scalar('loss', 0)",
    "DDP405 returned": "def make():\n    if TEST:\n        return SummaryWriter()\nmake().add_scalar('loss', 0)\nw = make()\nw.close()",
    "DDP405 by an expression": "writer = SummaryWriter() if TEST else None\nwriter.add_scalar('loss', 0)",
    "DDP506": "engine, _, _, _ = deepspeed.initialize(model=model)\nif TEST:\n    engine.save_checkpoint('out')",
}
GUESSED = {
    "a flag": "cfg.is_main",
    "a function": "comm.is_main_process()",
    "a method": "cfg.world.is_main_process()",
    "a rank": "cfg.rank == 0",
    "a rank's truth": "not cfg.rank",
    "a function's rank": "comm.get_rank() == 0",
    "an item": "cfg['global_rank'] == 0",
    "a local rank": "cfg.local_rank == 0",
    "a device": "cfg.gpu == 0",
    "the default of a rank": "rank == 0",
}
WILD = [
    "cfg.gpu",
    "not cfg.gpu",
    "cfg.gpu is not None",
    "cfg.gpu >= 0",
    "cfg.gpu > 0",
    "cfg.gpu_id != -1",
    "cfg.master",
    "cfg.gpu or dist.get_world_size() == 1",
]


SPLITTING = ("DDP401", "DDP404", "DDP405", "DDP506")


def split(lint: Any, case: str, test: str) -> set[tuple[str, str]]:
    return set(lint.body(f"{HEAD}rank = 0\n{SPLIT[case].replace('TEST', test)}").of(*SPLITTING).told)


@pytest.mark.parametrize("case", SPLIT)
def test_ranks_that_are_known_to_be_kept_apart_are_an_error(lint: Any, case: str) -> None:
    assert split(lint, case, "dist.get_rank() == 0") == {(case[:6], ERROR)}


@pytest.mark.parametrize("test", GUESSED.values(), ids=GUESSED.keys())
@pytest.mark.parametrize("case", SPLIT)
def test_ranks_that_a_name_keeps_apart_are_a_warning(lint: Any, case: str, test: str) -> None:
    assert split(lint, case, test) == {(case[:6], WARNING)}


@pytest.mark.parametrize("test", WILD)
@pytest.mark.parametrize("case", SPLIT)
def test_whether_there_is_a_device_is_no_test_of_the_rank(lint: Any, case: str, test: str) -> None:
    assert split(lint, case, test) == set()


@pytest.mark.parametrize(
    "test", ["cfg.gpu", "not cfg.gpu", "cfg.gpu == 0", "cfg.master", "cfg.rank == 0", "comm.is_main()"]
)
def test_what_may_be_kept_to_one_rank_is_not_said_to_run_on_all(lint: Any, test: str) -> None:
    assert lint.body(HEAD + f"if {test}:\n    torch.save(model.state_dict(), 'model.pt')\n", "DDP502") == []


CALLERS = {"the caller's rank": ("dist.get_rank()", {ERROR}), "something unknown": ("cfg.number", {WARNING})}


@pytest.mark.parametrize(("passed", "expected"), CALLERS.values(), ids=CALLERS.keys())
def test_a_parameter_called_rank_is_judged_by_its_callers(lint: Any, passed: str, expected: set[str]) -> None:
    script = f"def run(rank):\n    if rank == 0:\n        dist.barrier()\nrun({passed})"
    assert set(lint.body(HEAD + script).of(*SPLITTING).severities) == expected


OPTIONS = {
    "the launcher's by default": ("'--rank', default=int(os.environ['RANK'])", {ERROR}),
    "by another name": ("'-r', '--my-number', dest='rank', default=int(os.environ['RANK'])", {ERROR}),
    "zero by default": ("'--rank', type=int, default=0", {WARNING}),
}


@pytest.mark.parametrize(("option", "expected"), OPTIONS.values(), ids=OPTIONS.keys())
def test_an_option_is_a_rank_where_its_default_is_one(lint: Any, option: str, expected: set[str]) -> None:
    script = (
        f"import argparse\nimport os\nparser = argparse.ArgumentParser()\nparser.add_argument({option})\n"
        "args = parser.parse_args()\nif args.rank == 0:\n    dist.barrier()"
    )
    assert set(lint.body(HEAD + script).of(*SPLITTING).severities) == expected


def test_a_parameter_called_rank_that_gets_a_number_is_that_number(lint: Any) -> None:
    assert (
        lint.body(HEAD + "def run(rank):\n    if rank == 0:\n        dist.barrier()\nrun(0)\nrun(1)").of(*SPLITTING)
        == []
    )


DECORATED = {
    "of a launcher": ("from lightning.pytorch.utilities import rank_zero_only", {ERROR}),
    "of something unknown": ("", {WARNING}),
    "of the program": (
        "def rank_zero_only(f):\n    def inner():\n        if dist.get_rank() == 0:\n            f()\n    return inner",
        {ERROR},
    ),
    "of the program, but on all ranks": (
        "def rank_zero_only(f):\n    def inner():\n        f()\n    return inner",
        set(),
    ),
    "by a field of it": (
        "def rank_zero_only(f):\n    def inner():\n        if rank_zero_only.rank == 0:\n            f()\n    return inner",
        {WARNING},
    ),
}


@pytest.mark.parametrize(("defined", "expected"), DECORATED.values(), ids=DECORATED.keys())
def test_a_decorator_is_judged_by_its_body_before_its_name(lint: Any, defined: str, expected: set[str]) -> None:
    script = f"{defined}\n@rank_zero_only\ndef run():\n    dist.barrier()\nrun()"
    assert set(lint.body(HEAD + script).of(*SPLITTING).severities) == expected


OF_A_LAUNCHER = {
    "of an Accelerator": ("from accelerate import Accelerator\nlauncher = Accelerator()", ERROR),
    "of something unknown": ("launcher = cfg.launcher", WARNING),
}


@pytest.mark.parametrize("decorator", ["on_main_process", "on_local_main_process"])
@pytest.mark.parametrize(("made", "expected"), OF_A_LAUNCHER.values(), ids=OF_A_LAUNCHER.keys())
def test_a_decorator_is_known_by_its_object(lint: Any, made: str, expected: str, decorator: str) -> None:
    script = f"{made}\n@launcher.{decorator}\ndef run():\n    dist.barrier()\nrun()"
    assert lint.body(HEAD + script).of(*SPLITTING).severities == [expected]


def test_what_is_known_besides_makes_it_certain(lint: Any) -> None:
    nested = "if cfg.is_main:\n    if dist.get_rank() == 0:\n        dist.barrier()"
    both = "if cfg.is_main and dist.get_rank() == 0:\n    dist.barrier()"
    replaced = "rank = 0\nif cfg.several:\n    rank = dist.get_rank()\nif rank == 0:\n    dist.barrier()"
    for script in (nested, both, replaced):
        assert lint.body(HEAD + script).of(*SPLITTING).severities == [ERROR]


def test_the_evidence_says_that_it_goes_by_a_name(lint: Any) -> None:
    (finding,) = lint.body(HEAD + "if cfg.is_main:\n    dist.barrier()").of(*SPLITTING)
    assert [place.note for place in finding.evidence] == ["from here on: rank 0 only, going by a name"]
    assert any("rank 0 only passes, going by a name" in step for step in finding.derivation)
    (finding,) = lint.body(HEAD + "if dist.get_rank() == 0:\n    dist.barrier()").of(*SPLITTING)
    assert [place.note for place in finding.evidence] == ["from here on: rank 0 only"]


@pytest.mark.parametrize(("made", "guard"), [("cfg.is_main", "dist.get_rank() == 0"), ("not dist.get_rank()", "main")])
def test_a_fix_does_not_take_a_name_for_rank_zero(lint: Any, made: str, guard: str) -> None:
    script = f"{HEAD}main = {made}\ntorch.save(model.state_dict(), 'model.pt')"
    (finding,) = lint.body(script, "DDP502")
    assert finding.fix is not None
    assert f"`if {guard}:`" in finding.fix.title


MESH = """
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
"""
RANKS_OF_A_GROUP = {
    "a mesh": MESH + "rank_here = mesh.get_local_rank('dp')",
    "a part of a mesh": MESH + "rank_here = mesh['dp'].get_local_rank()",
    "something unknown": "rank_here = cfg.dp_mesh.get_local_rank()",
    "a group": "rank_here = dist.get_rank(group=cfg.group)",
}


@pytest.mark.parametrize("made", RANKS_OF_A_GROUP.values(), ids=RANKS_OF_A_GROUP.keys())
def test_the_rank_in_a_group_is_not_the_local_rank(lint: Any, made: str) -> None:
    script = f"{HEAD}{made}\nif rank_here == 0:\n    torch.save(model.state_dict(), 'model.pt')\n    dist.barrier()"
    found = {finding.code: finding for finding in lint.body(script).serious}
    assert not {"DDP502", "DDP503"} & set(found)
    assert [place.note.partition(",")[0] for place in found["DDP401"].evidence] == ["from here on: some ranks"]


def test_what_is_known_replaces_what_was_guessed() -> None:
    guess, known, other = Rank("global", named="rank"), Rank("global"), Opaque("x")
    assert join((guess,), (known,)) == (known,)
    assert join((known, other), (guess,)) == (known, other)
    assert guess.sure is False
    assert RankTest("zero").sure
