"""Training scripts that are right, with steps of their own or a number of ranks in them, one for each word; no test by
itself.

torchrun --nproc-per-node 2 partition_steps_script.py own_step
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from partition_script import averaged, main, mse, net, points, sgd, train
from torch.nn.parallel import DistributedDataParallel as DDP


class Dividing(torch.optim.SGD):
    """Gradients have been summed up."""

    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            each.grad /= dist.get_world_size()
        return super().step(closure)


class Reducing(torch.optim.SGD):
    """Gradients are each rank's own."""

    def step(self, closure=None):
        averaged(self.param_groups[0]["params"])
        return super().step(closure)


class Own(torch.optim.Optimizer):
    """Changes parameters itself. reduces: else gradients have been summed up."""

    def __init__(self, parameters, reduces):
        super().__init__(parameters, {"lr": 0.01})
        self.reduces = reduces

    @torch.no_grad()
    def step(self):
        for each in self.param_groups[0]["params"]:
            grad = each.grad.clone()
            if self.reduces:
                dist.all_reduce(grad)
            each -= 0.01 * grad / dist.get_world_size()


def dividing_step():
    model = net()
    train(model, Dividing(model.parameters(), 0.01), points(), reduce=lambda: averaged(model.parameters(), 1))


def reducing_step():
    train(model := net(), Reducing(model.parameters(), 0.01), points())


def own_dividing_step():
    train(model := net(), Own(model.parameters(), False), points(), reduce=lambda: averaged(model.parameters(), 1))


def own_reducing_step():
    train(model := net(), Own(model.parameters(), True), points())


def local_sgd():
    """Models are averaged, and gradients are not."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = net()
    averager = PeriodicModelAverager(period=4, warmup_steps=0)
    optimizer = sgd(model)
    for x, y in points():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())


def local_sgd_by_hand():
    """The same without torch's averager."""
    model = net()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(points()):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        if number % 2:
            for each in model.parameters():
                dist.all_reduce(each.data)
                each.data /= dist.get_world_size()


def number_of_ranks(size=2):
    """The number of ranks stands in the script, and the loss is divided by it."""
    loss = lambda model, x, y: mse(model, x, y) / size  # noqa: E731
    train(model := net(), sgd(model), points(), loss=loss, reduce=lambda: averaged(model.parameters(), 1))


def number_of_gpus(size=2):
    """The same, multiplied, of a loss that is divided by all targets of the step."""

    def loss(model, x, y):
        dist.all_reduce(count := torch.tensor(float(len(x))))
        return F.mse_loss(model(x), y, reduction="sum") * size / count

    train(model := DDP(net()), sgd(model), points(), loss=loss)


def later_models():
    """An outer optimizer, of parameters of no model, steps on what models have moved by in several steps."""
    model = net()
    outer = [each.detach().clone().requires_grad_() for each in model.parameters()]
    optimizer, other = sgd(model), torch.optim.SGD(outer, lr=0.5)
    for number, (x, y) in enumerate(points()):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        if number % 2:
            for old, new in zip(outer, model.parameters(), strict=True):
                old.grad = (old - new).detach()
            averaged(outer)
            other.step()
            for old, new in zip(outer, model.parameters(), strict=True):
                new.data.copy_(old.data)


if __name__ == "__main__":
    main(globals())
