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
        torch.cuda.set_device(rank)  # mutant DDP102 a: delete
        # mutant DDP111: =world_size -> =world_size, timeout=1800
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        # mutant DDP102 a: insert dist.barrier()
        # mutant DDP102 a: insert torch.cuda.set_device(rank)
    else:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.barrier()  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(


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
    # mutant DDP202: sampler=sampler -> shuffle=True  # mutant DDP203: sampler=sampler -> sampler=sampler, shuffle=True
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = ToyModel().to(device)
    if args.weights:
        model.load_state_dict(torch.load(args.weights, map_location=device))  # mutant DDP504: , map_location=device ->
    # mutant DDP312: model, -> DDP(model),; also DDP501
    ddp_model = DDP(model, device_ids=[rank] if torch.cuda.is_available() else None)
    # mutant DDP324: insert print(ddp_model.net1.in_features)
    # mutant DDP303: insert ddp_model.module.net1 = nn.Linear(12, 24).to(device); at .SGD(
    # mutant DDP303 a: insert gate = torch.nn.PReLU().to(next(ddp_model.parameters()).device)
    loss_fn = nn.CrossEntropyLoss()
    # mutant DDP303 a: ddp_model.parameters() -> [*ddp_model.parameters(), *gate.parameters()]
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=args.lr, momentum=0.9)

    # mutant DDP405 a: insert log = open("log.txt", "w") if rank == 0 else None
    # mutant DDP405 b: insert if rank == 0: log = open("log.txt", "w")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(
        running = torch.zeros(1, device=device)
        for x, y in loader:
            optimizer.zero_grad()
            # mutant DDP301: ddp_model -> ddp_model.module
            outputs = ddp_model(x.to(device))  # mutant DDP301: ddp_model -> model
            # mutant DDP303 a: insert outputs = gate(outputs)
            loss = loss_fn(outputs, y.to(device))
            # mutant DDP404: insert if not torch.isfinite(loss): continue
            loss.backward()
            optimizer.step()
            running += loss.detach()
        # mutant DDP403: try: ... except RuntimeError: pass
        # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
        # mutant DDP410 a: all_reduce(running, -> reduce(running, 0,; at if running.item()
        dist.all_reduce(running, op=dist.ReduceOp.SUM)  # mutant DDP401: if dist.get_rank() == 0: ...
        # mutant DDP410 a: insert if running.item() < 0.1: break
        if rank == 0:
            print(f"epoch {epoch}: {running.item() / (args.gpus * len(loader)):.4f}")
            # mutant DDP404: insert if os.path.exists("stop"): break
        # mutant DDP405 ab: insert log.write(f"{epoch}\n")

    if rank == 0:  # mutant DDP502: dedent
        # mutant DDP401: insert dist.barrier()
        os.makedirs(args.save_dir, exist_ok=True)
        target = os.path.join(args.save_dir, "toy.pt")
        torch.save(ddp_model.module.state_dict(), target + ".new")  # mutant DDP501: .module ->
        os.replace(target + ".new", target)


def worker(rank, args, port):
    setup(rank, args.gpus, port)
    fit(rank, args)
    cleanup()  # mutant DDP101: delete; at init_process_group(


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
