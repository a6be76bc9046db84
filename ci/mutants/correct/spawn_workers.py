"""Starts its own workers: python spawn_workers.py --epochs 2."""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
    else:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def make_data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(320, 12, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(12, 24)
        self.relu = nn.ReLU()
        self.head = nn.Linear(24, 2)

    def forward(self, x):
        return self.head(self.relu(self.net1(x)))


def fit(rank, args):
    torch.manual_seed(0)
    device = torch.device(f"cuda:{rank}" if torch.cuda.is_available() else "cpu")
    dataset = make_data()
    sampler = DistributedSampler(dataset, num_replicas=args.gpus, rank=rank, shuffle=True, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = ToyModel().to(device)
    if args.weights:
        model.load_state_dict(torch.load(args.weights, map_location=device))
    ddp_model = DDP(model, device_ids=[rank] if torch.cuda.is_available() else None)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(1, device=device)
        for x, y in loader:
            optimizer.zero_grad()
            outputs = ddp_model(x.to(device))
            loss = loss_fn(outputs, y.to(device))
            loss.backward()
            optimizer.step()
            running += loss.detach()
        dist.all_reduce(running, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(f"epoch {epoch}: {running.item() / (args.gpus * len(loader)):.4f}")

    if rank == 0:
        os.makedirs(args.save_dir, exist_ok=True)
        target = os.path.join(args.save_dir, "toy.pt")
        torch.save(ddp_model.module.state_dict(), target + ".new")
        os.replace(target + ".new", target)


def worker(rank, args, port):
    setup(rank, args.gpus, port)
    fit(rank, args)
    cleanup()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--weights", default="")
    parser.add_argument("--save-dir", default="runs/toy")
    args = parser.parse_args()
    mp.spawn(worker, args=(args, free_port()), nprocs=args.gpus, join=True)


if __name__ == "__main__":
    main()
