"""Whole rehearsals, with torch: unmodified scripts for GPUs, what is found in them, and at which line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def rehearse(folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report, and all output of a rehearsal in ``folder``."""
    report = folder / "report.json"
    command = [
        sys.executable,
        "-m",
        "validate_ddp",
        "run",
        "--no-partition",
        "--timeout",
        "60",
        "--report",
        str(report),
        *words,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert report.exists(), done.stderr
    document = json.loads(report.read_text())
    assert document["faults"] == []
    return done.returncode, document, done.stdout + done.stderr


def codes(document: dict[str, Any]) -> set[tuple[str, int]]:
    """What the run itself has shown, be it read before or not."""
    shown = [finding for finding in document["findings"] if "rehearsal" in finding["evidence_kinds"]]
    return {(finding["code"], finding["line"]) for finding in shown if finding["severity"] != "info"}


def expected(script: Path, code: str) -> tuple[str, int]:
    rows = script.read_text().splitlines()
    return code, next(number for number, row in enumerate(rows, 1) if re.search(rf"# expect: {code}", row))


def test_a_script_for_gpus_runs_as_it_would_on_them(tmp_path: Path) -> None:
    script = Path(__file__).with_name("pretended_gpu.py")
    code, document, output = rehearse(tmp_path, "--", "torchrun", "--nproc-per-node", "2", str(script))
    assert output.count("ALL HELD") == 2, output
    assert code == 0 and codes(document) == set()
    facts = document["facts"]
    assert (facts["world_size"], facts["batch_size"], facts["effective_batch_size"]) == (2, 4, 8)
    assert facts["samples"] == {"in_data_set": 16, "seen": 16, "repeated": 0, "missed": 0}
    changed = " ".join(facts["changed_for_the_rehearsal"])
    assert "nccl runs as gloo" in changed and "float16 as bfloat16" in changed


def test_the_log_of_a_run_gives_the_same_verdict_again(tmp_path: Path) -> None:
    script = FIXTURES / "ddp201_missing_set_epoch" / "buggy.py"
    log = tmp_path / "log.jsonl"
    code, document, _ = rehearse(tmp_path, "--max-steps", "2", "--log", str(log), str(script), "--epochs", "2")
    assert code == 1 and codes(document) == {expected(script, "DDP201")}
    assert document["facts"]["optimizer_steps"] == 4
    again, replayed, _ = rehearse(tmp_path, "--replay", str(log))
    assert again == 1 and replayed["findings"] == document["findings"]


def test_ranks_that_wait_for_each_other_are_ended_and_both_named(tmp_path: Path) -> None:
    script = FIXTURES / "ddp401_collective_on_some_ranks" / "buggy.py"
    code, document, _ = rehearse(tmp_path, str(script), "--timeout", "1800")
    assert code == 1 and document["outcome"] == "hang"
    assert codes(document) == {expected(script, "DDP401")}
    assert [finding["run_says"] for finding in document["findings"]] == ["confirmed"]
    positions = [row for row in document["positions"] if row.startswith("rank")]
    assert "rank 0 is in all_reduce" in positions[0] and "rank 1 is in barrier" in positions[1]


SPAWNING = """import importlib.util
assert importlib.util.find_spec("torch")  # as libraries do that can go without it: no import yet
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=2)
    if rank == 1:
        raise ValueError("no data for this rank")
    dist.barrier()


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def test_what_ends_a_spawned_rank_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNING)
    code, document, output = rehearse(tmp_path, "train.py")
    assert code == 3, output
    assert document["failure"]["rank"] == 1 and document["failure"]["place"] == "train.py:11"
    assert document["failure"]["message"] == "ValueError: no data for this rank"


WHOLE_BATCHES = """import torch
from torch.utils.data import DataLoader


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, key):
        return torch.ones(5, 2) * key[0]


keys = [(step, "train") for step in range(3)]
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Batches(), batch_size=None, sampler=keys):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_loader_of_whole_batches_has_their_size(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WHOLE_BATCHES)
    code, document, output = rehearse(tmp_path, "--nproc-per-node", "1", "train.py")
    assert code == 0, output
    assert document["facts"]["batch_size"] == 5 and document["facts"]["samples"] is None


