"""Flow matching with an EMA and a metrics writer of rank zero: torchrun --nproc-per-node 2 diffusion_ema.py."""

import argparse
import copy
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class MetricsWriter:
    """Lines of JSON."""

    def __init__(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.stream = open(path, "w")

    def add_scalar(self, name, value, step):
        self.stream.write(json.dumps({"name": name, "value": value, "step": step}) + "\n")

    def close(self):
        self.stream.close()


class Velocity(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None]], 1))


@torch.no_grad()
def update_ema(ema_model, model, decay=0.99):
    for ema_param, param in zip(ema_model.parameters(), model.parameters()):
        ema_param.lerp_(param, 1 - decay)


def flow_matching_loss(model, x1):
    x0 = torch.randn_like(x1)
    t = torch.rand(len(x1), device=x1.device)
    xt = torch.lerp(x0, x1, t[:, None])
    return (model(xt, t) - (x1 - x0)).pow(2).mean()


def moons(n=512):
    generator = torch.Generator().manual_seed(0)
    angle = 3.14 * torch.rand(n, generator=generator)
    side = (torch.arange(n) % 2).float()
    return torch.stack([angle.cos() + side, (1 - 2 * side) * angle.sin() + 0.5 * side], 1)


def train(args, device):
    rank = dist.get_rank()
    torch.manual_seed(args.seed)  # the same weights everywhere
    model = Velocity().to(device)
    ema = copy.deepcopy(model).requires_grad_(False)
    start_step = 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if args.resume:
        state = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(state["model"])
        ema.load_state_dict(state["ema"])
        optimizer.load_state_dict(state["optimizer"])
        start_step = state["step"]
    ddp_model = DDP(model)
    torch.manual_seed(args.seed + 1 + rank)  # and other noise on each rank

    dataset = TensorDataset(moons())
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    writer = MetricsWriter(os.path.join(args.run_dir, "metrics.jsonl")) if rank == 0 else None
    step = start_step
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x1,) in loader:
            loss = flow_matching_loss(ddp_model, x1.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update_ema(ema, ddp_model.module)
            step += 1
            if step % 4 == 0:
                mean = loss.detach() / dist.get_world_size()
                dist.all_reduce(mean)
                if writer is not None:
                    writer.add_scalar("loss", mean.item(), step)
        if rank == 0:
            state = {
                "model": ddp_model.module.state_dict(),
                "ema": ema.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
            }
            path = os.path.join(args.run_dir, "state.pt")
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)
    if writer is not None:
        writer.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--run-dir", default="runs/flow")
    args = parser.parse_args()
    if torch.cuda.is_available():
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(args, device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
