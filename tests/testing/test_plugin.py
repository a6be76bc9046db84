"""The plugin as users meet it: suites in processes of their own, their outcomes and reports."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.runtime

EVERYDAY = """
import logging, warnings, sys
import torch, torch.distributed as dist

@pytest.fixture
def number(): return 41

@pytest.fixture
def pair(number):
    inner = [number]
    return inner

@pytest.fixture
def both(pair): return {"pair": pair}

@pytest.mark.world_size(2)
def test_collective(world):
    x = torch.ones(2) * (world.rank + 1)
    dist.all_reduce(x, group=world.group)
    assert x.tolist() == [3, 3]
    assert world.scattered(torch.arange(3)).tolist() == ([0, 1] if world.rank == 0 else [2])

@pytest.mark.world_size([1, 3])
@pytest.mark.parametrize("letter", ["a", "b"])
def test_sizes(world, world_size, letter):
    assert world.size == world_size == dist.get_world_size() == int(os.environ["WORLD_SIZE"])

@pytest.mark.parametrize("world_size", [1, 2], indirect=True)
@pytest.mark.world_size
def test_sizes_by_parameter(world, world_size):
    assert world.size == world_size

@pytest.mark.world_size(2)
def test_fixtures(world, number, pair, both, tmp_path):
    assert number == 41 and pair == [41] and both["pair"] is pair
    (tmp_path / str(world.rank)).write_text("")
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 2

class TestMethods:
    shared = "class"
    def setup_method(self): self.made = 3
    @pytest.mark.world_size(2)
    def test_method(self, world, monkeypatch, capsys, capfd_unused, caplog, recwarn):
        assert self.made == 3 and self.shared == "class"
        print("rank", world.rank)
        assert capsys.readouterr().out == f"rank {world.rank}\\n"
        logging.warning("heard %d", world.rank)
        assert caplog.records[0].getMessage() == f"heard {world.rank}"
        warnings.warn("mine")
        assert len(recwarn) == 1
        monkeypatch.setenv("WORLDS_X", "1")

@pytest.fixture
def capfd_unused(): return None

@pytest.mark.world_size(2)
def test_capfd(world, capfd):
    os.system("echo from a child")
    assert capfd.readouterr().out == "from a child\\n"

@pytest.mark.world_size(2)
def test_the_monkeypatch_of_another_test_is_undone():
    assert "WORLDS_X" not in os.environ

@pytest.fixture
def environment(monkeypatch): monkeypatch.setenv("WORLDS_Y", "from a fixture")

@pytest.mark.world_size(2)
def test_the_environment_of_a_fixture_reaches_the_ranks(environment):
    assert os.environ["WORLDS_Y"] == "from a fixture"

@pytest.mark.world_size(2)
@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_xfail(): 1 / 0

@pytest.mark.world_size(2)
@pytest.mark.xfail(strict=False)
def test_xpass(): pass

@pytest.mark.world_size(2)
def test_imperative_xfail(): pytest.xfail("known")

@pytest.mark.world_size(2)
def test_skip(): pytest.skip("not today")

@pytest.mark.world_size(2)
@pytest.mark.skipif(True, reason="never")
def test_skipif(): raise AssertionError

@pytest.mark.world_size(2, backend=None)
def test_a_launch(world):
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    assert (dist.get_rank(), os.environ["LOCAL_RANK"]) == (world.rank, str(world.rank))

@pytest.mark.world_size(2)
def test_loader_workers(world):
    from torch.utils.data import DataLoader
    assert [int(x) for x in DataLoader(list(range(4)), num_workers=2, batch_size=1)] == [0, 1, 2, 3]

@pytest.mark.world_size(2)
def test_a_warning(): warnings.warn("seen on the ranks", UserWarning)

def double(x, world): return 2 * x + world.rank

def test_from_outside(worlds):
    assert worlds.run(double, 4, world_size=3) == [8, 9, 10]
    assert worlds.run(double, x=1, world_size=1, isolation="process") == [2]
"""


def test_everyday_use(suite):
    result = suite(EVERYDAY, "-ra", "-W", "error::DeprecationWarning")
    result.assert_outcomes(passed=16, skipped=2, xfailed=2, xpassed=1, warnings=1)
    result.stdout.fnmatch_lines(["*UserWarning: seen on the ranks*"])
    result.stdout.fnmatch_lines(["SKIPPED*not today"])


FAILING = """
import torch.distributed as dist

@pytest.mark.world_size(4)
def test_all(world):
    print("printed")
    assert {"a": 1} == {"a": 2}

@pytest.mark.world_size(2)
def test_each(world):
    assert world.rank == 5

@pytest.mark.world_size(2)
def test_chained(world):
    try:
        {}["key"]
    except KeyError as error:
        raise ValueError("from it") from error

@pytest.mark.world_size(2)
def test_some_skip(world):
    if world.rank: pytest.skip("alone")

