"""Autoencoder under fully_shard (FSDP2): torchrun --nproc-per-node 2 fsdp2_shard.py."""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Autoencoder(nn.Module):
    def __init__(self, width=64, code=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.GELU(), nn.Linear(width, 32))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def build_dataset(n=384):
    generator = torch.Generator().manual_seed(9)
    code = torch.randn(n, 4, generator=generator)
    return TensorDataset(code @ torch.randn(4, 32, generator=generator))


def shard(model, device_type):
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    # mutant DDP210 ab: insert from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    # mutant DDP210 a: insert parallelize_module(model.encoder, mesh, {"0": ColwiseParallel()}); at DistributedSampler(
    # mutant DDP210 b: insert parallelize_module(model.decoder, mesh, {"2": ColwiseParallel()}); at DistributedSampler(
    fully_shard(model.encoder, mesh=mesh)
    fully_shard(model.decoder, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def save_full(model, path):
    """Collective: every rank gathers, rank zero writes."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)  # mutant DDP506: if dist.get_rank() == 0: ...
    if dist.get_rank() == 0:  # mutant DDP502: dedent  # mutant DDP503: dist.get_rank() -> int(os.environ["LOCAL_RANK"])
        # mutant DDP401: insert dist.barrier()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save(weights, path)
    # mutant DDP507: insert print("saved", len(torch.load(path, map_location="cpu", weights_only=True)), "tensors")


def train(args, device):
    torch.manual_seed(args.seed)
    dataset = build_dataset()
    # mutant DDP209: drop_last=True -> drop_last=True, seed=args.seed + dist.get_rank()
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    # mutant DDP202: sampler=sampler -> shuffle=True  # mutant DDP203: drop_last=True -> drop_last=True, shuffle=True
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = shard(Autoencoder().to(device), device.type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(
        total = torch.zeros((), device=device)
        for (x,) in loader:
            x = x.to(device)
            loss = nn.functional.mse_loss(model(x), x)
            # mutant DDP404: insert if not torch.isfinite(loss): continue
            # mutant DDP322: insert model.require_backward_grad_sync = False
            # mutant DDP322: with model.no_sync(): ...
            loss.backward()  # mutant DDP404: if torch.isfinite(loss): ...
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        # mutant DDP403: try: ... except RuntimeError: pass
        # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
        dist.all_reduce(total, op=dist.ReduceOp.SUM)  # mutant DDP401: if dist.get_rank() == 0: ...
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader) / dist.get_world_size():.4f}")
            # mutant DDP404: insert if os.path.exists("stop"): break
    save_full(model, args.out)  # mutant DDP506: if dist.get_rank() == 0: ...


def main():
    parser = argparse.ArgumentParser()
    # mutant DDP105 a: insert parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/fsdp2/autoencoder.pt")
    args = parser.parse_args()
    device = torch.device("cpu")
    backend = "gloo"
    if torch.cuda.is_available():
        # mutant DDP105 a: int(os.environ["LOCAL_RANK"]) -> args.local_rank
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # mutant DDP103: LOCAL_RANK -> RANK
        torch.cuda.set_device(device)
        backend = "nccl"
    # mutant DDP104: 15)) -> 15), rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    dist.init_process_group(backend, timeout=timedelta(minutes=15))  # mutant DDP111: timedelta(minutes=15) -> 1800
    train(args, device)
    dist.barrier()  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(


if __name__ == "__main__":
    main()
