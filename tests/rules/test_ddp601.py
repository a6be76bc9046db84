"""DDP601 where one line tells of several numbers, and where a number ends the training of a rank."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from somewhere import train_set, test_set

dist.init_process_group("gloo")
train_loader = DataLoader(train_set, sampler=DistributedSampler(train_set, shuffle=False))
test_loader = DataLoader(test_set, sampler=DistributedSampler(test_set, shuffle=False))
model = DDP(torch.nn.Linear(1, 1))

def train():
    total = torch.zeros(())
    for x in train_loader:
        loss = model(x).sum()
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total / len(train_loader)

@torch.no_grad()
def test(model, test_loader):
    right = torch.zeros(())
    for x, y in test_loader:
        right += (model(x) == y).sum()
    REDUCE
    return right / len(test_loader)

for epoch in range(3):
    loss = train()
    accuracy = test(model, test_loader)
    if dist.get_rank() == 0:
        REPORT
dist.destroy_process_group()
"""
REPORTS = ['print(f"{epoch}: loss {loss:.3f}, {accuracy.item():.3f}")', 'print("loss", loss, "accuracy", accuracy)']


@pytest.mark.parametrize("report", REPORTS)
def test_a_reduced_number_beside_it_hides_nothing(lint: Any, report: str) -> None:
    for reduce, severities in (("pass", ["warning"]), ("dist.all_reduce(right)", [])):
        script = SCRIPT.replace("REDUCE", reduce).replace("REPORT", report)
        assert lint(script, "DDP601").severities == severities


STOPPER = """
class Stopper:
    def __init__(self):
        self.best, self.worse, self.done = 0.0, 0, False

    def __call__(self, accuracy):
        if accuracy > self.best:
            self.best, self.worse = accuracy, 0
        else:
            self.worse += 1
            self.done = self.worse > 3
        return self.done

stopper = Stopper()
"""
STOPS = {
    "a counter": ("best, worse = 0.0, 0", "if accuracy > best:\n    worse = 0\nelse:\n    worse += 1", "worse > 3"),
    "a limit": ("", "", "accuracy > 0.9"),
    "a field": (STOPPER, "stopper(accuracy)", "stopper.done"),
    "an answer": (STOPPER, "", "stopper(accuracy)"),
    "a flag of another": (STOPPER, "stopper(accuracy)", "other.done"),
    "the number of turns": ("", "", "epoch > 5"),
    "what rank zero says": (
        "best, worse = 0.0, 0",
        "worse = 0 if accuracy > best else worse + 1\nstop = torch.tensor(worse > 3)\ndist.broadcast(stop, 0)",
        "stop",
    ),
}
STAYING = {"a flag of another", "the number of turns", "what rank zero says"}


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize("reduce", ["pass", "dist.all_reduce(right)"])
def test_a_number_of_its_own_must_not_end_a_ranks_training(lint: Any, name: str, reduce: str) -> None:
    before, between, asked = STOPS[name]
    steps = f"{between}\nif {asked}:\n    break".strip().replace("\n", "\n    ")
    script = SCRIPT.replace("for epoch", before + "\nfor epoch").replace("REDUCE", reduce)
    script = script.replace("if dist.get_rank() == 0:\n        REPORT", steps)
    found = lint(script, "DDP601")
    assert found.severities == (["warning"] if reduce == "pass" and name not in STAYING else [])
    assert all("ends the training" in finding.message for finding in found)


SEVERAL = [
    'print({"loss": loss, "accuracy": accuracy})',
    'logger.log({"losses": {"train": loss}, "accuracy": accuracy})',
    'print("loss {} accuracy {}".format(loss, accuracy))',
    'print("loss %f accuracy %f" % (loss, accuracy))',
]


@pytest.mark.parametrize("report", SEVERAL)
def test_each_number_of_a_dictionary_or_a_text_counts_by_itself(lint: Any, report: str) -> None:
    """The loss is summed up over another loader, and is not put together either, or is: neither hides the accuracy."""
    for before in ("dist.all_reduce(total)", "pass"):
        script = SCRIPT.replace("REPORT", report).replace("REDUCE", "pass").replace("dist.all_reduce(total)", before)
        assert lint.body("import logger\n" + script).of("DDP601").severities[-1:] == ["warning"], before


MOVED = """
def moved(inputs, device):
    if isinstance(inputs, dict):
        return {name: moved(value, device) for name, value in inputs.items()}
    if isinstance(inputs, list):
        return [moved(value, device) for value in inputs]
    return inputs.to(device)
"""


