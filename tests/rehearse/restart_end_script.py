"""Takes six steps and saves at its end, over which it goes on when it is started again; its words say what it loses."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
steps = next((int(word[6:]) for word in sys.argv if word.startswith("steps=")), 6)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps if "schedule" in sys.argv else 1)
seen = 0
if os.path.exists("runs/last.pt"):
    held = torch.load("runs/last.pt")
    if "head" in sys.argv:
        held["model"] = {name: each for name, each in held["model"].items() if not name.startswith("2.")}
    model.module.load_state_dict(held["model"], strict=False)
    if "loses" not in sys.argv:
        optimizer.load_state_dict(held["optimizer"])
    schedule.load_state_dict(held["schedule"])
    seen = 0 if "again" in sys.argv else held["seen"]
part = Subset(data, range(seen + dist.get_rank(), 96, dist.get_world_size()))
for number, (x, y) in enumerate(DataLoader(part, batch_size=4)):
    if number == steps:
        break
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    schedule.step()
    seen += len(x) * dist.get_world_size()
if dist.get_rank() == 0:
    os.makedirs("runs", exist_ok=True)
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}
    state["schedule"] = schedule.state_dict()
    torch.save(state, "runs/other.pt" if "elsewhere" in sys.argv else "runs/last.pt")
dist.barrier()
dist.destroy_process_group()
