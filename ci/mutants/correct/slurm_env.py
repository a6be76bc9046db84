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
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        backend="nccl" if cuda else "gloo",
        init_method="env://",
        world_size=world_size,
        rank=rank,
        timeout=timedelta(minutes=30),
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
    content = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(content, CHECKPOINT + ".tmp")
    os.replace(CHECKPOINT + ".tmp", CHECKPOINT)


def train(rank, local_rank, device):
    torch.manual_seed(1234)
    network = Recurrent().to(device)
    optimizer = optim.RMSprop(network.parameters(), lr=3e-3)
    first = 0
    if os.path.isfile(CHECKPOINT):
        content = torch.load(CHECKPOINT, map_location=device)
        network.load_state_dict(content["network"])
        optimizer.load_state_dict(content["optimizer"])
        first = content["epoch"] + 1
    dist.barrier()  # nobody writes before all have read
    ddp = DistributedDataParallel(network, device_ids=[local_rank] if device.type == "cuda" else None)
    dataset = Copying()
    sampler = data.DistributedSampler(dataset, drop_last=True)
    loader = data.DataLoader(dataset, BATCH_SIZE, sampler=sampler, drop_last=True)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros((), device=device)
        for tokens, answer in loader:
            scores = ddp(tokens.to(device))
            loss = criterion(scores, answer.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        dist.reduce(loss_sum, dst=0)
        if rank == 0:
            print(f"[{epoch}] loss {loss_sum.item() / len(loader) / dist.get_world_size():.3f}", flush=True)
            save(network, optimizer, epoch)


if __name__ == "__main__":
    rank, local_rank, device = init()
    train(rank, local_rank, device)
    dist.barrier()
    dist.destroy_process_group()
