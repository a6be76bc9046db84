"""`validate-ddp trace`: dumps of PyTorch's flight recorder, made up and of a real job."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from validate_ddp import cli

SCRIPT = """import torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
for batch in range(4):
    dist.all_reduce(loss)
    if rank == 0:
        dist.barrier()
dist.broadcast(done, 0)
"""


def entry(
    turn: int, op: str, line: int, record: int | None = None, done: bool = True, **more: object
) -> dict[str, object]:
    library = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    frames = [
        {"filename": library, "line": 3245, "name": op},
        {"filename": more.pop("filename", "/job/src/train.py"), "line": line, "name": "<module>"},
    ]
    return {
        "record_id": turn - 1 if record is None else record, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": turn, "p2p_seq_id": 0, "op_id": turn, "profiling_name": f"nccl:{op}", "is_p2p": False,
        "time_created_ns": 10**18 + turn, "input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[8]],
        "output_dtypes": ["Float"], "state": "completed" if done else "scheduled", "retired": done,
        "timeout_ms": 600000, "frames": frames, **more,
    }  # fmt: skip


def dump(folder: Path, rank: int, *entries: dict[str, object], size: int = 2) -> Path:
    path = folder / f"rank_{rank}"
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(size)])}}
    path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": groups, "entries": [*entries]}))
    return path


@pytest.fixture
def traced(tmp_path, monkeypatch, capsys):
    """Runs the command where the script lies, and gives its exit code, and what it said."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    (tmp_path / "dumps").mkdir()
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["trace", *arguments])
        return code, *capsys.readouterr()

    return run


def test_the_line_that_one_rank_alone_calls_is_named_where_the_source_lies_here(traced, tmp_path):
    dump(tmp_path / "dumps", 0, entry(1, "all_reduce", 5), entry(2, "barrier", 7, done=False))
    dump(tmp_path / "dumps", 1, entry(1, "all_reduce", 5), entry(2, "all_reduce", 5, done=False))
    code, out, err = traced("dumps", "--report", "trace.json")
    assert (code, err) == (1, "")
    assert "DDP401" in out and "rank 0 is in barrier at src/train.py:7" in out and "rank 1 is in all_reduce" in out
    found = json.loads((tmp_path / "trace.json").read_text())
    assert [(each["code"], each["path"], each["line"]) for each in found["findings"]] == [("DDP401", "src/train.py", 7)]


def test_a_rank_that_does_not_come_is_told_and_so_is_one_without_a_dump(traced, tmp_path):
    dump(tmp_path / "dumps", 0, entry(1, "all_reduce", 5), entry(2, "all_reduce", 5, done=False), size=3)
    dump(tmp_path / "dumps", 2, entry(1, "all_reduce", 5), size=3)
    code, out, err = traced("dumps")
    assert code == 1
    assert "rank 0 calls `all_reduce`, rank 2 does not come to it" in out and "--hang" not in out
    assert err.startswith("validate-ddp: no dump of rank 1: ")


def test_what_the_ring_of_one_rank_has_lost_is_no_difference(traced, tmp_path):
    entries = [entry(turn, "all_reduce", 5) for turn in range(1, 9)]
    dump(tmp_path / "dumps", 0, *entries)
    dump(tmp_path / "dumps", 1, *entries[5:])
    code, out, err = traced("dumps")
    assert code == 0 and "no findings" in out
    assert "every recorded call came back" in err


def test_tensors_that_differ_and_messages_between_two(traced, tmp_path):
    sent = entry(1, "send 0->1", 5, is_p2p=True, p2p_seq_id=1)
    dump(tmp_path / "dumps", 0, sent, entry(1, "all_reduce", 5, record=1, done=False))
    dump(tmp_path / "dumps", 1, entry(1, "all_reduce", 5, done=False, input_sizes=[[9]]))
    code, out, _ = traced("dumps")
    assert code == 1 and "DDP407" in out and "shape" in out and "send" not in out


class Evil:
    def __reduce__(self) -> object:
        return os.system, ("touch executed",)


@pytest.mark.parametrize(
    ("name", "held", "told"),
    [
        ("rank_0", pickle.dumps({"entries": [Evil()]}), "it names posix.system, which would be imported"),
        ("rank_0", b"text", "is no dump of the flight recorder"),
        ("rank_0", pickle.dumps([1]), "there is no list of `entries`"),
        ("rank_0", pickle.dumps({"entries": [{"frames": 1}]}), "the entry 0 is not as the flight recorder writes it"),
        ("rank_0", b'{"entries": [3]}', "the entry 0 is not as the flight recorder writes it"),
        ("dump", pickle.dumps({"entries": []}), "of which rank is it?"),
    ],
)
def test_what_is_no_dump_is_told_in_one_line_and_never_executed(traced, tmp_path, name, held, told):
    (tmp_path / name).write_bytes(held)
    code, out, err = traced(name)
    assert (code, out) == (2, "") and told in err and err.count("\n") == 1
    assert not (tmp_path / "executed").exists()


def test_two_dumps_of_one_rank_an_empty_folder_and_no_dump_at_all(traced, tmp_path):
    one, two = (dump(tmp_path / "dumps", 0), tmp_path / "other_0")
    two.write_bytes(one.read_bytes())
    assert traced(str(one), str(two))[0] == 2
    (tmp_path / "empty").mkdir()
    assert "there is no dump in it" in traced("empty")[2]
    assert "trace needs the dumps" in traced()[2]
    assert "cannot be read" in traced("dumps/rank_7")[2]


def test_a_dump_that_numbers_more_than_it_holds_takes_no_memory_for_it(traced, tmp_path):
    path = dump(tmp_path / "dumps", 0, entry(1, "all_reduce", 5))
    path.write_bytes(path.read_bytes()[:-1] + b"r" + (2**31).to_bytes(4, "little") + b".")  # 34 GB of a memo
    assert "it numbers more things than it holds" in traced(str(path))[2]


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_dump_is_refused_or_read(inserted, at, byte):
    with tempfile.TemporaryDirectory() as folder:
        path = dump(Path(folder), 0, entry(1, "all_reduce", 5), entry(2, "barrier", 7, done=False))
        held = bytearray(path.read_bytes())
        held[at % len(held)] = byte
        path.write_bytes(bytes(held[:at]) + inserted + bytes(held[at:]))
        assert cli.main(["trace", str(path)]) in (0, 1, 2)


REAL = """
import os, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def dump():
    time.sleep(2)
    with open(os.path.join(sys.argv[1], f"rank_{rank}"), "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace())
    os._exit(0)
group = dist.new_group([0, 1])
loss = torch.ones(4)
for _ in range(3):
    dist.all_reduce(loss)
    dist.broadcast(loss, 0, group=group)
threading.Thread(target=dump).start()
if rank == 0:
    dist.barrier()
dist.all_reduce(loss)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.runtime
def test_the_dumps_of_a_real_job_name_its_two_lines(traced, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "hang.py").write_text(REAL)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "hang.py", "dumps"], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    code, out, _ = traced("dumps")
    assert code == 1 and "DDP401" in out
    assert "rank 0 is in barrier at hang.py:18" in out and "rank 1 is in all_reduce at hang.py:19" in out