LOOPS = """
from statistics import mean
from somewhere import criterion

device = torch.device("cuda")

for batch in train_loader:
    batch = moved(batch, device)
    criterion(model(batch["x"]), batch["y"]).backward()

losses = []
with torch.no_grad():
    for batch in test_loader:
        batch = moved(batch, device)
        loss = criterion(model(batch["x"]), batch["y"])
        REDUCE
        losses.append(loss.item())
if dist.get_rank() == 0:
    print(mean(losses))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("reduce", "severities"), [("pass", ["warning"]), ("dist.all_reduce(loss)", [])])
def test_a_helper_that_both_loops_call_mixes_no_loaders(lint: Any, reduce: str, severities: list[str]) -> None:
    """One that calls itself stands, in validation, for what it makes of validation's batches."""
    script = SCRIPT[: SCRIPT.index("def train()")] + MOVED + LOOPS.replace("REDUCE", reduce)
    assert lint.body(script).of("DDP601").severities == severities


PRINTING = """
import builtins

def keep_to_one(is_main):
    told = builtins.print

    def print(*args, force=False, **options):
        if is_main or force:
            told(*args, **options)

    builtins.print = print
"""
NOTHING = """
import builtins

def nothing(*args, **options):
    pass

if dist.get_rank() != 0:
    builtins.print = nothing
"""


@pytest.mark.parametrize(
    ("helper", "start", "told", "severities"),
    [
        (PRINTING, "keep_to_one(dist.get_rank() == 0)", "print(accuracy, flush=True)", ["warning"]),
        (PRINTING, "keep_to_one(dist.get_rank() == 0)", "print(accuracy, force=True)", ["info"]),
        (NOTHING, "", "print(accuracy)", ["warning"]),
        (PRINTING, "", "print(accuracy)", ["info"]),
        (PRINTING, "keep_to_one(True)", "print(accuracy)", ["info"]),
    ],
)
def test_a_print_that_was_replaced_is_that_of_rank_zero(
    lint: Any, helper: str, start: str, told: str, severities: list[str]
) -> None:
    script = SCRIPT.replace('init_process_group("gloo")', f'init_process_group("gloo")\n{helper}\n{start}')
    script = script.replace("if dist.get_rank() == 0:\n        REPORT", told).replace("REDUCE", "pass")
    assert lint.body(script).of("DDP601").severities == severities


BY_NAME = """
from collections import defaultdict

sums = defaultdict(float)
with torch.no_grad():
    for x, y in test_loader:
        sums["right"] += (model(x) == y).sum().item()
REDUCE
if dist.get_rank() == 0:
    REPORT
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("report", "reduce"), [('print(sums["right"])', 'sums["right"] = dist.all_reduce(torch.tensor(sums["right"]))')]
)
def test_a_dictionary_that_makes_what_is_missing_keeps_numbers(lint: Any, report: str, reduce: str) -> None:
    for how, severities in (("pass", ["warning"]), (reduce, [])):
        body = BY_NAME.replace("REDUCE", how).replace("REPORT", report)
        assert lint.body(SCRIPT[: SCRIPT.index("def train()")] + body).of("DDP601").severities == severities, how


def test_a_loss_that_is_no_number_is_told_of_as_the_end(lint: Any) -> None:
    body = """
for x, y in train_loader:
    loss = model(x).sum()
    if not torch.isfinite(loss):
        if dist.get_rank() == 0:
            print(f"the loss is {loss.item()}: the training ends")
        raise SystemExit(1)
    loss.backward()
dist.destroy_process_group()
"""
    assert lint.body(SCRIPT[: SCRIPT.index("def train()")] + body).of("DDP601").severities == []


SUMS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(torch.nn.Linear(2, 2))
val = TensorDataset(torch.zeros(64, 2))
loader = DataLoader(val, sampler=DistributedSampler(val, shuffle=False, drop_last=True))
total = 0.0
with torch.no_grad():
    for (x,) in loader:
        {}
if rank == 0:
    print(total)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "summing, codes",
    [
        ("total += model(x).mean().item()", {"DDP601"}),
        ("total = total + model(x).mean().item()", {"DDP601"}),
        ("total = model(x).mean().item() + total", {"DDP601"}),
        ("total = total + 1.0 + model(x).mean().item()", {"DDP601"}),
        ("total = x; total = total + model(x)", set()),
    ],
)
def test_a_sum_is_one_however_it_is_written(lint: Any, summing: str, codes: set[str]) -> None:
    lint.write(train=SUMS.format(summing))
    assert {finding.code for finding in lint.run("train.py")} == codes
