"""What runs in one process, on one node or in turn is left alone; its twin on many ranks is not."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
from torch.nn.parallel import DataParallel, DistributedDataParallel
"""
REPLICAS = """
def embed(loader, epochs):
    for _ in range(epochs):
        for batch in loader:
            print(batch)

loader = DataLoader(range(8), sampler=DistributedSampler(range(8), num_replicas=REPLICAS, rank=RANK))
embed(loader, EPOCHS)
torch.save({"embedding": 1}, "embedding.pt")
"""
TOOL = """
def setup(args):
    if args.local_rank != -1:
        dist.init_process_group("nccl")

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--shard_id", type=int)
args = parser.parse_args()
setup(args)
vectors = torch.nn.Linear(4, 4)(torch.ones(2, 4))
MORE
with open(f"out_{args.shard_id}", "wb") as stream:
    stream.write(vectors)
"""
THREADED = """
def save(args, model, rank):
    if isinstance(model, WANTED):
        torch.save(model.module.state_dict(), "model.pt")
    elif rank == 0:
        torch.save(model.module.state_dict(), "model.pt")

args = argparse.ArgumentParser().parse_args()
dist.init_process_group("nccl")
model = torch.nn.Linear(4, 4)
if args.dataparallel:
    model = DataParallel(model)
elif args.nodes > 1:
    model = DistributedDataParallel(model)
model(torch.ones(4)).sum().backward()
save(args, model, dist.get_rank())
dist.destroy_process_group()
"""
DOWNLOAD = """
def download(path):
    local_rank = int(os.environ["LOCAL_RANK"])
    WAIT
    if os.path.isfile(path):
        return path
    with open(path, "wb") as output:
        output.write(b"")
    if local_rank == 0:
        dist.barrier()
    return path

dist.init_process_group("nccl")
download("model.bin")
dist.destroy_process_group()
"""
WAIT = "if local_rank != 0 and not os.path.isfile(path):\n        dist.barrier()"
IN_TURN = """
from contextlib import contextmanager

@contextmanager
def zero_first(rank):
    if rank not in [-1, 0]:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()

dist.init_process_group("nccl")
with zero_first(dist.get_rank()):
    if TEST:
        with open("cache.pk", "wb") as stream:
            stream.write(b"")
dist.destroy_process_group()
"""
CONJUNCTION = """
class Tracker:
    def save(self, path):
        with open(path, "w") as stream:
            stream.write("x")

def worker(gpu, tracking):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:12355", rank=gpu, world_size=2)
    if TEST:
        tracker = Tracker()
    else:
        tracker = None
    if tracker:
        tracker.save("memory.json")
    dist.destroy_process_group()

mp.spawn(worker, (os.environ.get("TRACK"),), nprocs=2)
"""
FILM = """
import concurrent.futures

class Film:
    def __init__(self, path):
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=2)
        self.path = path

    def add(self, frames):
        self.pool.submit(self.write, frames)

    def write(self, frames):
        with open(self.path, "w") as stream:
            stream.write(frames)

def worker(rank):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:12355", rank=rank, world_size=2)
    WORK
    dist.destroy_process_group()

mp.spawn(worker, (), nprocs=2)
MORE
"""
DEVICE = """
BEFORE
dist.init_process_group("nccl", MORE)
torch.cuda.set_device(DEVICE)
dist.destroy_process_group()
"""
SWITCH = """
import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", KIND)
args = parser.parse_args()
engine, _, _, _ = deepspeed.initialize(model=torch.nn.Linear(1, 1))
gpu = args.gpu
if not gpu:
    engine.save_checkpoint("out")
"""
PREPARED = """
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(1, 1)
loader = DataLoader(range(8), sampler=DistributedSampler(range(8)))
MADE
for epoch in range(3):
    for batch in loader:
        accelerator.backward(model(batch).mean())
"""
MPI = """
from mpi4py import MPI

BEFORE
dist.init_process_group("nccl", init_method="env://")
if dist.get_rank() == 0:
    MPI.COMM_WORLD.bcast(1)
dist.destroy_process_group()
"""
WRITER = """
args = argparse.ArgumentParser().parse_args()
if TEST:
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1))
vectors = torch.nn.Linear(4, 4).to(torch.device("DEVICE"))(torch.ones(2, 4))
with open("out.json", "w") as stream:
    json.dump(vectors, stream)
if dist.is_initialized():
    dist.destroy_process_group()
"""
CONFIGURED = """
from dataclasses import dataclass

@dataclass
class Default:
    value: int

@dataclass
class Config:
    rank: int = Default(0)
    path: str = "out"

class Indexer:
    def __init__(self, config: Config):
        self.rank = config.rank

    def finalize(self):
        if self.TEST:
            return
        torch.save(torch.zeros(1), "index.pt")

def encode(config):
    dist.init_process_group("nccl")
    Indexer(config).finalize()
    dist.destroy_process_group()

encode(load())
"""


def _case(code: str, script: str, **texts: str) -> tuple[str, str]:
    for word, text in texts.items():
        script = script.replace(word, text)
    return code, HEAD + script