PREPARED_TOO = """import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

accelerator = Accelerator(cpu=True)
data = TensorDataset(torch.arange(128.0).reshape(32, 4), torch.ones(32, 1))
sampler = DistributedSampler(data) if SHARED_OUT else None
loader = DataLoader(data, batch_size=4, sampler=sampler, shuffle=sampler is None)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
accelerator.wait_for_everyone()
accelerator.end_training()
"""


@pytest.mark.parametrize(("twice", "missed"), [(True, 16), (False, 0)])
def test_a_sampler_that_accelerate_shares_out_again(tmp_path: Path, twice: bool, missed: int) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(PREPARED_TOO.replace("SHARED_OUT", str(twice)))
    code, document, output = rehearse(tmp_path, "train.py", "--no-static")
    assert {found for found, _ in codes(document)} == ({"DDP211"} if twice else set()), output
    assert code == int(twice) and document["facts"]["samples"]["missed"] == missed


SHARED_BY_RANK = """import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
sampler = DistributedSampler(data, seed=17 + dist.get_rank())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=4, sampler=sampler):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def test_seeds_of_the_samplers_and_gradients_that_nothing_averages(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARED_BY_RANK)
    code, document, output = rehearse(tmp_path, "--no-static", "--max-steps", "3", "train.py")
    assert code == 1 and codes(document) == {("DDP209", 9), ("DDP303", 15)}, output
    messages = [finding["message"] for finding in document["findings"]]
    assert any("17 on rank 0, 18 on rank 1" in message for message in messages)


LINGERING = """import time
import torch


class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(60)


slow = Slow()
raise KeyboardInterrupt("no data")
"""


def test_a_rank_that_has_raised_and_does_not_go_has_failed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LINGERING)
    code, document, output = rehearse(tmp_path, "--nproc-per-node", "1", "train.py")
    assert code == 3, output
    assert document["outcome"] == "failed" and document["failure"]["message"] == "KeyboardInterrupt: no data"


HANGS_AT_EXIT = """import os, time
import torch

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(100)  # as gloo does sometimes when the interpreter goes

if os.environ["RANK"] == "0":
    slow = Slow()
else:
    time.sleep(9)
    open("went_on", "w").close()
"""


def test_a_rank_that_does_not_go_is_no_end_of_those_that_still_work(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANGS_AT_EXIT)
    code, document, output = rehearse(tmp_path, "--no-static", "train.py")
    assert (code, document["outcome"]) == (0, "finished"), output
    assert (tmp_path / "went_on").exists()


MANY_THINGS = """import os
import torch
import torch.distributed as dist
from safetensors.torch import save_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        total = x.detach().clone()
        dist.all_reduce(total)
        return self.layer(x) + total


dist.init_process_group("nccl")
rank = dist.get_rank()
data = TensorDataset(torch.arange(40.0).reshape(20, 2))
drawing, judging = DistributedDataParallel(Doubled()), DistributedDataParallel(torch.nn.Linear(2, 1))
first, second = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (judging, drawing))
for (x,) in DataLoader(Subset(data, range(rank, 20, 2)), batch_size=5):
    drawn = drawing(x)
    judging(torch.cat([x, drawn.detach()])).mean().backward()
    first.step(), first.zero_grad()
    judging.module(drawn).mean().backward()
    second.step(), second.zero_grad()
if rank == 0:
    torch.save(drawing.module.state_dict(), "last.tmp")
    os.replace("last.tmp", "last.pt")
    save_model(drawing.module, "last.safetensors")
uneven = DistributedDataParallel(torch.nn.Linear(2, 1))
third = torch.optim.SGD(uneven.parameters(), lr=0.01)
with uneven.join():
    for (x,) in DataLoader(Subset(data, range(4 * rank, 4 + 8 * rank)), batch_size=4):
        third.zero_grad()
        uneven(x).mean().backward()
        third.step()
