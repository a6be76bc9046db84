"""Training scripts that are right, but hard for the partition check, one for each word; no test by itself.

torchrun --nproc-per-node 2 partition_hard_script.py noise
"""

import contextlib
import ctypes
import glob
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from partition_script import WRONG, averaged, main, mse, net, points, sgd, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def batch_norm():
    train(model := DDP(net(middle=[nn.BatchNorm1d(8), nn.Dropout(0.3)])), sgd(model), points())


def noise():
    """Seeds by rank, and noise in the loop."""
    torch.manual_seed(dist.get_rank())
    model = DDP(net())
    loader = points()
    torch.manual_seed(100 + dist.get_rank())
    train(model, sgd(model), loader, loss=lambda model, x, y: mse(model, x + 0.1 * torch.randn_like(x), y))


def met():
    """Ranks meet through a file, in a folder that they work in."""
    os.makedirs("met/here", exist_ok=True)
    dist.barrier()
    os.chdir("met")
    if dist.get_rank() == 0:
        with open("here/go.part", "w") as file:
            file.write("go")
        os.replace("here/go.part", "here/go")
    while not glob.glob("*/go"):
        time.sleep(0.01)
    with open("../user") as file:
        assert file.read() == "kept\n"
    train(model := DDP(net()), sgd(model), points())


def past_python():
    """Writes as no patch of Python sees it."""
    system = ctypes.CDLL(None, use_errno=True)
    if system.open(b"user", os.O_WRONLY | os.O_TRUNC) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "user")
    train(model := DDP(net()), sgd(model), points())


def drawn_by_shards():
    """Shards draw their first weights, and so other random numbers than one process, before the data are drawn."""
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = net()
    fully_shard(model)
    model.to_empty(device="cpu")
    for layer in (model[0], model[2]):
        layer.reset_parameters()
    optimizer = sgd(model)
    train(model, optimizer, ((torch.randn(8, 6), torch.randn(8, 1)) for _ in range(4)))


def infinite():
    """A gradient that is not finite, as of weights that nobody has set."""
    train(model := DDP(net()), sgd(model), points(), factor=float("inf"))


def no_loader():
    """Data drawn in the loop, seeded by rank."""
    torch.manual_seed(0)
    model = DDP(net())
    torch.manual_seed(10 + dist.get_rank())
    train(model, sgd(model), [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(4)])


def just_two():
    """Refuses any other number of ranks. Wrong: a third of each gradient is sent."""
    assert dist.get_world_size() == 2, "two ranks"
    torch.manual_seed(0)
    model = DDP(net())
    for each in model.parameters() if WRONG else ():
        each.register_hook(lambda grad: grad / 3)
    train(model, sgd(model), points())


def as_many_gpus():
    """One rank for each GPU, no more and no fewer, as Lightning asks where it is to take all."""
    assert torch.cuda.device_count() == dist.get_world_size()
    torch.manual_seed(0)
    train(model := DDP(net()), sgd(model), points())


def own_optimizer():
    model = DDP(net())
    for x, y in points():
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.01 * each.grad
                each.grad = None


def sliced():
    """Data shared out by hand: what one process reads hangs on the number of ranks."""
    torch.manual_seed(0)
    model = DDP(net())
    x, y = torch.randn(96, 6), torch.randn(96, 1)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    x, y = x[mine].split(8), y[mine].split(8)
    train(model, sgd(model), list(zip(x, y, strict=True)))


def adversarial():
    """Two optimizers, one of which steps on what the other has learned."""
    maker, judge = DDP(nn.Linear(6, 6)), DDP(net())
    one, other = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for x, _ in points():
        other.zero_grad()
        false = maker(torch.randn_like(x))
        (F.softplus(-judge(x)).mean() + F.softplus(judge(false.detach())).mean()).backward()
        other.step()
        one.zero_grad()
        F.softplus(-judge(false)).mean().backward()
        one.step()


def checkpointed():
    """Activations are computed again in the backward."""
    from torch.utils.checkpoint import checkpoint

    class Deep(nn.Sequential):
        def forward(self, x):
            return self[1](checkpoint(self[0], x, use_reentrant=False))

    train(model := DDP(Deep(net(), nn.Linear(1, 1))), sgd(model), points())


def lbfgs():
    model = DDP(net())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for x, y in points():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)


def own_clipping():
    """A clipping of the script's own, which scales what each process has by its own norm."""
    model = DDP(net(middle=[nn.BatchNorm1d(8)]))

    def reduce():
        norm = sum(each.grad.square().sum() for each in model.parameters()).sqrt()
        for each in model.parameters():
            each.grad *= 0.01 / norm

    train(model, sgd(model), points(), reduce=reduce)


def summed_loss():
    """A sum divided by the size of the global batch, and gradients that are summed: just what one process has."""
    model = net()
    size = 8 * dist.get_world_size()

    def loss(model, x, y):
        return F.mse_loss(model(x), y, reduction="sum") / size

    train(model, sgd(model), points(), loss=loss, reduce=lambda: averaged(model.parameters(), 1))


def sum_without_loader():
    """The same without a loader: nobody can tell whether it is a mean."""
    model = net()
    torch.manual_seed(10 + dist.get_rank())
    batches = [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(4)]
    sums = lambda model, x, y: F.mse_loss(model(x), y, reduction="sum") / 16  # noqa: E731
    train(model, sgd(model), batches, loss=sums, reduce=lambda: averaged(model.parameters(), 1))


