"""Training scripts for the partition check, one for each word on the command line; no test by itself.

torchrun --nproc-per-node 2 partition_script.py by_hand [wrong]     # with one defect, in its gradients alone
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

NAME, WRONG = sys.argv[1], "wrong" in sys.argv[2:]
IGNORED = -100


def points(size=96, batch=8, features=6):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(size, features), torch.randn(size, 1))
    return DataLoader(data, batch_size=batch, sampler=DistributedSampler(data))


def texts(size=64, batch=4, length=12, words=20):
    torch.manual_seed(0)
    tokens = torch.randint(words, (size, length))
    ends = torch.randint(2, length, (size, 1))
    labels = tokens.roll(-1, 1).masked_fill(torch.arange(length) >= ends, IGNORED)
    data = TensorDataset(tokens, labels)
    return DataLoader(data, batch_size=batch, sampler=DistributedSampler(data))


def net(features=6, middle=()):
    return nn.Sequential(nn.Linear(features, 8), *middle, nn.Tanh(), nn.Linear(8, 1))


def tiny_model():
    return nn.Sequential(nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 20))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def train(model, optimizer, loader, loss=mse, reduce=lambda: None, factor=1.0):
    for x, y in loader:
        optimizer.zero_grad()
        (factor * loss(model, x, y)).backward()
        reduce()
        optimizer.step()


def averaged(parameters, size=None):
    for each in parameters:
        dist.all_reduce(each.grad)
        each.grad /= size or dist.get_world_size()


def by_hand():
    """Wrong: summed, never divided."""
    model = net()
    train(model, sgd(model), points(), reduce=lambda: averaged(model.parameters(), 1 if WRONG else None))


def divided_twice():
    """Wrong: the loss is divided, and DistributedDataParallel divides again."""
    train(model := DDP(net()), sgd(model), points(), factor=1 / dist.get_world_size() if WRONG else 1.0)


def biases_left_out():
    """Wrong: the reduction by hand takes matrices only."""
    model = net()
    matrices = [each for each in model.parameters() if not WRONG or each.dim() > 1]
    train(model, sgd(model), points(), reduce=lambda: averaged(matrices))


def buckets():
    """Gradients are reduced as one flat tensor. Wrong: it is not copied back."""
    model = net()

    def reduce():
        flat = torch.cat([each.grad.flatten() for each in model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for each in model.parameters():
            part = flat[at : at + each.numel()].view_as(each)
            at += each.numel()
            if not WRONG or each.dim() > 1:
                each.grad.copy_(part)

    train(model, sgd(model), points(), reduce=reduce)


def comm_hook():
    """Wrong: the hook forgets to divide."""
    model = DDP(net())

    def hook(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / (1 if WRONG else dist.get_world_size()))

    model.register_comm_hook(None, hook)
    train(model, sgd(model), points())


class Own(torch.optim.Optimizer):
    """An optimizer of the script's own."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for each in self.param_groups[0]["params"]:
            each -= 0.01 * each.grad


def own_step():
    """Wrong: as by_hand."""
    model = net()
    train(model, Own(model.parameters()), points(), reduce=lambda: averaged(model.parameters(), 1 if WRONG else None))


def own_step_alone():
    """Wrong: nothing is reduced."""
    model = net()
    train(model, Own(model.parameters()), points(), reduce=lambda: averaged([] if WRONG else model.parameters()))


def head_beside():
    """Wrong: a second model, of the same optimizer, is under no wrapper."""
    body, head = DDP(nn.Linear(6, 8)), nn.Linear(8, 1)
    head = head if WRONG else DDP(head)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    train(body, optimizer, points(), loss=lambda model, x, y: F.mse_loss(head(model(x).tanh()), y))


def tokens():
    """Right: each rank weighs by its share of the tokens. Wrong: as in `loss * mine / total`, without the size."""
    model = DDP(tiny_model())

    def loss(model, x, y):
        mine = (y != IGNORED).sum()
        total = mine.clone()
        dist.all_reduce(total)
        summed = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="sum")
        return summed / total * (1 if WRONG else dist.get_world_size())

    train(model, sgd(model), texts(), loss=loss)


def accumulated_tokens():
    """Tokens of all micro-batches of all ranks are counted. Wrong: those of the own rank's micro-batches."""
    model = DDP(tiny_model())
    optimizer = sgd(model)
    batches = list(texts())
    for start in range(0, len(batches), 4):
        group = batches[start : start + 4]
        count = sum((y != IGNORED).sum() for _, y in group)
        if not WRONG:
            dist.all_reduce(count)
            count = count / dist.get_world_size()
        optimizer.zero_grad()
        for number, (x, y) in enumerate(group):
            with model.no_sync() if number < 3 else contextlib.nullcontext():
                logits = model(x).flatten(0, 1)
                (F.cross_entropy(logits, y.flatten(), ignore_index=IGNORED, reduction="sum") / count).backward()
        optimizer.step()


