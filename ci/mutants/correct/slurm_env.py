"""Under SLURM (srun python slurm_env.py) or torchrun; the rendezvous is env:// in both."""

import os
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

EPOCHS = int(os.environ.get("EPOCHS", "2"))
BATCH_SIZE = 16
CHECKPOINT = os.environ.get("CHECKPOINT", "runs/slurm/checkpoint.pt")


def first_host():
    nodes = subprocess.check_output(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], text=True)
    return nodes.split()[0]


def init_from_slurm():
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
    os.environ.setdefault("MASTER_ADDR", first_host())
    os.environ.setdefault("MASTER_PORT", "29500")


def init():
    if "SLURM_PROCID" in os.environ and "RANK" not in os.environ:
        init_from_slurm()
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])  # mutant DDP103: LOCAL_RANK -> RANK; at device_ids=; at set_device(
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank)  # mutant DDP103: local_rank -> rank
    dist.init_process_group(
        backend="nccl" if cuda else "gloo",
        init_method="env://",
        world_size=world_size,  # mutant DDP104: world_size, -> torch.cuda.device_count(),
        rank=rank,  # mutant DDP104: rank=rank -> rank=int(os.environ["LOCAL_RANK"])
        timeout=timedelta(minutes=30),  # mutant DDP111: timedelta(minutes=30) -> 1800
    )
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    return rank, local_rank, device


class Copying(data.Dataset):
    """Sequences whose first token is to be said again."""

    def __init__(self, n=256, length=8, vocabulary=12):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(vocabulary, (n, length), generator=generator)

    def __len__(self):
        return self.tokens.shape[0]

    def __getitem__(self, i):
        return self.tokens[i], self.tokens[i, 0]


class Recurrent(nn.Module):
    def __init__(self, vocabulary=12, hidden=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens):
        states, _ = self.rnn(self.embedding(tokens))
        return self.head(states[:, -1])


def save(network, optimizer, epoch):
    os.makedirs(os.path.dirname(CHECKPOINT), exist_ok=True)
    # mutant DDP508 a: "epoch": epoch -> "epoch": epoch, "rng": torch.get_rng_state(); at set_rng_state(
    content = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(content, CHECKPOINT + ".tmp")
    os.replace(CHECKPOINT + ".tmp", CHECKPOINT)


def train(rank, local_rank, device):
    torch.manual_seed(1234)
    network = Recurrent().to(device)
    optimizer = optim.RMSprop(network.parameters(), lr=3e-3)
    first = 0
    if os.path.isfile(CHECKPOINT):
        content = torch.load(CHECKPOINT, map_location=device)  # mutant DDP504: , map_location=device ->
        network.load_state_dict(content["network"])
        optimizer.load_state_dict(content["optimizer"])
        first = content["epoch"] + 1
        # mutant DDP508 a: insert torch.set_rng_state(content["rng"].cpu())
    dist.barrier()  # nobody writes before all have read  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP312: network -> DistributedDataParallel(network); also DDP501
    ddp = DistributedDataParallel(network, device_ids=[local_rank] if device.type == "cuda" else None)
    dataset = Copying()
    sampler = data.DistributedSampler(dataset, drop_last=True)
    # mutant DDP202: sampler=sampler -> shuffle=True  # mutant DDP203: drop_last=True -> drop_last=True, shuffle=True
    loader = data.DataLoader(dataset, BATCH_SIZE, sampler=sampler, drop_last=True)
    criterion = nn.CrossEntropyLoss()
    # mutant DDP405 a: insert log = open("log.txt", "w") if rank == 0 else None
    # mutant DDP405 b: insert if rank == 0: log = open("log.txt", "w")
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(
        loss_sum = torch.zeros((), device=device)
        for tokens, answer in loader:
            scores = ddp(tokens.to(device))  # mutant DDP301: ddp -> network  # mutant DDP301: ddp -> ddp.module
            loss = criterion(scores, answer.to(device))
            optimizer.zero_grad()
            # mutant DDP404: insert if not torch.isfinite(loss): continue
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        # mutant DDP401: if dist.get_rank() == 0: ...  # mutant DDP403: try: ... except RuntimeError: pass
        dist.reduce(loss_sum, dst=0)  # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
        # mutant DDP503: rank -> int(os.environ["LOCAL_RANK"])
        if rank == 0:  # mutant DDP502: dedent; at torch.save(  # mutant DDP503: rank -> local_rank
            # mutant DDP401: insert dist.barrier()
            print(f"[{epoch}] loss {loss_sum.item() / len(loader) / dist.get_world_size():.3f}", flush=True)
            save(network, optimizer, epoch)  # mutant DDP501: network -> ddp; at .state_dict(
            # mutant DDP404: insert if os.path.exists("stop"): break
        # mutant DDP405 ab: insert log.write(f"{epoch}\n")


if __name__ == "__main__":
    rank, local_rank, device = init()
    train(rank, local_rank, device)
    dist.barrier()  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(