dist.barrier()
dist.destroy_process_group()
"""


def test_two_networks_shards_and_join_are_seen_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MANY_THINGS)
    code, document, output = rehearse(tmp_path, "--no-static", "--log", "log.jsonl", "train.py")
    assert code == 0 and codes(document) == set(), output
    facts = document["facts"]
    assert (facts["accumulation"], facts["reductions_per_step"], facts["effective_batch_size"]) == (1, 1, 10)
    assert (facts["optimizer_steps"], facts["optimizer_steps_per_epoch"]) == (2, 2)
    assert facts["samples"] == {"in_data_set": 20, "seen": 20, "repeated": 0, "missed": 0}
    saved = {each["path"]: each["ranks"] for each in facts["checkpoints"]}
    assert saved == {str(tmp_path / "last.pt"): [0], str(tmp_path / "last.safetensors"): [0]}
    called = [json.loads(row) for row in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert sum(event.get("op") == "all_reduce" for event in called) == 2 * 2, "two forwards of two ranks"


def test_of_all_moving_averages_those_that_stand_still_are_named(tmp_path: Path) -> None:
    script = Path(__file__).with_name("averaging_script.py")
    code, document, output = rehearse(tmp_path, "--no-static", "--nproc-per-node", "1", str(script))
    rows = enumerate(script.read_text().splitlines(), 1)
    marked = {(row.partition("  # observe: ")[2], line) for line, row in rows if "  # observe: " in row}
    assert code == 0 and codes(document) == marked and len(marked) > 5, output


PRINTING = """import io
import logging
import pickle
import sys
import torch

held = io.StringIO()
assert print("effective batch size:", 64, sep="|", end="!", file=held) is None
assert held.getvalue() == "effective batch size:|64!"
assert print.__name__ == "print" and pickle.loads(pickle.dumps(print)) is print


class Loud:
    def __str__(self):
        held.write("Loud")
        return "loud"


held.truncate(0)
print("total batch size", Loud(), file=io.StringIO())
assert held.getvalue().count("Loud") == 1  # asked once, by print itself
logging.basicConfig(stream=sys.stdout, format="%(filename)s:%(lineno)d %(message)s")
logging.warning("global batch size = %d", 8)
print("held")
"""


def test_print_and_logging_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINTING)
    code, document, output = rehearse(tmp_path, "--nproc-per-node", "1", "train.py")
    assert code == 0 and document["outcome"] == "finished", output
    line = next(number for number, row in enumerate(PRINTING.splitlines(), 1) if row.startswith("logging.warning"))
    assert f"train.py:{line} global batch size = 8" in output and "held" in output


MOVING = """
import os, sys, time
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
for turn in range(3):
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{29500 + turn}", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank == 0:
        time.sleep(0.3)  # the other one makes the next group already
    dist.destroy_process_group()
print("CAME TO ITS END")
"""


def test_a_group_that_is_made_again_at_another_address_does_not_meet_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MOVING)
    code, _, output = rehearse(tmp_path, "--hang", "5", "train.py")
    assert (code, output.count("CAME TO ITS END")) == (0, 2), output


def test_of_a_script_that_writes_nothing_no_rule_on_files_is_held(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group()\ndist.destroy_process_group()\n")
    code, document, _ = rehearse(tmp_path, str(script))
    assert code == 0 and document["rules"]["DDP502"]["verdict"] == "not observed"


@pytest.mark.parametrize(("words", "line"), [((), ""), (("wrong",), "self.scale = 0.9 * self.scale")])
def test_state_that_differs_by_design_is_none_of_ours_and_what_is_learned_by_is(
    tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    script = Path(__file__).with_name("state_script.py")
    rows = script.read_text().splitlines()
    if line and "COVERAGE_FILE" in os.environ:  # what counts lines goes before: then it is told at the call
        line = "train(lambda x: scaled(model(x))"
    _, document, _ = rehearse(tmp_path, str(script), *words)
    assert codes(document) == {("DDP321", number) for number, row in enumerate(rows, 1) if line and line in row}
