"""The command line of ``validate-ddp run``, and the launchers' lines that it understands."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from validate_ddp import cli
from validate_ddp.rehearse.options import read
from validate_ddp.rehearse.parent.environment import command, of_rank
from validate_ddp.rehearse.plan import Plan


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def plan(*words: str) -> Plan:
    """The plan of a command line."""
    found = read(list(words)).plan
    assert found is not None
    return found


def test_all_that_follows_the_script_is_the_scripts() -> None:
    read_plan = plan("--nproc-per-node", "3", "--max-steps=8", "train.py", "--timeout", "5", "--", "-m")
    assert read_plan.script == ("train.py",) and read_plan.arguments == ("--timeout", "5", "--", "-m")
    assert (read_plan.nproc_per_node, read_plan.max_steps, read_plan.timeout) == (3, 8, 600.0)


def test_a_module() -> None:
    read_plan = plan("--env", "A=1=2", "-m", "package.train", "-m")
    assert read_plan.script == ("-m", "package.train") and read_plan.arguments == ("-m",)
    assert read_plan.environment == (("A", "1=2"),)


@pytest.mark.parametrize(
    ("line", "script", "arguments", "counts"),
    [
        ("torchrun --nproc-per-node 4 train.py --lr 1", ("train.py",), ("--lr", "1"), (4, 1)),
        ("torchrun --standalone --nproc_per_node=gpu train.py", ("train.py",), (), (2, 1)),
        ("torchrun --nnodes 1:2 --nproc-per-node=2 -m pkg.train x", ("-m", "pkg.train"), ("x",), (2, 2)),
        ("python -m torch.distributed.run --nproc-per-node 3 train.py", ("train.py",), (), (3, 1)),
        ("python3 -u train.py --x", ("train.py",), ("--x",), (2, 1)),
        ("python -m torch.distributed.launch train.py x", ("train.py",), ("--local-rank=0", "x"), (2, 1)),
        ("python -m torch.distributed.launch --use_env train.py x", ("train.py",), ("x",), (2, 1)),
        ("accelerate launch --multi_gpu --num_processes 4 --num_machines 2 train.py b", ("train.py",), ("b",), (2, 2)),
        ("accelerate launch --mixed_precision fp16 train.py", ("train.py",), (), (2, 1)),
    ],
)  # fmt: skip
def test_lines_of_launchers(line: str, script: tuple[str, ...], arguments: tuple[str, ...], counts: object) -> None:
    read_plan = plan("--", *line.split())
    assert (read_plan.script, read_plan.arguments) == (script, arguments)
    assert (read_plan.nproc_per_node, read_plan.nnodes) == counts


def test_what_a_line_sets_in_the_environment() -> None:
    assert plan("--", "A=1", "torchrun", "train.py").environment == (("A", "1"),)
    accelerate = plan("--", "accelerate", "launch", "--mixed_precision", "fp16", "train.py")
    assert accelerate.environment == (("ACCELERATE_MIXED_PRECISION", "fp16"),)


@pytest.mark.parametrize(
    "words",
    [
        [], ["--nproc-per-node", "0", "train.py"], ["--nproc-per-node", "two", "train.py"], ["absent.py"], ["-m"],
        ["--timeout", "-1", "train.py"], ["--env", "A", "train.py"], ["--nonsense", "train.py"], ["--"],
        ["--", "mpirun", "train.py"], ["--", "torchrun", "--nonsense", "train.py"], ["--", "torchrun"],
        ["--", "torchrun", "--no-python", "a.sh"], ["--replay", "log", "train.py"], ["--report", "a.txt", "train.py"],
    ],
)  # fmt: skip
def test_bad_usage_is_one_line_and_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("validate-ddp: error: ") and captured.err.count("\n") == 1


def test_the_environment_of_a_rank_is_that_of_torchrun() -> None:
    environment = of_rank(Plan(("train.py",), nproc_per_node=2, nnodes=2), 3, 29500)
    expected = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip
    assert expected.items() <= environment.items()


def test_the_old_launchers_argument_is_each_ranks_own() -> None:
    given = Plan(("train.py",), ("--local_rank", "0", "--local-rank=0", "--lr", "0"))
    assert command(given, 1)[2:] == ["--local_rank", "1", "--local-rank=1", "--lr", "0"]
    assert command(given, None)[2:] == list(given.arguments)


def test_a_report_that_has_no_folder_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(9)\n")
    assert cli.main(["run", "--report", "nowhere/a.html", "train.py"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")
def test_a_full_disk_under_the_text_is_told_and_loses_no_other_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(__file__).parent / "recorded" / "split_without_a_seed.jsonl"
    # Without a buffer, so that nothing is left to write when it is closed.
    with open("/dev/full", "wb", buffering=0) as device:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(device, write_through=True))
        assert cli.main(["run", "--replay", str(log), "--report", str(tmp_path / "run.json")]) == 2
    assert "standard output: the report cannot be written: No space left on device" in capsys.readouterr().err
    assert json.loads((tmp_path / "run.json").read_text())["findings"]
