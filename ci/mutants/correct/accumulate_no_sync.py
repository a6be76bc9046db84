"""Gradient accumulation: torchrun --nproc-per-node 2 accumulate_no_sync.py --accum-steps 4."""

import argparse
import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--num-epochs", type=int, default=2)
parser.add_argument("--micro-batch", type=int, default=8)
parser.add_argument("--accum-steps", type=int, default=4)
parser.add_argument("--learning-rate", type=float, default=5e-3)
parser.add_argument("--ckpt", default="runs/accumulate.pt")


def make_dataset(n=512):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=generator)
    y = (x[:, :3] * x[:, 3:]).sum(1, keepdim=True)
    return TensorDataset(x, y)


def build_model(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 1))
    return DDP(model.to(device))


def train_epoch(model, loader, optimizer, scheduler, args, device):
    criterion = nn.MSELoss()
    optimizer.zero_grad()
    for step, (x, y) in enumerate(loader):
        is_last = (step + 1) % args.accum_steps == 0
        context = contextlib.nullcontext() if is_last else model.no_sync()
        with context:
            prediction = model(x.to(device))
            loss = criterion(prediction, y.to(device))
            (loss / args.accum_steps).backward()
        if is_last:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return loss.detach()


def main():
    args = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    model = build_model(device)
    dataset = make_dataset()
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.micro_batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    updates = args.num_epochs * (len(loader) // args.accum_steps)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=updates)
    for epoch in range(args.num_epochs):
        sampler.set_epoch(epoch)
        last = train_epoch(model, loader, optimizer, scheduler, args, device)
        handle = dist.all_reduce(last, op=dist.ReduceOp.SUM, async_op=True)
        handle.wait()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: last loss {last.item() / dist.get_world_size():.4f}")
    if dist.get_rank() == 0:
        os.makedirs(os.path.dirname(args.ckpt), exist_ok=True)
        torch.save(model.module.state_dict(), args.ckpt)


if __name__ == "__main__":
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(seconds=600))
    main()
    dist.barrier()
    dist.destroy_process_group()
