"""The soak: a thousand tests in random order, some with faults, under -n 2. See ci/soak.sh."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from process_marks import bearing_after, shared_memory

TESTS = int(os.environ.get("VALIDATE_DDP_SOAK", "1000"))
pytestmark = [pytest.mark.runtime, pytest.mark.soak]

HEAD = """
import os, signal, pytest, torch
import torch.distributed as dist

def clean(world):
    store = dist.distributed_c10d._get_default_store()
    assert store.add(f"rank {world.rank} was here", 1) == 1, "the group is not fresh"
    check(world)

def check(world):
    assert "LEFT" not in os.environ and torch.get_default_dtype() is torch.float32
    total = torch.ones(4) * (world.rank + 1)
    dist.all_reduce(total)
    assert total.tolist() == [world.size * (world.size + 1) / 2] * 4
    print("printed by rank", world.rank)
    os.environ["LEFT"] = "1"
    torch.set_default_dtype(torch.float64)
"""

HEALTHY = {
    "two": ("world_size(2)", "clean(world)"),
    "three": ("world_size(3)", "clean(world)"),
    "shared": ("world_size(2, isolation='shared')", "check(world)"),
    "process": ("world_size(2, isolation='process')", "clean(world)"),
    "alone": ("world_size(2, backend=None)", "assert not dist.is_initialized()"),
    "loader": ("world_size(2)", "list(torch.utils.data.DataLoader(torch.ones(4, 64), num_workers=1)); clean(world)"),
}
HEALTHY_WEIGHTS = (80, 5, 8, 2, 3, 2)

FAULTS = {
    "hang": "dist.barrier()\n    [dist.barrier, lambda: [dist.all_reduce(torch.ones(1)) for _ in 'ab']][world.rank]()",
    "kill": "os.kill(os.getpid(), signal.SIGKILL) if world.rank == {rank} else dist.barrier()",
    "segv": "os.kill(os.getpid(), signal.SIGSEGV) if world.rank == {rank} else dist.barrier()",
    "exit": "os._exit(3) if world.rank == {rank} else dist.barrier()",
    "raise": "assert world.rank != {rank}, 'injected'\n    dist.barrier()",
    "early": "dist.barrier() if world.rank == {rank} else None",
}
SAID = {
    "hang": "timed out",
    "kill": "SIGKILL",
    "segv": "SIGSEGV",
    "exit": "exit code 3",
    "raise": "injected",
    "early": "had returned",
}


def write_suite(folder: Path, generator: random.Random) -> None:
    """``TESTS`` tests, the kind of each in its name."""
    kinds = [f"fault_{generator.choice(list(FAULTS))}" for _ in range(max(1, TESTS // 20))]
    healthy = generator.choices(list(HEALTHY), HEALTHY_WEIGHTS, k=TESTS - len(kinds))
    kinds += [f"ok_{kind}" for kind in healthy]
    generator.shuffle(kinds)
    lines = [HEAD]
    for number, kind in enumerate(kinds):
        verdict, _, name = kind.partition("_")
        mark, body = ("world_size(2)", FAULTS[name]) if verdict == "fault" else HEALTHY[name]
        body = body.replace("{rank}", str(generator.randrange(2)))
        limit = 3 if name == "hang" else 60
        lines.append(
            f"@pytest.mark.{mark}\n@pytest.mark.timeout({limit})\ndef test_{number:04}_{kind}(world):\n    {body}\n"
        )
    (folder / "test_soak.py").write_text("\n".join(lines))


def wrong_verdicts(report: Path) -> tuple[list[str], list[float]]:
    """Tests that ended otherwise than their name says, and the milliseconds of the healthy ones."""
    wrong, times = [], []
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        problem = next((each for kind in ("failure", "error") for each in case.iter(kind)), None)
        said = "" if problem is None else f"{problem.get('message')} {problem.text}"
        if "_fault_" in name:
            if SAID[name.rpartition("_")[2]] not in said:
                wrong.append(f"{name}: {said[:300] or 'passed'}")
        else:
            times.append(float(case.get("time", 0)) * 1000)
            if said:
                wrong.append(f"{name}: {said[:300]}")
    return wrong, times


@pytest.fixture
def temporary(monkeypatch):
    """The run's temporary folder; a short name, because multiprocessing makes sockets there."""
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_faults_cost_no_other_test_and_nothing_is_left(suite, pytester, temporary):
    seed = int(os.environ.get("VALIDATE_DDP_SEED", time.time_ns() % 100_000))
    write_suite(pytester.path, random.Random(seed))
    before = shared_memory()
    start = time.monotonic()
    result = suite("", "-n", "2", "-q", "--tb=short", "--junitxml=report.xml", "-p", "no:cacheprovider", "test_soak.py")
    seconds = time.monotonic() - start
    wrong, times = wrong_verdicts(pytester.path / "report.xml")
    slow = sorted(times)[int(0.99 * len(times))]
    print(
        f"\nseed {seed}: {TESTS} tests in {seconds:.0f} s, {len(wrong)} wrong verdicts; "
        f"healthy ones median {statistics.median(times):.0f} ms, p99 {slow:.0f} ms"
    )
    assert wrong == [], f"seed {seed}"
    assert len(times) == TESTS - max(1, TESTS // 20)
    assert "worlds that were lost" not in result.stdout.str()
    assert bearing_after(10, f"WORLDS_TEST_MARK={pytester.path.name}\0") == []
    assert shared_memory() <= before
    assert [
        each.name for each in temporary.iterdir() if not each.name.startswith(("pytest-of-", "torchinductor_"))
    ] == []
