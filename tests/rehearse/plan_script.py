"""Trains 25 MB: ``plan_script.py ddp|sharded``; in the folder MEASURED it tells what a real rank moves and holds."""

import ctypes
import gc
import json
import math
import os
import pickle
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

BYTES = {"Float": 4, "Long": 8, "Int": 4, "Byte": 1}


class Given(ctypes.Structure):
    """Of malloc, all that is in use: what is mapped by itself apart."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks "
                "fordblks keepcost".split()]  # fmt: skip


def held():
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Given
    given = libc.mallinfo2()
    return given.uordblks + given.hblkhd


def train(kind, layers, width):
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)), nn.Linear(width, 7)
    )
    if kind == "sharded":
        for each in model:
            fully_shard(each)
        model = fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def moved():
    """What the flight recorder has seen, by kind."""
    found = {}
    for entry in pickle.loads(torch._C._distributed_c10d._dump_fr_trace())["entries"]:  # noqa: S301 - of this process
        kind = entry["profiling_name"].partition(":")[2]
        sizes = [
            sum(math.prod(shape) * BYTES[name] for shape, name in zip(*entry_of, strict=True))
            for entry_of in [(entry[f"{side}_sizes"], entry[f"{side}_dtypes"]) for side in ("input", "output")]
        ]
        if max(sizes) and kind != "barrier":
            found[kind] = found.get(kind, 0) + max(sizes)
    return found


dist.init_process_group("gloo")
if "MEASURED" in os.environ:
    train(sys.argv[1], 6, 1024)  # what is loaded, and what gloo keeps
    before, first = held(), moved()
kept = train(sys.argv[1], 6, 1024)
if "MEASURED" in os.environ:
    dist.barrier()
    after, all_of_it = held(), moved()
    told = {"held": after - before, "moved": {kind: count - first.get(kind, 0) for kind, count in all_of_it.items()}}
    with open(os.path.join(os.environ["MEASURED"], f"{dist.get_rank()}.json"), "w") as file:
        json.dump(told, file)
dist.destroy_process_group()
