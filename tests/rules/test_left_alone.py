"""What real code does right, and what was once reported there: each case is a cause, put as shortly as it goes."""

from __future__ import annotations

from typing import Any

import pytest

CASES = {
    "a model sharded in place beside one that is wrapped": """
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
model, other = DDP(torch.nn.Linear(4, 1)), torch.nn.Linear(4, 1)
fully_shard(other)
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for step in range(4):
    (model(torch.ones(2, 4)) + other(torch.ones(2, 4))).sum().backward()
    optimizer.step()
dist.destroy_process_group()
""",
    "a switch that is on by default": """
parser = argparse.ArgumentParser()
parser.add_argument("--use-ema", action="store_true", default=True)
args = parser.parse_args()
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
ema = torch.nn.BatchNorm1d(4).cuda(local_rank)
model = DDP(torch.nn.BatchNorm1d(4).cuda(local_rank), device_ids=[local_rank])
tested = ema if args.use_ema else model
if dist.get_rank() == 0:
    tested(torch.ones(2, 4))
dist.destroy_process_group()
""",
    "a group that is given as group.WORLD and ended where there is one": """
class World:
    def __init__(self, group):
        self.owned = group is not None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.owned:
            dist.destroy_process_group()


def start():
    dist.init_process_group("gloo")
    return dist.group.WORLD


with World(start() if int(os.environ["WORLD_SIZE"]) > 1 else None):
    dist.barrier(group=dist.group.WORLD)
""",
    "a switch called gpu": """
parser = argparse.ArgumentParser()
parser.add_argument("--gpu", action="store_true")
args = parser.parse_args()
dist.init_process_group("gloo")
if not args.gpu:
    raise SystemExit(1)
dist.barrier()
dist.destroy_process_group()
""",
    "deepspeed destroys the group": """
import deepspeed
import deepspeed.comm as comm

deepspeed.init_distributed()
engine, _, _, _ = deepspeed.initialize(config={}, model=torch.nn.Linear(4, 4))
comm.destroy_process_group()
""",
    "the rank of a process that one node spawned": """
import torch.multiprocessing as mp

def run(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(torch.device("cuda", dist.get_rank()))
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(run, args=(4,), nprocs=4)
""",
    "shares of the data that are chosen by rank": """
from torch.utils.data import Subset, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(20, 4))
mine = range(8) if dist.get_rank() == 0 else range(8, 20)
model = DDP(torch.nn.Linear(4, 1))
with model.join():
    for (x,) in DataLoader(Subset(data, list(mine)), batch_size=4):
        model(x).sum().backward()
dist.destroy_process_group()
""",
    "an optimizer that calls its closure on rank zero": """
dist.init_process_group("gloo")
model = DDP(torch.nn.BatchNorm1d(4))
optimizer = torch.optim.LBFGS(model.parameters())

def closure():
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    dist.all_reduce(loss)
    return loss

if dist.get_rank() == 0:
    optimizer.step(closure)
else:
    closure()
dist.destroy_process_group()
""",
    "weights that are handed out": """
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
model.module.load_state_dict(torch.load(os.path.join("weights", "vgg19-dcbb9e9d.pth")))
model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
""",
    "the state of a sampler": """
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
order = DistributedSampler(range(8))
order.load_state_dict(torch.load("order.pt"))
model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
""",
    "a state gathered on the CPU": """
from torch.distributed.fsdp import FullStateDictConfig

KINDS = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
model.module.load_state_dict(torch.load("last.pt"))
model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
""",
    "an order by a generator of its own": """
import numpy as np

class Shuffled(torch.utils.data.Dataset):
    def __init__(self):
        self.order = self.build()

    def build(self):
        order = np.arange(8)
        np.random.Generator(np.random.PCG64(seed=3)).shuffle(order)
        return order

    def __getitem__(self, index):
        return self.order[index]

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(2, 2))
data = Shuffled()
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in DataLoader(data, sampler=sampler):
        model(batch).sum().backward()
dist.destroy_process_group()
""",
    "a model that either DDP or DeepSpeed wraps": """
import deepspeed

args = argparse.ArgumentParser().parse_args()
dist.init_process_group("nccl")
model = torch.nn.Linear(2, 2)
if args.engine == "ddp":
    model = DDP(model.cuda(int(os.environ["LOCAL_RANK"])))
if args.engine == "deepspeed":
    model, _, _, _ = deepspeed.initialize(args=args, model=model)
model(torch.ones(1, 2)).sum().backward()
if args.engine == "ddp" and dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
""",
    "the rank as a field of a configuration": """
class Config:
    rank = object()
    path = "out"

class Indexer:
    def __init__(self, config: Config):
        self.rank = config.rank

    def save(self):
        if self.rank > 0:
            return
        torch.save(torch.zeros(1), "index.pt")

dist.init_process_group("gloo")
Indexer(Config()).save()
dist.destroy_process_group()
""",
    "an object of rank zero whose stand-in answers on the others": """
class Log:
    def __init__(self, folder):
        self.writer = SummaryWriter(folder)

    def add(self, value, step):
        self.writer.add_scalar("loss", value, step)

class OnlyIf:
    def __init__(self, log, speaks):
        self._log, self._speaks = log, speaks

    @staticmethod
    def nothing(*args, **kwargs):
        pass

    def __getattr__(self, name):
        return getattr(self._log, name) if self._speaks else OnlyIf.nothing

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    log = OnlyIf(Log("runs"), speaks=True)
else:
    log = OnlyIf(None, speaks=False)
for step in range(10):
    log.add(0.5, step)
dist.destroy_process_group()
""",
    "a data set that is told its rank and passes over the others' samples": """
class Lines(torch.utils.data.Dataset):
    def __init__(self, paths, rank=-1, world_size=-1):
        self._load(paths, rank, world_size)

    def _load(self, paths, rank, world_size):
        self.lines, counter = [], 0
        for path in paths:
            lines, counter = self._read(path, rank, world_size, counter)
            self.lines.extend(lines)

    def _read(self, path, rank, world_size, counter):
        lines = []
        with open(path) as file:
            for line in file:
                counter += 1
                if rank > -1 and not counter % world_size == rank:
                    continue
                lines.append(line)
        return lines, counter

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return self.lines[index]

def main():
    lines = Lines(sys.argv[1:], rank=dist.get_rank(), world_size=dist.get_world_size())
    for batch in DataLoader(lines, sampler=torch.utils.data.RandomSampler(lines), batch_size=2):
        model(batch).sum().backward()

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[local_rank])
main()
dist.destroy_process_group()
""",
    "a data set of data sets of which each rank reads its files": """
class One(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        return self.data[index]

class Many(torch.utils.data.Dataset):
    def __init__(self, parts):
        self.parts = parts

    def __getitem__(self, index):
        return self.parts[choose(self.parts)][index]

def load(folder, how):
    files, found = sorted(os.listdir(folder)), []
    if how == "split":
        files = files[dist.get_rank() :: dist.get_world_size()]
    for name in files:
        found.append(torch.load(name, map_location="cpu"))
    return torch.cat(found)

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[local_rank])
data = Many({name: One(load(name, os.environ["HOW"])) for name in sys.argv[1:]})
for batch in DataLoader(data, sampler=torch.utils.data.RandomSampler(data), batch_size=2):
    model(batch).sum().backward()
dist.destroy_process_group()
""",
    "a download of what none of the names in hand is": """
PUBLISHED = {"small": "https://a.b/small.pt", "large": "https://a.b/large.pt"}

def find(name):
    if name in PUBLISHED:
        with open(os.path.basename(PUBLISHED[name]), "wb") as file:
            file.write(requests.get(PUBLISHED[name]).content)
        return os.path.basename(PUBLISHED[name])
    return name

dist.init_process_group("gloo")
model = find("weights/tiny.pt" if os.environ.get("TINY") else "weights/small.pt")
dist.destroy_process_group()
""",
    "a field that the script puts into something unknown": """
def save(path, model):
    torch.save(model.state_dict(), path)

def train(args, model):
    if args.saves:
        save(f"{args.folder}/last.pt", model)

def main(args):
    args.rank = int(os.environ["RANK"])
    args.saves = args.folder is not None and args.rank == 0
    train(args, torch.nn.Linear(2, 2))

dist.init_process_group("gloo")
main(find_configuration(os.environ["CONFIGURATION"]))
dist.destroy_process_group()
""",
    "processes that prepare data": """
import multiprocessing

def prepare(files, number):
    with open("part.bin", "wb") as file:
        for name in files:
            file.write(open(name, "rb").read())

def main():
    for number, files in enumerate(split(os.listdir("."))):
        process = multiprocessing.Process(target=prepare, args=(files, number))
        process.start()

if __name__ == "__main__":
    main()
""",
}


