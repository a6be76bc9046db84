"""Suites that start their own ranks run as they did, with their own exit codes and skips, and start warm."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.runtime

SPAWNS = """
import sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

STARTED = os.getpid()  # a module that is imported again finds another

def meet(rank, file, queue):
    assert STARTED != os.getpid()
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"printed by rank {rank}")  # in one piece, as both write to one place
    queue.put((rank, total.item(), os.environ.get("OF_THE_TEST"), os.getcwd(), os.environ.get("OMP_NUM_THREADS")))

def test_spawn(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OF_THE_TEST", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(meet, args=(str(tmp_path / "file"), queue), nprocs=2)
    assert sorted([queue.get(), queue.get()]) == [(rank, 2, "1", str(tmp_path), None) for rank in (0, 1)]
    assert "printed by rank 1" in capfd.readouterr().out

def raises(rank): raise ValueError("no")
def ends(rank): os._exit(3)

def test_ends():
    with pytest.raises(mp.ProcessRaisedException, match="ValueError: no"): mp.spawn(raises, nprocs=2)
    with pytest.raises(mp.ProcessExitedException, match="exit code 3"): mp.spawn(ends, nprocs=2)

def importer(rank, queue): queue.put((STARTED, os.getpid(), os.getppid()))

def test_what_is_spawned_has_imported_this_module_already():
    queue = mp.get_context("spawn").SimpleQueue()
    for _ in range(2): mp.spawn(importer, args=(queue,), nprocs=1)
    (home, first, server), (again, second, _) = queue.get(), queue.get()
    assert home == again == server and len({home, first, second}) == 3
"""

# As DeepSpeed's starts its pools; the first of the run, so nothing else has started the forkserver.
POOLS = """
import multiprocessing

STARTED = os.getpid()

def started(_): return STARTED, os.getpid(), os.environ.get("OF_THE_TEST")

def test_a_pool_of_a_forkserver_has_imported_this_module_already(monkeypatch):
    monkeypatch.setenv("OF_THE_TEST", "1")
    found = []
    for _ in range(2):
        with multiprocessing.get_context("forkserver").Pool(1) as pool: found += pool.map(started, [None])
    (home, first, seen), (again, second, _) = found
    assert home == again and len({home, first, second}) == 3 and seen == "1"
"""

CASES = """
import torch, torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase, skip_if_lt_x_gpu
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms

class TestTwo(MultiProcessTestCase):
    world_size = 2
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @skip_if_lt_x_gpu(8)
    def test_skips(self): raise AssertionError

    def test_fails(self): self.assertEqual(self.rank, 1)  # not so on rank 0

class TestMesh(DTensorTestBase):
    world_size = 2
    @with_comms
    def test_holds(self):
        self.assertEqual(self.build_device_mesh().size(), dist.get_world_size())
"""

# As DeepSpeed's: the class starts processes itself, and reads the marker of that name.
OTHERS = """
class TestTheirs:
    @pytest.mark.world_size(3)
    def test_marker(self, request):
        assert request.function.pytestmark[0].args == (3,) and "RANK" not in os.environ

@pytest.mark.ranks(2)
def test_ours(world):
    assert world.size == 2 and "RANK" in os.environ
"""


@pytest.mark.slow
def test_suites_that_spawn_run_as_they_did_and_start_warm(suite, pytester, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pytester.makeconftest("from validate_ddp.testing.adopt import pytest_runtest_protocol\n")
    pytester.makeini("[pytest]\nmarkers =\n    world_size:Change world size of individual tests in a class\n")
    sources = {"a_pool": POOLS, "spawns": SPAWNS, "cases": CASES, "others": OTHERS}
    pytester.makepyfile(**{f"test_{name}": "import os, pytest\n" + source for name, source in sources.items()})
    result = suite("", "-rfs", "--strict-markers", "-n", "0")
    result.assert_outcomes(passed=7, failed=1, skipped=1)
    for line in ("SKIPPED*Need at least 8 CUDA devices", "E*Process 0 exited with error code 10*", "E*not equal!"):
        result.stdout.fnmatch_lines([line])


@pytest.mark.slow
def test_a_marker_starts_warm_what_one_test_spawns(suite):
    result = suite(
        "import multiprocessing\n"
        "def work(): raise SystemExit('torch' in __import__('sys').modules)\n"
        "def code():\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start()\n    process.join()\n    return process.exitcode\n"
        "def test_cold(): assert code() == 0\n"
        "@pytest.mark.adopt\ndef test_warm(): assert code() == 1\n"
        "def test_cold_again(): assert code() == 0\n",
        "-p", "no:randomly",
    )  # fmt: skip
    result.assert_outcomes(passed=3)


BESIDE = """
import multiprocessing
os.environ["OF_THE_MODULE"] = "1"
import aid

def work(queue): queue.put((aid.HOME, os.getppid(), aid.SEEN))
def test_it():
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(queue,))
    process.start()
    home, server, seen = queue.get()
    assert home == server and seen == "1"
"""


STARTED_EARLY = """
import multiprocessing
from multiprocessing import forkserver
multiprocessing.set_start_method("spawn")  # not asked for, nor chosen, by now
started, wanted = forkserver._forkserver._forkserver_pid is not None, "--collect-only" not in sys.argv
assert started == wanted
"""


@pytest.mark.slow
def test_what_is_imported_early_is_found_as_here_and_finds_the_environment_of_here(suite, pytester):
    aid = "import os\nHOME, SEEN = os.getpid(), os.environ.get('OF_THE_MODULE')\n"
    (pytester.mkdir("beside") / "aid.py").write_text(aid)
    pytester.makeconftest(f"import sys; sys.path.insert(0, 'beside'){STARTED_EARLY}")
    suite(BESIDE, "-p", "validate_ddp.testing.adopt").assert_outcomes(passed=1)
    assert suite(BESIDE, "-p", "validate_ddp.testing.adopt", "--collect-only").ret == 0