SILENT = {
    "one replica, set_epoch": _case("DDP201", REPLICAS, REPLICAS="1", RANK="0", EPOCHS="3"),
    "one replica, save": _case("DDP502", REPLICAS, REPLICAS="1", RANK="0", EPOCHS="3"),
    "one epoch as argument": _case("DDP201", REPLICAS, REPLICAS="2", RANK="0", EPOCHS="1"),
    "a tool": _case("DDP502", TOOL, MORE=""),
    "data parallel": _case("DDP502", THREADED, WANTED="DataParallel"),
    "download after a barrier": _case("DDP502", DOWNLOAD, WAIT=WAIT),
    "rank zero first": _case("DDP502", IN_TURN, TEST='os.path.exists("cache.pk") is False'),
    "object of a conjunction": _case("DDP502", CONJUNCTION, TEST="tracking and gpu == 0"),
    "one of some devices": _case("DDP103", DEVICE, BEFORE="ids = load()", MORE="", DEVICE="ids[dist.get_rank() - 1]"),
    "loop-back": _case(
        "DDP103", DEVICE, BEFORE="", MORE="init_method='tcp://localhost:1'", DEVICE="int(os.environ['RANK'])"
    ),
    "loop-back by the environment": _case(
        "DDP103", DEVICE, BEFORE="os.environ['MASTER_ADDR'] = 'localhost'", MORE="", DEVICE="dist.get_rank()"
    ),
    "a switch named gpu": _case("DDP506", SWITCH, KIND='action="store_true"'),
    "an option named gpu": _case("DDP506", SWITCH, KIND="type=int"),
    "a prepared loader": _case("DDP201", PREPARED, MADE="model, loader = accelerator.prepare(model, loader)"),
    "a tool on one GPU that it names": _case("DDP502", WRITER, DEVICE="cuda:0", TEST="'RANK' in os.environ"),
    "a backend of several": _case("DDP502", WRITER, DEVICE="cuda", TEST="args.backend == 'megatron'"),
    "the rank as device of rank zero": _case(
        "DDP103",
        DEVICE,
        BEFORE="",
        MORE="",
        DEVICE="0)\nif dist.get_rank() == 0:\n    torch.ones(1).cuda(dist.get_rank()",
    ),
    "MPI under torchrun": _case("DDP401", MPI, BEFORE='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'),
    "a rank in a configuration": _case("DDP502", CONFIGURED, TEST="rank > 0"),
}
FOUND = {
    "two replicas": _case("DDP201", REPLICAS, REPLICAS="2", RANK="0", EPOCHS="3"),
    "a tool that shares": _case("DDP502", TOOL, MORE="dist.all_reduce(vectors)"),
    "a trainer": _case("DDP502", TOOL, MORE="vectors.sum().backward()"),
    "either wrapper": _case("DDP502", THREADED, WANTED="(DataParallel, DistributedDataParallel)"),
    "download without a barrier": _case("DDP502", DOWNLOAD, WAIT="pass"),
    "in turn, but each": _case("DDP502", IN_TURN, TEST="True"),
    "object of a flag": _case("DDP502", CONJUNCTION, TEST="tracking"),
    "the rank as device": _case("DDP103", DEVICE, BEFORE="", MORE="", DEVICE="dist.get_rank()"),
    "an unprepared loader": _case("DDP201", PREPARED, MADE="model = accelerator.prepare(model)"),
    "MPI": _case("DDP401", MPI, BEFORE='os.environ["RANK"] = str(MPI.COMM_WORLD.Get_rank())'),
    "a tool on its GPU": _case("DDP502", WRITER, DEVICE="cuda", TEST="'RANK' in os.environ"),
    "another field": _case("DDP502", CONFIGURED, TEST="path"),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_one_process_does_is_left_alone(name: str, lint: Any) -> None:
    code, script = SILENT[name]
    others = {"a tool": {"DDP101"}, "one epoch as argument": {"DDP502"}, "a prepared loader": {"DDP211"}}.get(
        name, set()
    )
    assert lint(lint.imports + script).serious.codes == others - {code}


@pytest.mark.parametrize("name", FOUND)
def test_its_twin_on_many_ranks_is_found(name: str, lint: Any) -> None:
    code, script = FOUND[name]
    assert code in lint(lint.imports + script).serious.codes


def test_a_thread_of_what_starts_the_ranks_is_in_one_process_and_a_thread_of_a_rank_is_not(lint: Any) -> None:
    add = 'Film("film.mp4").add("frames")'
    assert lint.body(FILM.replace("WORK", "pass").replace("MORE", add)).of("DDP502") == []
    assert len(lint.body(FILM.replace("WORK", add).replace("MORE", "")).of("DDP502")) == 1


WRITERS = """
import os

dist.init_process_group("gloo")

class Writer:
    def close(self):
        torch.save({}, "stats.pt")

def writers():
    made = []
    if TEST:
        return made
    made.append(Writer())
    return made

for writer in writers():
    writer.close()
"""


def test_what_one_rank_alone_puts_into_a_list_is_not_in_that_which_the_others_were_given_before(lint: Any) -> None:
    assert lint.body(WRITERS.replace("TEST", "dist.get_rank() != 0")).of("DDP502") == []
    assert len(lint.body(WRITERS.replace("TEST", "'QUIET' in os.environ")).of("DDP502")) == 1


MERGING = """
from lightning.fabric import Fabric

def merge(path):
    fabric = Fabric(devices=DEVICES, accelerator="cpu")
    torch.save({}, path)

dist.init_process_group("gloo")
merge("merged.pt")
"""


def test_a_function_that_makes_a_launcher_of_one_device_is_one_process(lint: Any) -> None:
    assert lint.body(MERGING.replace("DEVICES", "1")).of("DDP502") == []
    assert len(lint.body(MERGING.replace("DEVICES", "4")).of("DDP502")) == 1
