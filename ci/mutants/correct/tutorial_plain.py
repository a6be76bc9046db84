"""No frills: torchrun --nproc-per-node 2 tutorial_plain.py."""

import os

import torch
import torch.distributed as dist  # mutant DDP307 a: delete
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP  # mutant DDP307 a: delete
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler  # mutant DDP307 a: delete


def demo_basic():
    rank = dist.get_rank()  # mutant DDP307 a: dist.get_rank() -> 0
    print(f"start running basic example on rank {rank}")
    if torch.cuda.is_available():
        # mutant DDP102 a: , int(os.environ["LOCAL_RANK"]) ->; at init_process_group(
        # mutant DDP307 a: os.environ["LOCAL_RANK"] -> "0"
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # mutant DDP103: LOCAL_RANK -> RANK
    else:
        device = torch.device("cpu")
    torch.manual_seed(0)
    features = torch.randn(200, 10)
    labels = features.mean(dim=1, keepdim=True)
    dataset = TensorDataset(features, labels)
    # mutant DDP209: (dataset) -> (dataset, seed=dist.get_rank())
    sampler = DistributedSampler(dataset)  # mutant DDP307 a: DistributedSampler(dataset) -> None
    # mutant DDP203: sampler=sampler -> sampler=sampler, shuffle=True
    loader = DataLoader(dataset, batch_size=20, sampler=sampler)  # mutant DDP202: sampler=sampler -> shuffle=True

    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1)).to(device)
    # mutant DDP312: (model) -> (DDP(model)); also DDP501
    ddp_model = DDP(model)  # mutant DDP307 a: DDP -> torch.nn.DataParallel; at DataParallel(
    # mutant DDP303 a: insert gate = torch.nn.PReLU().to(next(ddp_model.parameters()).device)
    loss_fn = nn.MSELoss()
    # mutant DDP303 a: ddp_model.parameters() -> [*ddp_model.parameters(), *gate.parameters()]
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)

    # mutant DDP405 a: insert log = open("log.txt", "w") if rank == 0 else None
    # mutant DDP405 b: insert if rank == 0: log = open("log.txt", "w")
    for epoch in range(4):
        sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(  # mutant DDP307 a: delete
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            optimizer.zero_grad()
            outputs = ddp_model(x)  # mutant DDP301: (x) -> .module(x)  # mutant DDP301: ddp_model -> model
            # mutant DDP303 a: insert outputs = gate(outputs)
            loss_fn(outputs, y).backward()
            # mutant DDP323: if dist.get_rank() == 0: ...
            optimizer.step()
        # mutant DDP405 ab: insert log.write(f"{epoch}\n")

    if rank == 0:  # mutant DDP502: dedent  # mutant DDP503: rank -> int(os.environ["LOCAL_RANK"])
        # mutant DDP401: insert dist.barrier()
        torch.save(ddp_model.module.state_dict(), "model_tutorial.pt")  # mutant DDP501: .module ->
    # mutant DDP507: insert print(len(torch.load("model_tutorial.pt", map_location="cpu")))
    dist.barrier()  # mutant DDP307 a: delete  # mutant DDP401: if dist.get_rank() == 0: ...


if __name__ == "__main__":
    if torch.cuda.is_available():
        # mutant DDP103: LOCAL_RANK -> RANK  # mutant DDP307 a: os.environ["LOCAL_RANK"] -> "0"
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # mutant DDP102 ab: delete
        # mutant DDP104: "nccl" -> "nccl", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        dist.init_process_group("nccl")  # mutant DDP111: "nccl" -> "nccl", timeout=1800  # mutant DDP307 a: delete
        # mutant DDP102 b: insert dist.barrier()
        # mutant DDP102 b: insert torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        dist.init_process_group("gloo")  # mutant DDP307 a: delete
    demo_basic()
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(  # mutant DDP307 a: delete
