"""More context never loses a finding: a program told in more files, or through more names, has the findings that it had."""

from __future__ import annotations

from typing import Any

import pytest

_LOADER = """
from torch.utils.data import DataLoader, DistributedSampler

def loader_of(data):
    sampler = DistributedSampler(data)
    return DataLoader(data, sampler=sampler)
"""
_OTHER = """
def loader_of(data):
    return Pipeline(data)
"""
_TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
{imported}

dist.init_process_group("gloo")
data = list(range(8))
model = DDP(torch.nn.Linear(1, 1))
for epoch in range(3):
    for batch in {called}(data):
        model(batch).sum().backward()
dist.destroy_process_group()
"""
_CHOOSING = """
def choose(data, fast):
    if {test}:
        from {first} import loader_of
    else:
        from {second} import loader_of
    return loader_of(data)
"""
_EITHER = """
try:
    from {first} import loader_of
except ImportError:
    from {second} import loader_of
"""


def _found(lint: Any, files: dict[str, str], code: str) -> list[tuple[str, str]]:
    lint.write(files)
    return [(each.path, each.severity) for each in lint.run().of(code)]


def test_loader_in_file(lint: Any) -> None:
    files = {"loading.py": _LOADER, "train.py": _TRAIN.format(imported="import loading", called="loading.loader_of")}
    assert _found(lint, files, "DDP201") == [("loading.py", "error")]


@pytest.mark.parametrize("order", [("loading", "piping"), ("piping", "loading")])
def test_one_of_two_imports(lint: Any, order: tuple[str, str]) -> None:
    """A name that one of two branches imports stands for both functions."""
    choosing = _CHOOSING.format(test="fast", first=order[0], second=order[1])
    train = _TRAIN.format(imported="import choosing, os\nfast = os.environ.get('FAST')", called="choosing.choose")
    train = train.replace("(data):", "(data, fast):")
    files = {"loading.py": _LOADER, "piping.py": _OTHER, "choosing.py": choosing, "train.py": train}
    assert [path for path, _ in _found(lint, files, "DDP201")] == ["loading.py"]


@pytest.mark.parametrize(("first", "second", "found"), [("loading", "piping", 1), ("piping", "loading", 0)])
def test_spare_import(lint: Any, first: str, second: str, found: int) -> None:
    """What a handler imports instead is not used where the first is there."""
    train = _TRAIN.format(imported=_EITHER.format(first=first, second=second), called="loader_of")
    files = {"loading.py": _LOADER, "piping.py": _OTHER, "train.py": train}
    assert len(_found(lint, files, "DDP201")) == found


@pytest.mark.parametrize(
    "chosen",
    ["folder = settings()", "folder, name = settings()", "pair = settings()\nfolder, name = pair"],
)
def test_path_out_of_several(lint: Any, chosen: str) -> None:
    """A part that is taken from several by its place is no item of a rank's share."""
    script = f"""
import torch.distributed as dist
from outside import settings

dist.init_process_group("gloo")
{chosen}
with open(folder + "/options.txt", "w") as file:
    file.write("x")
dist.destroy_process_group()
"""
    assert _found(lint, {"train.py": script}, "DDP502") == [("train.py", "warning")]


def test_path_out_of_several_in_a_loop(lint: Any) -> None:
    """In a loop over data it is one."""
    script = """
import torch.distributed as dist
from outside import samples

dist.init_process_group("gloo")
for sample in samples():
    folder, name = sample
    with open(folder + "/" + name, "w") as file:
        file.write("x")
dist.destroy_process_group()
"""
    assert _found(lint, {"train.py": script}, "DDP502") == []
