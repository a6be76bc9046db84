"""A trainer as users have it: enough of one to be tested on ranks."""

import torch
from torch import nn


def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def loss(model, batch):
    return model(batch).pow(2).mean()


def fit(model, batch, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        print(f"step {step} done")
