"""Training scripts that clip and weigh by themselves, one for each word on the command line; no test by itself.

torchrun --nproc-per-node 2 by_hand_script.py shards [wrong]     # with one defect
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

NAME, WRONG = sys.argv[1], "wrong" in sys.argv[2:]


def scale(squares):
    """As a clipping by 0.1."""
    return (0.1 / squares.sqrt()).clamp(max=1.0)


def shards():
    """Each rank steps on its half of all parameters, which lie in one tensor. Wrong: its norm is that of the half."""
    model = nn.Linear(7, 1)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    half = flat.numel() // 2
    mine = torch.zeros(half)
    for _ in range(3):
        nn.utils.vector_to_parameters(flat, model.parameters())
        model.zero_grad()
        model(torch.randn(8, 7)).square().mean().backward()
        whole = torch.cat([each.grad.flatten() for each in model.parameters()]) / dist.get_world_size()
        dist.reduce_scatter_tensor(mine, whole)
        squares = mine.square().sum()
        if not WRONG:
            dist.all_reduce(squares)
        mine.mul_(scale(squares))
        part = flat[dist.get_rank() * half :][:half] - 0.1 * mine
        dist.all_gather_into_tensor(flat, part)


def layers():
    """Each rank has a layer of its own to step on, which it scales by that layer's norm, and a row of numbers that are
    no gradient."""
    held = [nn.Linear(4, 4, bias=False) for _ in range(dist.get_world_size())]
    mine, row, whole = torch.zeros(16), torch.zeros(4), torch.zeros(16 * len(held))
    for _ in range(3):
        for each in held:
            each.zero_grad()
        nn.Sequential(*held)(torch.randn(8, 4)).square().mean().backward()
        dist.reduce_scatter_tensor(mine, torch.cat([each.weight.grad.flatten() for each in held]))
        dist.reduce_scatter_tensor(row, torch.rand(4 * len(held)))
        row /= row.sum()
        mine *= 0.1 / mine.norm()
        part = held[dist.get_rank()].weight.detach().flatten() - mine
        dist.all_gather_into_tensor(whole, part)
        for each, new in zip(held, whole.chunk(len(held)), strict=True):
            each.weight.data.copy_(new.view(4, 4))


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def parts():
    """A layer lies on both ranks in parts, and its bias on each. Wrong: the square of the latter counts twice."""
    whole, bias = nn.Linear(6, 1, bias=False), nn.Parameter(torch.ones(1))
    mine = nn.Parameter(whole.weight.detach().chunk(2, 1)[dist.get_rank()].clone())
    optimizer = torch.optim.SGD([mine, bias], lr=0.1)
    for _ in range(3):
        x = torch.randn(8, 6)
        optimizer.zero_grad()
        (Add.apply(x.chunk(2, 1)[dist.get_rank()] @ mine.T) + bias).square().mean().backward()
        squares = mine.grad.square().sum()
        if WRONG or dist.get_rank() == 0:
            squares = squares + bias.grad.square().sum()
        dist.all_reduce(squares)
        for each in (mine, bias):
            each.grad.mul_(scale(squares))
        optimizer.step()


def counts():
    """Each rank has other numbers of targets. Wrong: its mean counts as much as the other's."""
    model = nn.Linear(6, 4)
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        targets = torch.randint(4, (16,))
        targets[: 12 * dist.get_rank()] = -100
        mine = (targets != -100).sum()
        total = mine.clone()
        dist.all_reduce(total)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 6)), targets).backward()
        for each in model.parameters():
            if not WRONG:
                each.grad.data *= mine / total
            dist.all_reduce(each.grad)
            if WRONG:
                each.grad /= dist.get_world_size()
        optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
{"shards": shards, "layers": layers, "parts": parts, "counts": counts}[NAME]()
dist.destroy_process_group()