@pytest.mark.world_size(2)
@pytest.mark.xfail(raises=KeyError)
def test_wrong_xfail(): raise ValueError("not a KeyError")

@pytest.mark.world_size(2)
def test_exits(): raise SystemExit(3)

class Odd(Exception):
    def __init__(self, a, b): super().__init__(f"{a} {b}")

@pytest.mark.world_size(2)
def test_unpicklable_error(): raise Odd(1, 2)

@pytest.mark.world_size(2)
def test_assertion_of_ours(world):
    from validate_ddp.testing import assert_disjoint_cover
    assert_disjoint_cover([0, 1], 2)

from hypothesis import given, settings, strategies as st

@pytest.mark.ranks(2)
@settings(database=None)
@given(x=st.integers())
def test_drawn(world, x): assert x < 3, "too much"

@pytest.mark.world_size(2)
def test_parts(subtests):
    with subtests.test("first", i=0): assert 0 == 7
    with subtests.test(i=1): assert 1 == 7
    with subtests.test("left out"): pytest.skip("this part")

def broken(): raise ValueError("in a function")
def test_outside(worlds): worlds.run(broken)
"""


TRAVEL = """
@pytest.fixture
def maker(): return (x for x in [3])

class Shy:
    def __init__(self): self.x = 1
    def __setstate__(self, state): raise ValueError("not me")

@pytest.fixture
def shy(): return Shy()

@pytest.fixture
def uses_world(world): return world.rank

@pytest.mark.world_size(2)
def test_generator(maker): pass

@pytest.mark.world_size(2)
def test_shy(shy): pass

@pytest.mark.world_size(2)
def test_world_in_fixture(uses_world): pass

def test_unmarked(world): pass
"""

MARKS = """
import unittest

@pytest.mark.world_size(0)
def test_zero(): pass

@pytest.mark.world_size
def test_bare(): pass

@pytest.mark.world_size(2, isolation="none")
def test_isolation(): pass

@pytest.mark.world_size(2, nproc=3)
def test_unknown(): pass

class TestOld(unittest.TestCase):
    @pytest.mark.world_size(2)
    def test_old(self): self.assertEqual(int(os.environ["RANK"]), 2)

    @pytest.mark.world_size(2)
    def test_skip(self): self.skipTest("not today")

    @pytest.mark.world_size(2)
    @unittest.expectedFailure
    def test_expected(self): self.fail()
"""

PRINTS = """
@pytest.mark.world_size(2)
def test_p(world): print("I am", world.rank)
"""

TOLD = [
    ["*--- ranks 0-3 ---*", '>*assert {"a": 1} == {"a": 2}', "E*Differing items:", "E*{'a': 1} != {'a': 2}"],
    ["*Captured stdout ranks 0-3 call*", "printed"],
    ["*--- rank 0 ---*", "E*assert 0 == 5", "*--- rank 1 ---*", "E*assert 1 == 5"],
    ["*KeyError: 'key'", "*direct cause*", "E*ValueError: from it"],
    ["*rank 1 skipped: alone; rank 0 had returned*"],
    ["FAILED test_failing.py::test_all - AssertionError: assert {'a': 1} == {'a': 2}*"],
    ["FAILED test_failing.py::test_exits - SystemExit: 3"],
    ["E*test_failing.Odd: 1 2"],
    [">*assert_disjoint_cover([[]0, 1], 2)", "E*AssertionError: *"],
    ["fixture 'maker' cannot travel to the ranks: *"],
    ["E*fixture 'shy' came to the ranks, but cannot be unpickled there (ValueError: not me)"],
    ["*`world.rank` exists on the ranks only, and fixtures are made in the parent process; use it in the test"],
    ["`world` is for tests that run on ranks: add @pytest.mark.world_size(2)"],
    ["*needs a number of ranks from 1, or a list of them, not 0"],
    ["*unknown arguments ?'nproc'?"],
    ["E*AssertionError: 1 != 2"],
    ["*test_drawn(", "*x=3,*"],
    ["*subtest [[]first] (i=0)*", "E*assert 0 == 7", "*subtest (i=1)*", "E*assert 1 == 7"],
    ["*Captured stdout rank 0 call*", "I am 0", "*Captured stdout rank 1 call*", "I am 1"],
]


@pytest.mark.slow
def test_each_failure_and_refusal_is_told_once_in_words_and_output_by_rank(suite, pytester):
    sources = {"failing": FAILING, "travel": TRAVEL, "marks": MARKS, "prints": PRINTS}
    pytester.makepyfile(**{f"test_{name}": "import os, pytest\n" + source for name, source in sources.items()})
    files_of_one_name(pytester)
    for folder in ("one", "two"):
        (pytester.path / folder / "__init__.py").write_text("")  # or pytest itself confuses them
    result = suite("", "-rfEP")  # one session for all: each costs an import of torch
    result.assert_outcomes(failed=11 + 2 + 1, errors=2 + 4, passed=1 + 2, skipped=1, xfailed=1)
    for lines in TOLD:
        result.stdout.fnmatch_lines(lines)
    result.stdout.no_fnmatch_line("*def assert_disjoint_cover*")
    result.stdout.no_fnmatch_line("*marked.py:*")
    outcomes = [line.split()[:2] for line in result.outlines if line.startswith(("FAILED test_", "ERROR test_"))]
    files = [(word, place.partition("::")[0]) for word, place in outcomes]
    assert {each: files.count(each) for each in files} == {
        ("FAILED", "test_failing.py"): 11,
        ("FAILED", "test_travel.py"): 2,
        ("FAILED", "test_marks.py"): 1,
        ("ERROR", "test_travel.py"): 2,
        ("ERROR", "test_marks.py"): 4,
    }


PLAIN = """
import sys, subprocess
@pytest.mark.world_size(2)
def test_on_ranks(): pass
def test_plain():
    assert "torch" not in sys.modules
    children = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True).stdout.split()
    assert children == []
