"""Worlds without pytest: results, the state and the groups of ranks, and that nothing is left."""

from __future__ import annotations

import decimal
import gc
import importlib
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from process_marks import alive_after  # noqa: E402
from validate_ddp.testing import World, WorldError  # noqa: E402

pytestmark = pytest.mark.runtime


def total(x):
    tensor = torch.tensor([float(x)])
    dist.all_reduce(tensor)
    return tensor.item()


def identity(x, world):
    return x, world.rank, os.getpid()


def test_results_come_by_rank(two):
    assert two.run(total, 3) == [6.0, 6.0]
    found = two.run(identity, {"a": torch.ones(2)})
    assert [rank for _, rank, _ in found] == [0, 1]
    assert torch.equal(found[1][0]["a"], torch.ones(2))
    assert two.run(print, "nothing", flush=True) == [None, None]


def test_arguments_that_refer_to_each_other_arrive_as_they_were(two):
    part, word = [1, 2], "".join(["wo", "rd"])
    sent = {"first": (part, word), "again": (part, word), word: {"first": part}}
    for found, _, _ in two.run(identity, sent):
        assert found == sent
        assert found["first"][0] is found["again"][0] is found[word]["first"]


def test_functions_without_a_name_travel_with_what_they_enclose(two):
    def count(n):
        return [n, *count(n - step)] if n > 0 else []

    step = 2
    assert two.run(lambda x, more=(1,): (x, *more, total), 0) == [(0, 1, total)] * 2
    assert two.run(count, 5) == [[5, 3, 1]] * 2


def test_a_world_is_used_again_and_a_fresh_one_is_fresh(pool, two):
    before = [pid for _, _, pid in two.run(identity, 0)]
    assert [pid for _, _, pid in two.run(identity, 0)] == before
    other = [pid for _, _, pid in World(2, pool=pool, isolation="process").run(identity, 0)]
    assert not set(other) & set(before)


def group_name():
    return dist.distributed_c10d._get_default_group().group_name, id(dist.group.WORLD)


def test_a_shared_group_stays_and_a_fresh_one_does_not_get_in_its_way(pool, two):
    shared = World(2, pool=pool, isolation="shared")
    assert shared.run(total, 1) == [2, 2]
    first = shared.run(group_name)
    assert shared.run(group_name) == first
    assert two.run(total, 1) == shared.run(total, 1) == two.run(total, 1) == [2, 2]


def set_interface(world):
    return os.environ.get("GLOO_SOCKET_IFNAME"), dist.get_rank()


def test_a_group_made_ahead_is_not_used_under_other_settings(pool, two, monkeypatch):
    two.run(total, 1)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with pytest.raises(WorldError, match="nowhere0"):
        two.run(total, 1)


def uses_of_group():
    if not dist.is_initialized():
        return None
    # Every group has a part of the store of its own.
    return dist.distributed_c10d._get_default_store().add(f"uses by rank {dist.get_rank()}", 1)


def test_jobs_with_other_groups_take_turns_in_one_world(pool, two):
    shared, without = World(2, pool=pool, isolation="shared"), World(2, pool=pool, backend=None)
    pids = [pid for _, _, pid in two.run(identity, 0)]
    turns = [(two, 1), (two, 1), (shared, 1), (shared, 2), (two, 1), (without, None), (shared, 1), (without, None)]
    for world, uses in turns:
        assert world.run(uses_of_group) == [uses] * 2
    assert [pid for _, _, pid in two.run(identity, 0)] == pids


def test_the_store_is_reached_from_this_machine_only(pool, two):
    two.run(total, 1)
    with open("/proc/net/tcp6") as six, open("/proc/net/tcp") as four:
        listening = [line.split()[1] for line in [*four, *six] if line.split()[3] == "0A"]
    port = f":{pool.server.port:04X}"
    assert [each.partition(":")[0] for each in listening if each.endswith(port)] == ["0100007F"]


def test_what_cannot_travel_is_refused_in_words(two):
    with pytest.raises(TypeError, match="and its arguments cannot travel to the ranks: cannot pickle"):
        two.run(identity, (x for x in [1]))
    with pytest.raises(WorldError, match=r"the result \(a generator\) cannot travel"):
        two.run(make_generator)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        World(0)
    with pytest.raises(ValueError, match="isolation is one of"):
        World(2, isolation="none")


def make_generator():
    return (x for x in [1])


def draw():
    import numpy

    return random.random(), torch.rand(1).item(), float(numpy.random.rand())


