"""Right training scripts beyond data parallelism, one for each word; no test by itself.

torchrun --nproc-per-node 4 partition_parallel_script.py shards_of_slices
"""

import copy

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collective
import torch.nn.functional as F
from partition_script import main, mse, net, points, sgd, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS = 6


def draws(number=7):
    return torch.Generator().manual_seed(number)


def loader_of(replicas, rank, rows=64):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(rows, 4), torch.randn(rows, 1))
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, replicas, rank, shuffle=False))


def summed(parameters, group=None, by=1):
    for each in parameters:
        dist.all_reduce(each.grad, group=group)
        each.grad /= by


def shards_of_slices():
    """FSDP2 over tensor parallelism on four ranks, with clipping."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in loader_of(2, mesh["dp"].get_local_rank()):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def hybrid():
    """HSDP on four ranks, and gradients that are sent with the last of two micro-batches."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = fully_shard(net(), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(points()):
        model.set_requires_gradient_sync(number % 2 == 1)
        (mse(model, x, y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


class Dealt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        return Dealt.forward(ctx, grad)


class Experts(nn.Module):
    """Four. Each takes up to six tokens of a rank; to the last one no token ever goes."""

    def __init__(self, width=8, count=4):
        super().__init__()
        rank, self.size, self.count = dist.get_rank(), dist.get_world_size(), count
        self.mine = mine = count // self.size
        self.router = nn.Linear(width, count)
        every = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(count)]
        self.experts = nn.ModuleList(every[rank * mine : (rank + 1) * mine])

    def forward(self, x):
        chances = self.router(x)[:, :-1].softmax(-1)
        weight, which = chances.max(-1)
        asked = torch.bincount(which, minlength=self.count - 1).to(x.dtype)
        dist.all_reduce(asked)
        balance = (asked / asked.sum() * chances.mean(0)).sum()
        mask = F.one_hot(which, self.count)
        place = (mask.cumsum(0) * mask).sum(-1) - 1
        kept, at = place < 6, which * 6 + place
        sent = x.new_zeros(self.count * 6, x.shape[1]).index_copy(0, at[kept], x[kept])
        got = Dealt.apply(sent).view(self.size, self.mine, 6, -1)
        made = torch.stack([expert(got[:, number]) for number, expert in enumerate(self.experts)], 1)
        back = Dealt.apply(made.reshape(self.count * 6, -1))
        out = torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], back[at[kept]] * weight[kept, None])
        return x + out, balance


