"""Training scripts whose optimizers change parameters themselves, one for each word; no test by itself.

torchrun --nproc-per-node 2 partition_update_script.py directions [wrong]     # with one defect, in what a step does
"""

import torch
import torch.distributed as dist
from partition_script import WRONG, main, net, points, train
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP


class Stepping(torch.optim.Optimizer):
    """update: what a gradient is turned into."""

    def __init__(self, model, update, lr=0.01):
        super().__init__(model.parameters(), {"lr": lr})
        self.update = update

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(self.update(each), alpha=-group["lr"])


def sharded():
    torch.manual_seed(0)
    return fully_shard(net())


def direction(grad):
    """The nearest orthogonal matrix."""
    if grad.dim() < 2:
        return grad
    left, _, right = torch.linalg.svd(grad, full_matrices=False)
    return left @ right


def of_rows(each, rows):
    return DTensor.from_local(rows, each.device_mesh, each.placements, shape=each.shape, stride=each.stride())


def directions():
    """Wrong: of the rows that a rank holds, as if they were a matrix."""

    def update(each):
        grad = each.grad
        if WRONG:
            return of_rows(each, direction(grad.to_local()))
        return distribute_tensor(direction(grad.full_tensor()), grad.device_mesh, grad.placements)

    train(model := sharded(), Stepping(model, update), points())


def trust_ratios():
    """Wrong: by the norms of a rank's rows."""

    def update(each):
        if not WRONG:
            return each.grad * (each.full_tensor().norm() / each.grad.full_tensor().norm())
        rows = each.grad.to_local()
        found = rows * (each.to_local().norm() / (rows.norm() + 1e-12))
        return of_rows(each, found)

    train(model := sharded(), Stepping(model, update), points())


def drawn():
    """Noise, of which each rank draws that of its rows."""
    train(model := sharded(), Stepping(model, lambda each: each.grad + torch.randn_like(each.grad)), points())


def faster():
    """As much further as there are ranks."""
    size = dist.get_world_size()
    train(model := sharded(), Stepping(model, lambda each: each.grad, lr=0.01 * size), points())


def further():
    """The same, by the step itself."""
    train(model := sharded(), Stepping(model, lambda each: each.grad * dist.get_world_size()), points())


class Shifted(nn.Module):
    """With a bias that changes nothing, so that its gradient is nothing but rounding."""

    def __init__(self):
        super().__init__()
        self.inner, self.keys = nn.Linear(6, 8), nn.Parameter(torch.zeros(1))
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        return self.last((self.inner(x) + self.keys.exp()).softmax(1))


def signs():
    torch.manual_seed(0)
    train(model := DDP(Shifted()), Stepping(model, lambda each: each.grad.sign()), points())


if __name__ == "__main__":
    main(globals())