"""


def test_without_a_marked_test_to_run_there_is_no_torch_and_no_process(suite):
    suite(PLAIN, "-k", "plain").assert_outcomes(passed=1, deselected=1)
    result = suite("", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["test_it.py::test_on_ranks"])


def test_why_torch_cannot_be_imported_is_told_by_each_test(suite, pytester):
    pytester.makepyfile(torch="raise ImportError('no torch here')")
    result = suite("""
@pytest.mark.world_size(2)
@pytest.mark.timeout(20)
def test_first(world): pass
@pytest.mark.world_size(2)
def test_second(world): pass
""")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*could not start: ImportError: no torch here"] * 2)


@pytest.mark.slow
def test_where_no_bytecode_is_written_the_ranks_share_what_they_have_rewritten(suite, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    source = """
import pathlib, tempfile
@pytest.mark.world_size(2)
def test_fails(world):
    world.barrier()
    found = [each.name for each in pathlib.Path(tempfile.gettempdir()).glob("validate-ddp-*/*") if not each.suffix]
    assert len(found) == 0
"""
    result = suite(source, "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["E*AssertionError: assert 1 == 0"])
    assert list(tmp_path.glob("validate-ddp-*")) == []


@pytest.mark.slow
def test_works_with_xdist_last_failed_failed_first_and_exitfirst(suite):
    source = """
@pytest.mark.world_size(2)
@pytest.mark.parametrize("i", range(12))
def test_many(world, i):
    assert i != 5, "the sixth"
"""
    result = suite(source, "-n", "2")
    result.assert_outcomes(passed=11, failed=1)
    result.stdout.fnmatch_lines(
        ["*--- ranks 0-1 ---*", "FAILED test_it.py::test_many[[]5] - AssertionError: the sixth*"]
    )
    suite("", "--ff", "-x").assert_outcomes(failed=1)  # the one that had failed comes first, and is the last
    suite("", "--lf").assert_outcomes(failed=1)  # and no other


@pytest.mark.slow
def test_importlib_mode_and_conftests_of_one_name(suite, pytester):
    pytester.makeconftest("class Box:\n    def __init__(self, x): self.x = x\n")
    files_of_one_name(pytester)
    suite("", "--import-mode=importlib").assert_outcomes(passed=2)


def files_of_one_name(pytester):
    """Two folders with a test each: the same names of files, of fixtures and of the classes of their values."""
    for folder in ("one", "two"):
        place = pytester.mkdir(folder)
        (place / "conftest.py").write_text(
            "import pytest\nclass Value:\n    def __init__(self, x): self.x = x\n"
            f"@pytest.fixture\ndef value(): return Value('{folder}')\n"
        )
        (place / "test_same_name.py").write_text(
            "import pytest\n@pytest.mark.world_size(2)\ndef test_it(value):\n"
            f"    assert value.x == '{folder}' and type(value).__name__ == 'Value'\n"
        )


@pytest.mark.slow
def test_coverage_of_the_ranks_and_live_output_without_capture(suite, pytester, monkeypatch):
    pytest.importorskip("pytest_cov")
    for name in ("COVERAGE_FILE", "COVERAGE_RCFILE", "COVERAGE_PROCESS_CONFIG"):
        monkeypatch.delenv(name, raising=False)  # pytest-cov begins by erasing what an outer measurement has written
    pytester.makepyfile(
        mine="def f(rank):\n    if rank:\n        return 1\n    return 0\n\n\ndef never():\n    return 2\n"
    )
    source = """
import mine
@pytest.mark.world_size(2)
def test_f(world):
    print("I am", world.rank)
    assert mine.f(world.rank) == world.rank
"""
    result = suite(source, "--cov=mine", "--cov-report=json", "-s")
    result.assert_outcomes(passed=1)
    assert "I am 0" in result.stdout.str() and "I am 1" in result.stdout.str()
    measured = json.loads((pytester.path / "coverage.json").read_text())["files"]["mine.py"]
    assert measured["missing_lines"] == [8]
    assert not list(pytester.path.glob(".coverage.*"))
