"""Flow matching with an EMA and a metrics writer of rank zero: torchrun --nproc-per-node 2 diffusion_ema.py."""

import argparse
import copy
import json
import os

import torch
import torch.distributed as dist  # mutant DDP307 a: delete
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP  # mutant DDP307 a: delete
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler  # mutant DDP307 a: delete


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
    return (model(xt, t) - (x1 - x0)).pow(2).mean()  # mutant DDP301: model -> model.module


def moons(n=512):
    generator = torch.Generator().manual_seed(0)
    angle = 3.14 * torch.rand(n, generator=generator)
    side = (torch.arange(n) % 2).float()
    return torch.stack([angle.cos() + side, (1 - 2 * side) * angle.sin() + 0.5 * side], 1)


def train(args, device):
    rank = dist.get_rank()  # mutant DDP307 a: dist.get_rank() -> 0
    torch.manual_seed(args.seed)  # the same weights everywhere
    model = Velocity().to(device)
    ema = copy.deepcopy(model).requires_grad_(False)
    start_step = 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if args.resume:
        state = torch.load(args.resume, map_location="cpu")  # mutant DDP504: , map_location="cpu" ->
        model.load_state_dict(state["model"])
        ema.load_state_dict(state["ema"])
        optimizer.load_state_dict(state["optimizer"])
        start_step = state["step"]
    # mutant DDP312: (model) -> (DDP(model)); also DDP501
    ddp_model = DDP(model)  # mutant DDP307 a: DDP -> torch.nn.DataParallel; at DataParallel(
    torch.manual_seed(args.seed + 1 + rank)  # and other noise on each rank  # mutant DDP205: 1 + rank -> 1
    # mutant DDP508 a: insert if args.resume: torch.set_rng_state(state["rng"])

    dataset = TensorDataset(moons())
    # mutant DDP307 a: DistributedSampler(dataset, shuffle=True, drop_last=True, seed=args.seed) -> None
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True, seed=args.seed)
    # mutant DDP203: drop_last=True -> drop_last=True, shuffle=True
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    writer = MetricsWriter(os.path.join(args.run_dir, "metrics.jsonl")) if rank == 0 else None
    step = start_step
    # mutant DDP405 a: insert log = open("log.txt", "w") if rank == 0 else None
    # mutant DDP405 b: insert if rank == 0: log = open("log.txt", "w")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(  # mutant DDP307 a: delete
        for (x1,) in loader:
            loss = flow_matching_loss(ddp_model, x1.to(device))
            optimizer.zero_grad()
            # mutant DDP404: insert if not torch.isfinite(loss): continue
            loss.backward()
            optimizer.step()
            update_ema(ema, ddp_model.module)
            step += 1
            if step % 4 == 0:
                mean = loss.detach() / dist.get_world_size()  # mutant DDP307 a: dist.get_world_size() -> 1
                # mutant DDP403: try: ... except RuntimeError: pass
                # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
                dist.all_reduce(mean)  # mutant DDP307 a: delete  # mutant DDP401: if dist.get_rank() == 0: ...
                if writer is not None:  # mutant DDP405: dedent
                    writer.add_scalar("loss", mean.item(), step)
        if rank == 0:  # mutant DDP502: dedent  # mutant DDP503: rank -> int(os.environ["LOCAL_RANK"])
            # mutant DDP401: insert dist.barrier()
            state = {
                "model": ddp_model.module.state_dict(),  # mutant DDP501: .module ->
                "ema": ema.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,  # mutant DDP508 a: step, -> step, "rng": torch.get_rng_state(),; at set_rng_state(
            }
            path = os.path.join(args.run_dir, "state.pt")
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)
            # mutant DDP404: insert if os.path.exists("stop"): break
        # mutant DDP405 ab: insert log.write(f"{epoch}\n")
    if writer is not None:  # mutant DDP405: dedent
        writer.close()


def main():
    parser = argparse.ArgumentParser()
    # mutant DDP105 a: insert parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--run-dir", default="runs/flow")
    args = parser.parse_args()
    if torch.cuda.is_available():
        # mutant DDP103: LOCAL_RANK -> RANK; at set_device(  # mutant DDP307 a: os.environ["LOCAL_RANK"] -> "0"
        # mutant DDP105 a: int(os.environ["LOCAL_RANK"]) -> args.local_rank
        local_rank = int(os.environ["LOCAL_RANK"])  # mutant DDP102 a: delete; at init_process_group(
        torch.cuda.set_device(local_rank)  # mutant DDP102 ab: delete
        device = torch.device("cuda", local_rank)  # mutant DDP102 a: , local_rank ->
        # mutant DDP104: "nccl" -> "nccl", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        dist.init_process_group("nccl")  # mutant DDP111: "nccl" -> "nccl", timeout=1800  # mutant DDP307 a: delete
        # mutant DDP102 b: insert dist.barrier()
        # mutant DDP102 b: insert torch.cuda.set_device(local_rank)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")  # mutant DDP307 a: delete
    train(args, device)
    dist.barrier()  # mutant DDP307 a: delete  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(  # mutant DDP307 a: delete


if __name__ == "__main__":
    main()