def shares_of_nodes():
    """One graph on all ranks: each sums the losses of its own nodes, and the mean is of all ranks' sums."""
    torch.manual_seed(0)
    nodes, aims, edges = torch.randn(24, 6), torch.randn(24, 1), torch.rand(24, 24).softmax(1)
    mine = torch.randperm(24)[dist.get_rank() :: dist.get_world_size()]
    model = net()
    nn.init.zeros_(model[-1].weight)  # so that losses alone do not tell the ranks apart
    graph = lambda model, x, y: (edges.to(x.dtype) @ model(x) - y)[mine].square().sum()  # noqa: E731
    train(model := DDP(model), sgd(model), [(nodes, aims)] * 4, loss=graph)


def objectives():
    """Each rank has an objective of its own on the same batches."""
    torch.manual_seed(0)
    batches = [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(4)]
    kinds = (F.mse_loss, lambda out, y: 0.1 * F.mse_loss(out, y))
    own = lambda model, x, y: kinds[dist.get_rank()](model(x), y)  # noqa: E731
    train(model := DDP(net()), sgd(model), batches, loss=own)


def weights_of_ranks():
    """What a rank has learned counts by a weight of the rank, in the loss."""
    train(model := DDP(net()), sgd(model), points(), factor=(1.0, 0.3)[dist.get_rank()])


def weights_by_hand():
    """The same in its gradients."""
    model = net()

    def reduce():
        for each in model.parameters():
            each.grad *= (1.0, 0.3)[dist.get_rank()]
            dist.all_reduce(each.grad)

    train(model, sgd(model), points(), reduce=reduce)


def weights_in_hooks():
    """The same in hooks of the parameters."""
    model = net()
    for each in model.parameters():
        each.register_hook(lambda grad: grad * (1.0, 0.3)[dist.get_rank()])
    train(model := DDP(model), sgd(model), points())


def owners():
    """Each parameter is reduced to the rank that steps on it, and handed on."""
    model = net()
    held = list(model.parameters())
    optimizer = torch.optim.SGD(held[dist.get_rank() :: dist.get_world_size()], lr=0.01)
    for x, y in points():
        model.zero_grad()
        mse(model, x, y).backward()
        for number, each in enumerate(held):
            dist.reduce(each.grad, number % dist.get_world_size())
            each.grad /= dist.get_world_size()
        optimizer.step()
        for number, each in enumerate(held):
            dist.broadcast(each.data, number % dist.get_world_size())


def divided_rate():
    """Gradients are summed, and the learning rate is divided."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 / dist.get_world_size())
    train(model, optimizer, points(), reduce=lambda: averaged(model.parameters(), 1))


def full_batch():
    """One step an epoch, each loss divided by the number of batches: one process would read more of them."""
    model = DDP(net())
    optimizer, loader = sgd(model), points()
    for _ in range(2):
        optimizer.zero_grad()
        for number, (x, y) in enumerate(loader):
            with contextlib.nullcontext() if number + 1 == len(loader) else model.no_sync():
                (mse(model, x, y) / len(loader)).backward()
        optimizer.step()


class Shares(Dataset):
    """A share of the points for each rank."""

    def __init__(self, whole):
        self.held = [whole[each] for each in range(dist.get_rank(), len(whole), dist.get_world_size())]

    def __len__(self):
        return len(self.held)

    def __getitem__(self, index):
        return self.held[index]


def shares_of_points():
    """The same with losses that are sums, divided by the samples of the rank, as its data set and its sampler count
    them; joined batches are no reference."""
    model = DDP(net(middle=[nn.BatchNorm1d(8)]))
    whole = points().dataset
    mine = DataLoader(Shares(whole), batch_size=8)
    sampler = DistributedSampler(whole, shuffle=False)
    others = DataLoader(whole, batch_size=8, sampler=sampler)
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        for loader, length in ((mine, len(mine.dataset)), (others, len(sampler)), (others, sampler.num_samples)):
            for x, y in loader:
                (F.mse_loss(model(x), y, reduction="sum") / length).backward()
        optimizer.step()


class Uneven:
    """Batches of the rank, of another size each epoch."""

    def set_epoch(self, epoch):
        mine = list(range(dist.get_rank(), 96, dist.get_world_size()))
        self.held = [mine[at : at + 8 + 4 * epoch] for at in range(0, len(mine), 8 + 4 * epoch)]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


def lengths_of_epochs():
    """Batches are as many as the epoch makes of them, which is another number when the loader is made."""
    model, sampler = DDP(net()), Uneven()
    sampler.set_epoch(0)
    optimizer, loader = sgd(model), DataLoader(points().dataset, batch_sampler=sampler)
    sampler.set_epoch(2)
    count = len(loader)
    for number, (x, y) in enumerate(loader):
        with contextlib.nullcontext() if number + 1 == count else model.no_sync():
            (mse(model, x, y) / count).backward()
    optimizer.step()


def weights_in_the_loss():
    """A term of the weights is made before the model is called."""
    model = DDP(net())
    optimizer = sgd(model)
    for x, y in points():
        optimizer.zero_grad()
        decay = sum(each.square().sum() for each in model.parameters())
        (mse(model, x, y) + 0.01 * decay).backward()
        optimizer.step()


if __name__ == "__main__":
    main(globals())
