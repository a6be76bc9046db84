"""No frills: torchrun --nproc-per-node 2 tutorial_plain.py."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def demo_basic():
    rank = dist.get_rank()
    print(f"start running basic example on rank {rank}")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    else:
        device = torch.device("cpu")
    torch.manual_seed(0)
    features = torch.randn(200, 10)
    labels = features.mean(dim=1, keepdim=True)
    dataset = TensorDataset(features, labels)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=20, sampler=sampler)

    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1)).to(device)
    ddp_model = DDP(model)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)

    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            optimizer.zero_grad()
            outputs = ddp_model(x)
            loss_fn(outputs, y).backward()
            optimizer.step()

    if rank == 0:
        torch.save(ddp_model.module.state_dict(), "model_tutorial.pt")
    dist.barrier()


if __name__ == "__main__":
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
    demo_basic()
    dist.destroy_process_group()
