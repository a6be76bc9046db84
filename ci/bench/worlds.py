"""Time of a trivial test on two gloo ranks, beside torch's spawn, MultiProcContinuousTest and DeepSpeed's pattern.

Usage: python ci/bench/worlds.py [--tests 200] [--deepspeed CHECKOUT]; needs torch, pytest, and expecttest (for
MultiProcContinuousTest). CHECKOUT of DeepSpeed's repository, for its own DistributedTest, with deepspeed installed: the
packages hold no tests; without it the pattern is imitated. All rows come from one run, one after another, with the load
of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKS = Path(__file__).resolve().parent.parent.parent / "checks"
sys.path.insert(0, str(CHECKS))

from validate_ddp.testing import World, WorldError  # noqa: E402


def trivial() -> None:
    """The test: a collective and a comparison."""
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


def dies(world: Any) -> None:
    """A test with a rank that is killed."""
    if world.rank:
        os.kill(os.getpid(), 9)
    trivial()


def hangs(world: Any) -> None:
    """A test that never ends."""
    import torch.distributed as dist

    if world.rank:
        dist.barrier()
    time.sleep(60)


def timed(function: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1000


def row(name: str, times: list[float], first: float | None = None) -> None:
    """One line of the table."""
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    start = "" if first is None else f"{first:9.0f}"
    load = os.getloadavg()[0]
    print(f"{name:<46}{statistics.median(times):9.2f}{p99:9.2f}{start:>9}{len(times):7}{load:7.1f}", flush=True)


def ours(tests: int) -> None:
    """World.run with fresh and shared groups; recovery; memory."""
    start = time.perf_counter()
    with World(2) as world:
        world.pool.start()
        assert world.pool.server is not None
        world.pool.server.wait_until_ready()
        ready = (time.perf_counter() - start) * 1000
        first = timed(lambda: world.run(trivial))
        for _ in range(50):
            world.run(trivial)
        row("ours, World.run, fresh group", [timed(lambda: world.run(trivial)) for _ in range(tests)], first)
        shared = World(2, pool=world.pool, isolation="shared")
        shared.run(trivial)
        row("ours, World.run, shared group", [timed(lambda: shared.run(trivial)) for _ in range(tests)])
        fresh = World(2, pool=world.pool, isolation="process")
        row("ours, World.run, fresh processes", [timed(lambda: fresh.run(trivial)) for _ in range(max(5, tests // 10))])
        for name, function in (("kill", dies), ("hang", hangs)):
            short = World(2, pool=world.pool, timeout=0.5)
            recovery = []
            for _ in range(10):
                try:
                    short.run(function)
                except WorldError:
                    pass
                recovery.append(timed(lambda: world.run(trivial)))
            row(f"ours, the test after a {name}", recovery)
        print(f"  the forkserver was ready after {ready:.0f} ms (imports of torch), the first test took {first:.0f} ms")
        memory(world)


def memory(world: World) -> None:
    """What a live rank takes: its own pages, and its share of those in common."""
    sizes: dict[str, list[int]] = {"Rss": [], "Pss": [], "Private_Dirty": []}
    for each in world.pool.worlds:
        for pid in each.pids.values():
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in sizes:
                    sizes[name].append(int(rest.split()[0]) // 1024)
    said = ", ".join(f"{name} {statistics.median(found):.0f} MB" for name, found in sizes.items() if found)
    print(f"  memory of a live rank (median of {len(sizes['Pss'])}): {said}")


_TIMER = """
import json, time
import pytest
times = []
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    start = time.perf_counter()
    result = yield
    times.append((time.perf_counter() - start) * 1000)
    return result
def pytest_sessionfinish(session):
    with open("times.json", "w") as file:
        json.dump(times, file)
