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
# mutant DDP105 a: insert parser.add_argument("--local_rank", type=int, default=0)
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
    # mutant DDP312: model.to(device) -> DDP(model.to(device)); also DDP501
    return DDP(model.to(device))  # mutant DDP312: (model.to(device)) -> (model).to(device)


def train_epoch(model, loader, optimizer, scheduler, args, device):
    criterion = nn.MSELoss()
    optimizer.zero_grad()
    for step, (x, y) in enumerate(loader):
        # mutant DDP306 a: insert optimizer.zero_grad()
        is_last = (step + 1) % args.accum_steps == 0
        # mutant DDP305: is_last -> step % args.accum_steps == 0
        # mutant DDP305: is_last -> (step + 1) % args.accum_steps == args.accum_steps; at prediction =
        context = contextlib.nullcontext() if is_last else model.no_sync()  # mutant DDP304 a: delete
        # mutant DDP305 a: insert prediction = model(x.to(device)); at backward(
        # mutant DDP305 a: insert loss = criterion(prediction, y.to(device))
        with context:  # mutant DDP304 a: dedent
            prediction = model(x.to(device))  # mutant DDP301: model -> model.module  # mutant DDP305 a: delete
            loss = criterion(prediction, y.to(device))  # mutant DDP305 a: delete
            (loss / args.accum_steps).backward()
        if is_last:
            optimizer.step()
            # mutant DDP323: if dist.get_rank() == 0: ...
            scheduler.step()
            optimizer.zero_grad()  # mutant DDP306 a: delete
    return loss.detach()


def main():
    args = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # mutant DDP103: LOCAL_RANK -> RANK  # mutant DDP105 a: int(os.environ["LOCAL_RANK"]) -> args.local_rank
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # mutant DDP102 a: delete; at init_process_group(
        # mutant DDP102 a: , int(os.environ["LOCAL_RANK"]) ->
        # mutant DDP105 a: int(os.environ["LOCAL_RANK"]) -> args.local_rank
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # mutant DDP103: LOCAL_RANK -> RANK
    model = build_model(device)
    dataset = make_dataset()
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    # mutant DDP202: sampler=sampler -> shuffle=True  # mutant DDP203: drop_last=True -> drop_last=True, shuffle=True
    loader = DataLoader(dataset, batch_size=args.micro_batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    # mutant DDP602: len(loader) -> (len(dataset) // args.micro_batch); at LinearLR(
    # mutant DDP602: len(loader) -> (len(loader.dataset) // loader.batch_size); at LinearLR(
    # mutant DDP602: (len(loader) // args.accum_steps) -> len(loader); at LinearLR(
    updates = args.num_epochs * (len(loader) // args.accum_steps)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=updates)
    for epoch in range(args.num_epochs):
        sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(
        last = train_epoch(model, loader, optimizer, scheduler, args, device)
        # mutant DDP605 a: delete; at print(
        handle = dist.all_reduce(last, op=dist.ReduceOp.SUM, async_op=True)
        handle.wait()  # mutant DDP406: delete; at async_op=  # mutant DDP605 a: delete
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: last loss {last.item() / dist.get_world_size():.4f}")
            # mutant DDP404: insert if os.path.exists("stop"): break
    if dist.get_rank() == 0:  # mutant DDP502: dedent  # mutant DDP503: dist.get_rank() -> int(os.environ["LOCAL_RANK"])
        # mutant DDP401: insert dist.barrier()
        os.makedirs(os.path.dirname(args.ckpt), exist_ok=True)
        torch.save(model.module.state_dict(), args.ckpt)  # mutant DDP501: .module ->


if __name__ == "__main__":
    # mutant DDP104: 600)) -> 600), rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    # mutant DDP111: timedelta(seconds=600) -> 1800
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(seconds=600))
    main()
    dist.barrier()  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(