@pytest.mark.parametrize("script", CASES.values(), ids=CASES.keys())
def test_it_is_left_alone(script: str, lint: Any) -> None:
    assert lint(lint.imports + script).serious == []


def test_what_a_getter_gives_hangs_on_its_arguments_each_time(lint: Any) -> None:
    script = """
def is_first(args, local=False):
    return args.local_rank == 0 if local else args.rank == 0


parser = argparse.ArgumentParser()
parser.add_argument("--log-local", action="store_true")
args = parser.parse_args()
dist.init_process_group("nccl")
args.rank, args.local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
if is_first(args, local=args.log_local):
    print("log")
for line in ("one", "two", "three"):
    if is_first(args):
        print(line)
if is_first(args):
    print("four")
if is_first(args):
    torch.save(torch.nn.Linear(2, 2).state_dict(), "last.pt")
dist.destroy_process_group()
"""
    assert lint(lint.imports + script) == []


def test_one_device_made_of_the_rank_is_one_finding_where_it_is_first_used(lint: Any) -> None:
    script = """
def move(batch, device):
    return batch.to(device)


dist.init_process_group("nccl")
device = f"cuda:{dist.get_rank()}"
model = torch.nn.Linear(1, 1).to(device)
move(torch.ones(1), device)
dist.destroy_process_group()
"""
    (found,) = lint(lint.imports + script, "DDP103")
    assert "Linear" in (lint.imports + script).splitlines()[found.line - 1]
    assert found.fix is None and len(found.evidence) == 1
