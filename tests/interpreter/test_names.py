"""A name alone decides nothing: what is guessed from one is no error, and the same by evidence is."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.findings import ERROR, INFO, WARNING, Finding
from validate_ddp.interpreter.values import Opaque, Rank, RankTest, join
from validate_ddp.lint import check

HEAD = """
import deepspeed
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.tensorboard import SummaryWriter
from project import comm, load, rank_zero_only

dist.init_process_group("nccl")
cfg = load()
model = torch.nn.Linear(1, 1)
"""
TAIL = """
dist.destroy_process_group()
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


def findings(folder: Path, script: str) -> list[Finding]:
    (folder / "train.py").write_text(HEAD + script + TAIL)
    outcome = check([str(folder / "train.py")], Settings(cache_dir=None, root=str(folder)))
    return [finding for finding in outcome.findings if finding.code in ("DDP401", "DDP404", "DDP405", "DDP506")]


def severities(folder: Path, case: str, test: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in findings(folder, "rank = 0\n" + SPLIT[case].replace("TEST", test)):
        found.setdefault(finding.code, set()).add(finding.severity)
    return found


@pytest.mark.parametrize("case", SPLIT)
def test_ranks_that_are_known_to_be_kept_apart_are_an_error(tmp_path: Path, case: str) -> None:
    assert severities(tmp_path, case, "dist.get_rank() == 0") == {case[:6]: {ERROR}}


@pytest.mark.parametrize("test", GUESSED.values(), ids=GUESSED.keys())
@pytest.mark.parametrize("case", SPLIT)
def test_ranks_that_a_name_keeps_apart_are_a_warning(tmp_path: Path, case: str, test: str) -> None:
    assert severities(tmp_path, case, test) == {case[:6]: {WARNING}}


@pytest.mark.parametrize("test", WILD)
@pytest.mark.parametrize("case", SPLIT)
def test_whether_there_is_a_device_is_no_test_of_the_rank(tmp_path: Path, case: str, test: str) -> None:
    assert severities(tmp_path, case, test) == {}


@pytest.mark.parametrize(
    "test", ["cfg.gpu", "not cfg.gpu", "cfg.gpu == 0", "cfg.master", "cfg.rank == 0", "comm.is_main()"]
)
def test_what_may_be_kept_to_one_rank_is_not_said_to_run_on_all(tmp_path: Path, test: str) -> None:
    (tmp_path / "train.py").write_text(HEAD + f"if {test}:\n    torch.save(model.state_dict(), 'model.pt')\n" + TAIL)
    outcome = check([str(tmp_path / "train.py")], Settings(cache_dir=None, root=str(tmp_path), select=("DDP502",)))
    assert outcome.findings == ()


CALLERS = {"the caller's rank": ("dist.get_rank()", {ERROR}), "something unknown": ("cfg.number", {WARNING})}


@pytest.mark.parametrize(("passed", "expected"), CALLERS.values(), ids=CALLERS.keys())
def test_a_parameter_called_rank_is_judged_by_its_callers(tmp_path: Path, passed: str, expected: set[str]) -> None:
    script = f"def run(rank):\n    if rank == 0:\n        dist.barrier()\nrun({passed})"
    assert {finding.severity for finding in findings(tmp_path, script)} == expected


OPTIONS = {
    "the launcher's by default": ("'--rank', default=int(os.environ['RANK'])", {ERROR}),
    "by another name": ("'-r', '--my-number', dest='rank', default=int(os.environ['RANK'])", {ERROR}),
    "zero by default": ("'--rank', type=int, default=0", {WARNING}),
}


@pytest.mark.parametrize(("option", "expected"), OPTIONS.values(), ids=OPTIONS.keys())
def test_an_option_is_a_rank_where_its_default_is_one(tmp_path: Path, option: str, expected: set[str]) -> None:
    script = (
        f"import argparse\nimport os\nparser = argparse.ArgumentParser()\nparser.add_argument({option})\n"
        "args = parser.parse_args()\nif args.rank == 0:\n    dist.barrier()"
    )
    assert {finding.severity for finding in findings(tmp_path, script)} == expected


def test_a_parameter_called_rank_that_gets_a_number_is_that_number(tmp_path: Path) -> None:
    assert findings(tmp_path, "def run(rank):\n    if rank == 0:\n        dist.barrier()\nrun(0)\nrun(1)") == []


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
def test_a_decorator_is_judged_by_its_body_before_its_name(tmp_path: Path, defined: str, expected: set[str]) -> None:
    script = f"{defined}\n@rank_zero_only\ndef run():\n    dist.barrier()\nrun()"
    assert {finding.severity for finding in findings(tmp_path, script)} == expected


OF_A_LAUNCHER = {
    "of an Accelerator": ("from accelerate import Accelerator\nlauncher = Accelerator()", ERROR),
    "of something unknown": ("launcher = cfg.launcher", WARNING),
}


@pytest.mark.parametrize("decorator", ["on_main_process", "on_local_main_process"])
@pytest.mark.parametrize(("made", "expected"), OF_A_LAUNCHER.values(), ids=OF_A_LAUNCHER.keys())
def test_a_decorator_is_known_by_its_object(tmp_path: Path, made: str, expected: str, decorator: str) -> None:
    script = f"{made}\n@launcher.{decorator}\ndef run():\n    dist.barrier()\nrun()"
    assert [finding.severity for finding in findings(tmp_path, script)] == [expected]


def test_what_is_known_besides_makes_it_certain(tmp_path: Path) -> None:
    nested = "if cfg.is_main:\n    if dist.get_rank() == 0:\n        dist.barrier()"
    both = "if cfg.is_main and dist.get_rank() == 0:\n    dist.barrier()"
    replaced = "rank = 0\nif cfg.several:\n    rank = dist.get_rank()\nif rank == 0:\n    dist.barrier()"
    for script in (nested, both, replaced):
        assert [finding.severity for finding in findings(tmp_path, script)] == [ERROR]


def test_the_evidence_says_that_it_goes_by_a_name(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, "if cfg.is_main:\n    dist.barrier()")
    assert [place.note for place in finding.evidence] == ["from here on: rank 0 only, going by a name"]
    assert any("rank 0 only passes, going by a name" in step for step in finding.derivation)
    (finding,) = findings(tmp_path, "if dist.get_rank() == 0:\n    dist.barrier()")
    assert [place.note for place in finding.evidence] == ["from here on: rank 0 only"]


@pytest.mark.parametrize(("made", "guard"), [("cfg.is_main", "dist.get_rank() == 0"), ("not dist.get_rank()", "main")])
def test_a_fix_does_not_take_a_name_for_rank_zero(tmp_path: Path, made: str, guard: str) -> None:
    script = f"{HEAD}main = {made}\ntorch.save(model.state_dict(), 'model.pt')\n{TAIL}"
    (tmp_path / "train.py").write_text(script)
    outcome = check([str(tmp_path / "train.py")], Settings(cache_dir=None, root=str(tmp_path), select=("DDP502",)))
    (finding,) = outcome.findings
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
def test_the_rank_in_a_group_is_not_the_local_rank(tmp_path: Path, made: str) -> None:
    script = (
        f"{HEAD}{made}\nif rank_here == 0:\n    torch.save(model.state_dict(), 'model.pt')\n    dist.barrier()\n{TAIL}"
    )
    (tmp_path / "train.py").write_text(script)
    outcome = check([str(tmp_path / "train.py")], Settings(cache_dir=None, root=str(tmp_path)))
    found = {finding.code: finding for finding in outcome.findings if finding.severity != INFO}
    assert not {"DDP502", "DDP503"} & set(found)
    assert [place.note.partition(",")[0] for place in found["DDP401"].evidence] == ["from here on: some ranks"]


def test_what_is_known_replaces_what_was_guessed() -> None:
    guess, known, other = Rank("global", named="rank"), Rank("global"), Opaque("x")
    assert join((guess,), (known,)) == (known,)
    assert join((known, other), (guess,)) == (known, other)
    assert guess.sure is False
    assert RankTest("zero").sure
