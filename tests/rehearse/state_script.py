"""Models whose state differs between ranks by design, or is the same on all of them, one after the other; no test by
itself. With a word: with one that is not.
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.parametrizations import spectral_norm

STEPS = 4


def train(model, parameters, loss=lambda found, y: nn.functional.mse_loss(found, y), after=lambda: None):
    """Some steps on batches of the rank's own."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(8, 4, generator=draw)
        optimizer.zero_grad()
        loss(model(x), x[:, :1]).backward()
        optimizer.step()
        after()


def net(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Tanh(), nn.Linear(6, 1))


class Counts(nn.Module):
    """Keeps what nobody reads, a mask that is drawn anew each time, and numbers of the rank."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mask", torch.ones(6))
        self.register_buffer("rank", torch.tensor(float(dist.get_rank())))

    def forward(self, x):
        self.seen += x.detach().abs().mean()
        self.mask.bernoulli_(0.8)
        return x * self.mask + 0 * self.rank


class Carried(nn.Module):
    """Carries the state of each of its rows to the next call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("hidden", torch.zeros(8, 6))

    def forward(self, x):
        out = torch.tanh(x + self.hidden)
        self.hidden = out.detach()
        return out


class Experts(nn.Module):
    """One expert on each rank, with a bias that follows what it was sent."""

    def __init__(self):
        super().__init__()
        self.expert = nn.Linear(6, 6)
        self.register_buffer("bias", torch.zeros(6))

    def forward(self, x):
        sent = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(sent, x.detach())
        self.bias.lerp_(torch.stack(sent)[dist.get_rank()].mean((0, 1)).expand(6), 0.1)
        return x + self.expert(x) + self.bias


def statistics():
    torch.manual_seed(dist.get_rank())
    model = DDP(net(nn.BatchNorm1d(6), Counts(), Carried()), broadcast_buffers=False)
    train(model, model.parameters())


def averages():
    """A teacher, an average of one rank, and an average that takes the place of the weights."""
    inner = net()
    model = DDP(inner)
    teacher, kept = (copy.deepcopy(inner).requires_grad_(False) for _ in range(2))

    def after():
        for average in (teacher, kept)[: 2 if dist.get_rank() == 0 else 1]:
            for old, new in zip(average.parameters(), inner.parameters(), strict=True):
                old.lerp_(new.detach(), 0.1)

    train(lambda x: model(x) + teacher(x), model.parameters(), after=after)
    with torch.no_grad():
        held = copy.deepcopy(inner.state_dict())
        inner.load_state_dict(teacher.state_dict())
        inner.eval()(torch.ones(2, 4))
        inner.load_state_dict(held)
        if dist.get_rank() == 0:
            kept.eval()(torch.ones(2, 4))


def projections():
    """Noise, and a projection that each rank has drawn for itself."""
    model = DDP(net())
    torch.manual_seed(dist.get_rank())
    projection = nn.Linear(1, 3).requires_grad_(False)
    train(lambda x: projection(model(x)).mean(1, keepdim=True), model.parameters())


def normalised():
    model = net()
    model[0] = spectral_norm(model[0])
    model = DDP(model, broadcast_buffers=False)
    train(model, model.parameters())


def experts():
    torch.manual_seed(0)
    model, layer = DDP(nn.Linear(4, 6)), Experts()
    head = DDP(nn.Linear(6, 1))
    train(lambda x: head(layer(model(x))), [*model.parameters(), *layer.parameters(), *head.parameters()])


def rivals():
    """Two networks, each with an optimizer."""
    generator, critic = DDP(net()), DDP(net())
    copied = copy.deepcopy(generator.module).requires_grad_(False)
    one, two = (torch.optim.Adam(each.parameters()) for each in (generator, critic))
    for step in range(STEPS):
        x = torch.randn(8, 4) + dist.get_rank() + step
        two.zero_grad()
        (critic(x).mean() - critic(x * generator(x).detach()).mean() + copied(x).mean()).backward()
        two.step()
        one.zero_grad()
        (-critic(x * generator(x)).mean()).backward()
        one.step()
        for old, new in zip(copied.parameters(), generator.module.parameters(), strict=True):
            old.lerp_(new.detach(), 0.1)


def shards():
    model = net(Counts())
    fully_shard(model)
    train(model, model.parameters())


def scale_of_each_rank():
    """Not right: each rank divides by what it alone has seen."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            self.scale = 0.9 * self.scale + 0.1 * x.detach().std()
            return x / self.scale

    model, scaled = DDP(net()), Scaled()
    train(lambda x: scaled(model(x)), model.parameters())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for case in (statistics, averages, projections, normalised, experts, rivals, shards):
        case()
    if sys.argv[1:]:
        scale_of_each_rank()
    dist.barrier()
    dist.destroy_process_group()