def synced_too_early():
    """Wrong: the last micro-batch is not reduced."""
    model = DDP(net())
    optimizer = sgd(model)
    for number, (x, y) in enumerate(points()):
        with model.no_sync() if number % 2 == int(WRONG) else contextlib.nullcontext():
            (mse(model, x, y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def fsdp2():
    """Wrong: the loss is multiplied by the number of ranks."""
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    train(model, sgd(model), points(), factor=float(dist.get_world_size()) if WRONG else 1.0)


def fsdp1():
    """Wrong: the same."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    train(model := FSDP(net()), sgd(model), points(), factor=float(dist.get_world_size()) if WRONG else 1.0)


def tensor_parallel():
    """Both ranks read the same. Wrong: a layer beside the mesh sums a gradient that is whole already."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    data = TensorDataset(torch.randn(32, 6), torch.randn(32, 1))

    def reduce():
        if WRONG:
            for each in model[0].parameters():
                dist.all_reduce(each.grad)

    train(model, sgd(model), DataLoader(data, batch_size=8), reduce=reduce)


def mesh_of_two():
    """FSDP2 x TP on four ranks. Wrong: the loss is multiplied by the number of its replicas."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    data = TensorDataset(torch.randn(96, 6), torch.randn(96, 1))
    group = mesh["dp"]
    sampler = DistributedSampler(data, group.size(), group.get_local_rank())
    train(
        model, sgd(model), DataLoader(data, batch_size=8, sampler=sampler), factor=float(group.size()) if WRONG else 1.0
    )


def accelerated():
    """Wrong: a gradient of accumulated micro-batches that the loop reduces once more, as a sum."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 6), torch.randn(96, 1))
    model = net()
    model, optimizer, loader = accelerator.prepare(model, sgd(model), DataLoader(data, batch_size=8))
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(mse(model, x, y))
            if WRONG and accelerator.sync_gradients:
                for each in model.parameters():
                    each.grad = accelerator.reduce(each.grad, "sum")
            optimizer.step()
            optimizer.zero_grad()


class Gather(torch.autograd.Function):
    """All ranks' rows; its gradient is the sum of what all ranks have for the own ones."""

    @staticmethod
    def forward(ctx, rows):
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def negatives():
    """In-batch negatives of all ranks. Wrong: they are gathered without a gradient."""
    model = DDP(nn.Linear(6, 4))

    def gathered(rows):
        if not WRONG:
            return Gather.apply(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    def loss(model, x, y):
        one, other = model(torch.cat([x, x.roll(1, 1)])).chunk(2)
        every = gathered(other)
        aim = torch.arange(len(x)) + dist.get_rank() * len(x)
        return F.cross_entropy(one @ every.T, aim)

    train(model, sgd(model), points(), loss=loss)


class Meet(torch.autograd.Function):
    """Adds up what ranks have, in the forward or in the backward."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_too = backward
        x = x.clone()
        if forward:
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if ctx.backward_too:
            dist.all_reduce(grad)
        return grad, None, None


class Halves(nn.Module):
    """Its middle lies on all ranks in parts, each with weights of its own. Wrong: the gradient of what they add up,
    which all of them have whole, is added up again."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(6, 8), nn.Linear(8, 1)
        torch.manual_seed(1 + dist.get_rank())
        size = 8 // dist.get_world_size()
        self.up, self.down = nn.Linear(8, size), nn.Linear(size, 8)

    def forward(self, x):
        x = torch.tanh(self.into(x))
        part = self.down(torch.tanh(self.up(Meet.apply(x, False, True))))
        return self.out(x + Meet.apply(part, True, WRONG))


def halves():
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 1)), batch_size=8)
    train(model := Halves(), sgd(model), data)


def clipped():
    model = DDP(net())
    optimizer = sgd(model)

    factor = float(dist.get_world_size()) if WRONG else 1.0
    train(model, optimizer, points(), reduce=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01), factor=factor)


def norm_of_a_shard():
    """Wrong: the norm is that of the rank's own shards."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    model = FSDP(net())
    wrong = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
    train(model, sgd(model), points(), reduce=wrong if WRONG else lambda: model.clip_grad_norm_(0.01))


def ragged_sum():
    """A sum over a fixed global batch, of which ranks have parts that cannot be joined. Wrong: it is a mean."""
    model = tiny_model()
    torch.manual_seed(0)
    data = [torch.randint(20, (8, 9 + each % 2)) for each in range(8)]  # one length on each rank
    loader = DataLoader(data, batch_size=None, sampler=DistributedSampler(data, shuffle=False))
    optimizer = sgd(model)
    for x in loader:
        optimizer.zero_grad()
        kind = "mean" if WRONG else "sum"
        (F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), reduction=kind) / 128).backward()
        averaged(model.parameters(), 1)
        optimizer.step()


def main(scripts):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    for path in [each for each in sys.argv[2:] if each != "wrong"]:  # what it writes before its first step
        os.makedirs("runs", exist_ok=True)
        for name in (path, "runs/log.txt"):
            with open(name, "a") as file:
                file.write(NAME)
    scripts[NAME]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(globals())
