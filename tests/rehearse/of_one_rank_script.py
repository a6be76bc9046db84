"""What only one rank does or learns and all of them need: buffers, moving averages of shards, gradients to clear."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 4


class Codes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("codes", torch.zeros(4))

    def forward(self, x):
        found = self.layer(x) - self.codes
        mean = found.detach().mean(0)
        if right:
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        self.codes.mul_(0.9).add_(mean, alpha=0.1)  # observe: DDP321
        return found


def buffers():
    model = torch.nn.parallel.DistributedDataParallel(Codes())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()


def averages():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    average = [each.detach().clone() for each in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()
        if right or dist.get_rank() == 0:
            for mean, each in zip(average, model.parameters(), strict=True):
                mean.mul_(0.9).add_(each.detach(), alpha=1 - 0.9)  # observe: DDP321


def gradients():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters[dist.get_rank() :: 2], lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        model(torch.randn(3, 4)).square().sum().backward()
        for each in parameters:
            dist.all_reduce(each.grad, op=dist.ReduceOp.AVG)  # observe: DDP319
        optimizer.step()
        for at, each in enumerate(parameters):
            dist.broadcast(each.data, src=at % 2)
        (model if right else optimizer).zero_grad()


right = "right" in sys.argv
dist.init_process_group("gloo")
torch.manual_seed(0)
parts = {"buffers": buffers, "averages": averages, "gradients": gradients}
parts[sys.argv[1]]()
dist.destroy_process_group()