"""


def through_pytest(tests: int) -> None:
    """Times of whole tests, set-up, teardown and reports included (junit has them too, but in whole milliseconds)."""
    with tempfile.TemporaryDirectory() as folder:
        source = (
            "import pytest, torch\nimport torch.distributed as dist\n"
            f"@pytest.mark.parametrize('i', range({tests + 50}))\n@pytest.mark.world_size(2)\n"
            "def test_trivial(world, i):\n"
            "    x = torch.ones(1)\n    dist.all_reduce(x)\n    assert x.item() == 2\n"
        )
        Path(folder, "test_trivial.py").write_text(source)
        Path(folder, "conftest.py").write_text(_TIMER)
        options = ["-q", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": str(CHECKS)}
        check = "import importlib.metadata as m; print(any(e.value == 'validate_ddp.testing.plugin' for e in "
        check += "m.entry_points(group='pytest11')))"
        shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=environment)
        if shown.stdout.strip() != "True":
            options += ["-p", "validate_ddp.testing.plugin"]
        command = [sys.executable, "-m", "pytest", *options]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        times = json.loads(Path(folder, "times.json").read_text())
        row("ours, through pytest, fresh group", times[50:], times[0])


def _spawned(rank: int, port: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    trivial()
    dist.destroy_process_group()


def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def spawn(tests: int) -> None:
    """torch.multiprocessing.spawn for each test, as torch's tutorials have it."""
    import torch.multiprocessing as mp

    times = [timed(lambda: mp.spawn(_spawned, (free_port(),), nprocs=2)) for _ in range(max(3, tests // 50))]
    row("torch.multiprocessing.spawn", times, times[0])


def deepspeed_pattern(tests: int) -> None:
    """As DeepSpeed's DistributedTest: a pool of processes of multiprocessing's forkserver for each test."""
    import torch.multiprocessing as mp

    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])

    def one() -> None:
        port = free_port()
        with context.Pool(2, maxtasksperchild=1) as pool:
            pool.starmap(_spawned, [(0, port), (1, port)], chunksize=1)

    times = [timed(one) for _ in range(max(3, tests // 20))]
    row("DeepSpeed's pattern (imitated, torch preloaded)", times[1:], times[0])


def deepspeed(tests: int, checkout: Path) -> None:
    """DeepSpeed's own DistributedTest, as its suite uses it: new processes for each test, and with them kept."""
    for name, reuse in (("DeepSpeed's DistributedTest", False), ("  the same, reuse_dist_env", True)):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(
                checkout / "tests" / "unit", Path(folder, "unit"), ignore=lambda at, names: _not_ours(names)
            )
            conftest = (checkout / "tests" / "conftest.py").read_text()
            Path(folder, "conftest.py").write_text(conftest + _TIMER)
            Path(folder, "test_trivial.py").write_text(
                "import pytest, torch\nimport deepspeed.comm as dist\nfrom unit.common import DistributedTest\n"
                f"class TestTrivial(DistributedTest):\n    world_size = 2\n    reuse_dist_env = {reuse}\n"
                f"    @pytest.mark.parametrize('i', range({max(5, tests // 20)}))\n    def test(self, i):\n"
                "        x = torch.ones(1)\n        dist.all_reduce(x)\n        assert x.item() == 2\n"
            )
            # LOCAL_SIZE: how many devices DeepSpeed believes a machine without GPUs to have.
            environment = {**os.environ, "PYTHONPATH": folder, "LOCAL_SIZE": "2"}
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            last = done.stdout.strip().splitlines()[-1:]
            if done.returncode or "skipped" in "".join(last):
                print(f"{name}: did not run:", *last)
                continue
            times = json.loads(Path(folder, "times.json").read_text())
            row(name, times[1:], times[0])


def _not_ours(names: list[str]) -> list[str]:
    return [name for name in names if name not in ("__init__.py", "common.py", "util.py")]


def continuous(tests: int) -> None:
    """PyTorch's MultiProcContinuousTest: one group for all tests of a class."""
    code = f"""
import json, sys, time, unittest
import torch, torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest
def body(self):
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
class Trivial(MultiProcContinuousTest):
    world_size = 2
    @classmethod
    def backend_str(cls): return "gloo"
    @classmethod
    def device_type(cls): return "cpu"
for i in range({tests}):
    setattr(Trivial, f"test_{{i:04d}}", body)
class Timed(unittest.TextTestResult):
    def startTest(self, test): self.begun = time.perf_counter(); super().startTest(test)
    def addSuccess(self, test): times.append((time.perf_counter() - self.begun) * 1000); super().addSuccess(test)
times = []
if __name__ == "__main__":
    start = time.perf_counter()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Trivial)
    unittest.TextTestRunner(resultclass=Timed, stream=open("/dev/null", "w")).run(suite)
    print(json.dumps([times, (time.perf_counter() - start) * 1000 - sum(times)]), flush=True)
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "continuous.py")
        path.write_text(code)
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    if not lines:
        print("MultiProcContinuousTest: did not run:", (done.stderr.strip().splitlines() or ["no output"])[-1])
        return
    times, rest = json.loads(lines[-1])
    row("PyTorch's MultiProcContinuousTest", times[1:], times[0] + rest)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--deepspeed", type=Path, metavar="CHECKOUT")
    options = parser.parse_args()
    tests = options.tests
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"{'milliseconds, 2 gloo ranks':<46}{'median':>9}{'p99':>9}{'first':>9}{'tests':>7}{'load':>7}")
    for part in (ours, through_pytest, continuous, deepspeed_pattern, spawn):
        part(tests)
    if options.deepspeed is not None:
        deepspeed(tests, options.deepspeed)


if __name__ == "__main__":
    main()
