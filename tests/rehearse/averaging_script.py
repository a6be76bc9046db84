"""A script with moving averages of all kinds, and with what looks like one; no test by itself.

`# observe: DDP309` stands where one in bfloat16 does not move, `DDP318` where weights in it do not.
"""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
SIZE = 4000


def numbers(seed):
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)).bfloat16()


class OwnOptimizer(torch.optim.Optimizer):
    """Its moving average is its own affair."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("average", parameter.grad.clone())
            state["average"].mul_(0.999).add_(parameter.grad, alpha=1 - 0.999)


weight, other = torch.nn.Parameter(numbers(1)), torch.nn.Parameter(numbers(1))
optimizers = (torch.optim.SGD([weight], lr=0.05, momentum=0.9), OwnOptimizer([other]))  # observe: DDP318
averages = [weight.detach().clone() for _ in range(9)]
frozen, momentum, quick = numbers(2), numbers(3), torch.zeros(SIZE).bfloat16()
full = weight.detach().float()
model = torch.nn.Linear(40, 40).bfloat16()
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
grid = numbers(4).view(40, 100).t()
grid_average = grid.clone()
for step in range(4):
    for optimizer in optimizers:
        optimizer.zero_grad()
    (10 * (weight.float() - numbers(5)) ** 2).mean().backward()
    (other.float() ** 2).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
        averages[0].lerp_(weight, 0.001)  # observe: DDP309
        averages[1].lerp_(end=weight, weight=0.01)  # observe: DDP309
        averages[2].mul_(0.999).add_((1 - 0.999) * weight)  # observe: DDP309
        torch._foreach_lerp_(averages[3:5], [weight, weight], 0.001)  # observe: DDP309
        torch._foreach_mul_(averages[5:6], 0.999)
        torch._foreach_add_(averages[5:6], [weight], alpha=1 - 0.999)  # observe: DDP309
        grid_average.lerp_(grid + 1, 0.0001)  # observe: DDP309
        averaged.update_parameters(model)  # observe: DDP309
        # In full precision, or of what stays as it is, or with a decay at which it moves.
        full.lerp_(weight.float(), 0.001)
        frozen.lerp_(numbers(2), 0.001)
        frozen.mul_(0.999).add_((1 - 0.999) * numbers(2))
        quick.lerp_(numbers(6), 0.1)
        # Momentum, decay of weights, and an update.
        momentum.mul_(0.9).add_(numbers(7 + step))
        weight.mul_(1 - 0.01 * 0.1).add_(numbers(8), alpha=-0.01)
        other.mul_(0.95).add_(numbers(9 + step), alpha=1)
    averages[6].data.mul_(0.999).add_(weight.data, alpha=1 - 0.999)  # observe: DDP309