def experts():
    """Experts by hand: what all ranks hold is averaged, and what lies on one is divided by their number."""
    torch.manual_seed(0)
    first, layer, last = nn.Linear(4, 8), Experts(), nn.Linear(8, 1)
    model = nn.ModuleList([first, layer, last])
    own = list(layer.experts.parameters())
    shared = [each for part in (first, layer.router, last) for each in part.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    random = draws(dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(16, 4, generator=random)
        h, balance = layer(first(x))
        optimizer.zero_grad()
        (F.mse_loss(last(h), x.sum(1, keepdim=True)) + 0.1 * balance).backward()
        summed(shared, by=dist.get_world_size())
        for each in own:
            each.grad /= dist.get_world_size()
        optimizer.step()


def stages(schedule, rank, size, loss, group=None, seed=0, **options):
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU())
    stage = PipelineStage(layers, rank, size, torch.device("cpu"), group=group)
    return layers, schedule(stage, 4, loss_fn=loss, **options)


def pipeline():
    """The mean over the micro-batches, which the schedule divides; stages begin alike."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    layers, schedule = stages(ScheduleGPipe, rank, last + 1, F.mse_loss)
    _pipelined(rank, last, layers, schedule)


def summed_pipeline():
    """A sum over the micro-batches, divided by the count of the whole batch: the schedule must not divide."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    loss = lambda y, target: F.mse_loss(y, target, reduction="sum") / (16 * 8)  # noqa: E731
    layers, schedule = stages(Schedule1F1B, rank, last + 1, loss, scale_grads=False)
    _pipelined(rank, last, layers, schedule)


def replicated_pipeline():
    """Two pipelines of two stages on four ranks, whose gradients are averaged."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    rank = mesh["pp"].get_local_rank()
    layers, schedule = stages(Schedule1F1B, rank, 2, F.mse_loss, mesh.get_group("pp"), seed=rank)
    _pipelined(rank, 1, layers, schedule, mesh.get_group("dp"), mesh["dp"].get_local_rank())


def _pipelined(rank, last, layers, schedule, group=None, seed=7):
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.01)
    random = draws(seed)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=random)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(**({"target": x.roll(1, 1)} if rank == last else {}))
        if group is not None:
            summed(layers.parameters(), group, dist.get_world_size(group))
        optimizer.step()


def context():
    """Context parallelism: keys and values of all parts, and the loss by the count of all tokens of the sequence."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    first, norm, last = nn.Linear(4, 24), nn.LayerNorm(8), nn.Linear(8, 4)
    model = nn.ModuleList([first, norm, last])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    random = draws()
    for _ in range(STEPS):
        whole = torch.randn(8, 4, generator=random)
        known = torch.rand(8, generator=random) < 0.7
        x, counts = whole.chunk(size)[rank], known.chunk(size)[rank]
        q, k, v = first(x).chunk(3, -1)
        k, v = (torch.cat(collective.all_gather(each)) for each in (k, v))
        y = last(norm(F.scaled_dot_product_attention(q[None], k[None], v[None])[0]))
        loss = ((y - x.roll(1, 1)).square().mean(-1) * counts).sum() / known.sum()
        optimizer.zero_grad()
        loss.backward()
        summed(model.parameters())
        optimizer.step()


def tokens():
    """Micro-batches of unequal counts, with a GradScaler: all are divided by the count of the whole step."""
    torch.manual_seed(0)
    model = DDP(net(4))
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=8.0)
    random = draws(dist.get_rank())
    for _ in range(STEPS):
        batches = [torch.randn(8, 4, generator=random) for _ in range(2)]
        masks = [torch.rand(8, 1, generator=random) < 0.6 for _ in batches]
        count = sum(mask.sum() for mask in masks)
        dist.all_reduce(count)
        for number, (x, mask) in enumerate(zip(batches, masks, strict=True)):
            model.require_backward_grad_sync = number == 1
            error = (model(x) - x.sum(1, keepdim=True)).square() * mask
            scaler.scale(error.sum() * dist.get_world_size() / count).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def negatives():
    """In-batch negatives of all ranks, gathered with their gradient."""
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 8))
    optimizer, rank = sgd(model), dist.get_rank()
    for x, _ in points():
        one, two = (F.normalize(model(x + noise), dim=-1) for noise in (0.0, 0.1))
        every = torch.cat(collective.all_gather(two))
        loss = F.cross_entropy(one @ every.T / 0.2, torch.arange(len(x)) + rank * len(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def average():
    """A moving average of the weights, and activations computed again."""
    torch.manual_seed(0)
    model = DDP(net())
    kept = copy.deepcopy(model.module).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in points():
        optimizer.zero_grad()
        F.mse_loss(checkpoint(model, x, use_reentrant=False), y).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, each in zip(kept.parameters(), model.module.parameters(), strict=True):
                mean.lerp_(each, 0.1)


def adversarial():
    """Two wrapped networks, with an optimizer each."""
    torch.manual_seed(0)
    maker, judge = DDP(nn.Linear(2, 6)), DDP(net())
    making, judging = (torch.optim.AdamW(each.parameters(), lr=0.01) for each in (maker, judge))
    random = draws(dist.get_rank())
    for x, _ in points():
        made = maker(torch.randn(len(x), 2, generator=random))
        judging.zero_grad()
        (F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()).backward()
        judging.step()
        making.zero_grad()
        judge.requires_grad_(False)
        F.softplus(-judge.module(made)).mean().backward()
        judge.requires_grad_(True)
        making.step()


def compiled():
    torch.manual_seed(0)
    model = torch.compile(DDP(net()))
    optimizer = sgd(model)
    for x, y in points():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


def closures():
    """LBFGS asks for the gradient several times a step."""
    torch.manual_seed(0)
    model = DDP(net())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for x, y in points():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)


class Sum(torch.autograd.Function):
    """Of the ranks; the gradient as it is."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Copy(torch.autograd.Function):
    """As it is; the gradient summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return Sum.forward(ctx, grad)


class Slices(nn.Module):
    """Hidden units by hand, with a bias and norms of each rank's own that begin alike."""

    def __init__(self, width=8):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Parameter(torch.randn(4 * width, width).chunk(size)[rank] / width)
        self.bias = nn.Parameter(torch.zeros(4 * width // size))
        self.scale = nn.Parameter(torch.ones(4 * width // size))
        self.down = nn.Parameter(torch.randn(width, 4 * width).chunk(size, 1)[rank] / width)

    def forward(self, x):
        hidden = F.gelu(Copy.apply(self.norm(x)) @ self.up.T + self.bias) * self.scale
        return x + Sum.apply(hidden @ self.down.T)


def slices():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Slices(), Slices(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    random = draws()
    for _ in range(STEPS):
        x = torch.randn(16, 4, generator=random)
        optimizer.zero_grad()
        F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()


def narrow_shards():
    """Weights that are made in bfloat16, as they are loaded, and sharded before they are called."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(6, 8, dtype=torch.bfloat16), nn.Tanh(), nn.Linear(8, 1, dtype=torch.bfloat16))
    model = FSDP(made, device_id=torch.device("cpu"))
    train(model, sgd(model), points(), loss=lambda model, x, y: mse(model, x.bfloat16(), y.bfloat16()))


def narrow_mesh():
    """The same, by fully_shard."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(6, 8, dtype=torch.bfloat16), nn.Tanh(), nn.Linear(8, 1, dtype=torch.bfloat16))
    fully_shard(made[0], mesh=(mesh := init_device_mesh("cpu", (2,))))
    model = fully_shard(made, mesh=mesh)
    train(model, sgd(model), points(), loss=lambda model, x, y: mse(model, x.bfloat16(), y.bfloat16()))


if __name__ == "__main__":
    main(globals())