def disturb():
    import numpy

    random.seed(7), torch.manual_seed(7), numpy.random.seed(7)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.set_num_threads(3)
    torch.use_deterministic_algorithms(True)
    os.environ["WORLDS_LEFT"] = "1"
    os.environ.pop("HOME", None)
    os.chdir("/")
    sys.path.append("/nowhere")
    sys.argv.append("--more")
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    logging.getLogger().setLevel(logging.DEBUG)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    sys.setrecursionlimit(5000)
    socket.setdefaulttimeout(1)
    os.umask(0o777)
    gc.disable()
    gc.set_threshold(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    sys.settrace(lambda *_: None)
    sys.excepthook = print
    sys.meta_path.clear()
    decimal.getcontext().prec = 3
    locale.setlocale(locale.LC_ALL, "C")
    tempfile.tempdir = "/nowhere"
    multiprocessing.set_start_method("spawn", force=True)
    logging.getLogger().addHandler(logging.NullHandler())
    torch.set_printoptions(precision=1)
    torch.set_float32_matmul_precision("medium")
    sys.stdout = None
    return os.getpid()


def look():
    return {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.ones(1).device),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environ": ("WORLDS_LEFT" in os.environ, "HOME" in os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "arguments": list(sys.argv),
        "filters": [str(each) for each in warnings.filters],
        "logging": (logging.root.manager.disable, logging.getLogger().level),
        "signal": str(signal.getsignal(signal.SIGTERM)),
        "alarm": signal.getsignal(signal.SIGALRM),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "limits": (sys.getrecursionlimit(), socket.getdefaulttimeout()),
        "umask": (umask := os.umask(0), os.umask(umask)),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "quit": str(signal.getsignal(signal.SIGQUIT)),
        "kernel": (resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0)),
        "hooks": (type(sys.gettrace()).__name__, sys.excepthook is sys.__excepthook__, len(sys.meta_path)),
        "library": (decimal.getcontext().prec, locale.setlocale(locale.LC_ALL), tempfile.tempdir),
        "start": multiprocessing.get_start_method(allow_none=True),
        "handlers": len(logging.root.handlers),
        "printed": (str(torch.tensor(1 / 3)), torch.get_float32_matmul_precision()),
        "stdout": sys.stdout is not None and sys.stdout.fileno(),
    }, os.getpid()


def test_each_job_finds_the_same_state(two):
    two.run(draw)
    random_numbers = two.run(draw)
    before = two.run(look)
    assert two.run(disturb) == [pid for _, pid in before], "the same processes"
    assert two.run(look) == before
    assert two.run(draw) == random_numbers
    assert random_numbers[0] == random_numbers[1]
    assert before[0][0]["folder"] == os.getcwd()


SETS = """
import os, sys, torch

if "RANK" in os.environ:
    torch.set_default_dtype(torch.float64)
    sys.setrecursionlimit(3000)

def found():
    return str(torch.get_default_dtype()), sys.getrecursionlimit()
"""


def test_what_a_module_sets_when_it_is_imported_the_functions_of_those_that_import_it_find(two, tmp_path, monkeypatch):
    package = tmp_path / "sets_when_imported"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sets.py").write_text(SETS)
    for name, imports in (
        ("first", "from .sets import found as settings"),
        ("second", "from . import sets; settings = sets.found"),
        ("third", "settings = __import__('sets_when_imported.second', fromlist=['found']).found"),
    ):
        (package / f"{name}.py").write_text(f"{imports}\ndef found():\n    return settings()\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = two.run(look)
    for name in ("first", "first", "sets", "second", "third"):
        found = importlib.import_module(f"sets_when_imported.{name}").found
        assert two.run(found) == [("torch.float64", 3000)] * 2, name
        assert two.run(look) == before, "another module"


def replace_a_function():
    torch.distributed.all_reduce = print
    return os.getpid()


def test_a_rank_whose_torch_a_test_has_changed_is_replaced(two):
    pids = two.run(replace_a_function)
    assert two.run(total, 1) == [2, 2]
    assert not {pid for _, _, pid in two.run(identity, 0)} & set(pids)


def leave_a_thread():
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    return os.getpid()


def test_a_rank_with_a_thread_left_is_replaced(two):
    pids = two.run(leave_a_thread)
    assert two.run(total, 1) == [2, 2]
    assert not {pid for _, _, pid in two.run(identity, 0)} & set(pids)


def free_after_destroy(world):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model.itself = model  # freed by a collection only
    model.module(torch.ones(1, 2)).sum().backward()


def test_models_of_ddp_do_not_take_their_world_with_them(pool, two):
    pool.lost.clear()  # it is other tests' too
    for _ in range(30):
        two.run(free_after_destroy)
    assert pool.lost == []


SCRIPT = """
import os, sys, time
from validate_ddp.testing import World

def where(seconds, world):
    print("rank", os.getpid(), flush=True)
    import subprocess
    child = subprocess.Popen(["sleep", "100"])
    print("rank", child.pid, flush=True)
    time.sleep(seconds)
    return world.rank

if __name__ == "__main__":
    with World(2) as w:
        how = sys.argv[1]
        print(w.run(where, 0 if how == "normal" else 60), flush=True)
        if how == "raise":
            raise KeyError
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["normal", "SIGKILL", "SIGTERM", "SIGINT"])
def test_nothing_is_left(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, str(script), how], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    pids = [process.pid]
    for _ in range(4):
        pids.append(int(process.stdout.readline().split()[1]))
    pids += children_of(process.pid)
    if how == "normal":
        assert process.stdout.readline() == "[0, 1]\n"
    else:
        pids += [grandchild for child in children_of(process.pid) for grandchild in children_of(child)]
        process.send_signal(getattr(signal, how))
    process.wait(30)
    assert not alive_after(5, *pids)
    assert [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in pids)] == []
    assert os.listdir(tmp_path) == ["script.py"]


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]
