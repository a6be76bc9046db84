"""Rehearsed by test_rehearsals.py: a script for GPUs that says what it found, on machines that have none.

Every assertion is one that holds on real GPUs; the oracles are single-process.
"""

import copy
import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        sample = torch.full((3,), float(index))
        assert not sample.is_cuda  # what a loader's worker makes is on the CPU
        return sample


def devices():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 2
    x = torch.ones(2, device="cuda").cuda(non_blocking=True).to("cuda:0").to(torch.device("cuda", 1)).to(0)
    assert x.is_cuda and torch.zeros(1, device=torch.cuda.current_device()).sum() == 0
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    drawn = torch.randn(4, device="cuda", generator=generator)
    assert torch.equal(drawn, torch.randn(4, generator=torch.Generator().manual_seed(3)))
    number = torch.device(1)
    assert (number.type, number.index) == ("cuda", 1) and isinstance(number, torch.device)
    assert copy.deepcopy([number]) == [number] and torch.ones(1).to(number).is_cuda
    with torch.device("cuda"):
        assert torch.ones(1).sum().item() == 1
    with torch.device("meta"):
        assert torch.arange(3).is_meta and nn.Linear(2, 2).weight.is_meta
    with torch.cuda.stream(torch.cuda.Stream()):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) >= 0
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() >= 0
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] >= 0
    try:
        torch.ones(1).cuda(7)
    except RuntimeError as error:
        assert "invalid device ordinal" in str(error)
    else:
        raise AssertionError("a GPU that is not there")


def precision(model):
    with torch.autocast("cuda", dtype=torch.float16):
        assert model(torch.ones(2, 3, device="cuda")).dtype in (torch.float16, torch.bfloat16)
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler.scale(model(torch.ones(2, 3).cuda()).sum()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def synchronised_norm(rank, world_size):
    """SyncBatchNorm on half of the batch against BatchNorm on all of it: values, running statistics and gradients."""
    torch.manual_seed(0)
    whole = torch.randn(8, 3)
    plain, synced = nn.BatchNorm1d(3), nn.SyncBatchNorm(3)
    one = whole.clone().requires_grad_()
    half = whole.chunk(world_size)[rank].clone().cuda().requires_grad_()
    weights = torch.randn(8, 3)
    expected = plain(one)
    (expected * weights).sum().backward()
    got = synced(half)
    (got * weights.chunk(world_size)[rank]).sum().backward()
    torch.testing.assert_close(got, expected.chunk(world_size)[rank])
    torch.testing.assert_close(half.grad, one.grad.chunk(world_size)[rank])
    torch.testing.assert_close(synced.running_var, plain.running_var)
    torch.testing.assert_close(synced.running_mean, plain.running_mean)


def norm_in_a_wrapper(local_rank):
    """DDP takes a model with SyncBatchNorm, as it does on GPUs."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))).cuda()
    DDP(model, device_ids=[local_rank])(torch.randn(4, 3).cuda()).sum().backward()
    assert model[0].weight.grad is not None


def sharded_attention():
    """Attention over heads that lie on several ranks against attention over all of them."""
    mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(1)
    whole = [torch.randn(2, 4, 8, 16) for _ in range(3)]
    shards = [distribute_tensor(each, mesh, [Shard(1)]) for each in whole]
    got = nn.functional.scaled_dot_product_attention(*shards, is_causal=True).full_tensor()
    torch.testing.assert_close(got, nn.functional.scaled_dot_product_attention(*whole, is_causal=True))


def future_of_a_part(rank, world_size):
    """The future of a reduce-scatter gives this rank's part of the mean."""
    whole, part = torch.arange(2.0 * world_size), torch.zeros(2).cuda()
    work = dist.reduce_scatter_tensor(part, (whole * (rank + 1)).cuda(), op=dist.ReduceOp.AVG, async_op=True)
    (got,) = work.get_future().wait()
    torch.testing.assert_close(got, whole.chunk(world_size)[rank] * (world_size + 1) / 2)


def flat_buffers(rank, world_size):
    """nccl asks for the number of elements of an output, whatever its shape."""
    mine = torch.full((3, 2), float(rank)).cuda()
    for shape in ((6 * world_size,), (world_size, 3, 2), (3 * world_size, 2)):
        gathered = torch.empty(shape, device="cuda")
        dist.all_gather_into_tensor(gathered, mine)
        assert gathered.flatten()[-1].item() == world_size - 1 and gathered.shape == shape
    part = torch.empty(3, 2, device="cuda")
    dist.reduce_scatter_tensor(output=part, input=torch.arange(6.0 * world_size).view(2, -1).cuda())
    assert part.flatten()[0].item() == 6 * rank * world_size


def weights_sent_to_shards(local_rank):
    """FSDP1 sends the first rank's weights to all, where the module is on a GPU."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    module = nn.Linear(3, 2).cuda()
    with torch.no_grad():
        module.weight.fill_(dist.get_rank())
    model = FSDP(module, sync_module_states=True)
    with FSDP.summon_full_params(model):
        assert not model.weight.any()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    devices()
    assert dist.is_nccl_available()
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(minutes=5))
    synchronised_norm(rank, world_size)
    norm_in_a_wrapper(local_rank)
    sharded_attention()
    future_of_a_part(rank, world_size)
    flat_buffers(rank, world_size)
    weights_sent_to_shards(local_rank)
    mean = torch.tensor([float(rank)]).cuda()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert mean.item() == (world_size - 1) / 2
    dist.barrier(device_ids=[local_rank])
    model = torch.compile(nn.Linear(3, 1).cuda())
    assert next(iter(model.state_dict())) == "_orig_mod.weight"
    precision(model)
    ddp = DDP(model, device_ids=[local_rank], output_device=local_rank)
    sampler = torch.utils.data.distributed.DistributedSampler(Points())
    loader = torch.utils.data.DataLoader(Points(), 4, sampler=sampler, num_workers=1, pin_memory=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    os.chdir("/")  # what is reported is relative to where the script was started
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            ddp(batch.cuda(local_rank, non_blocking=True)).sum().backward()
            optimizer.step()
    print("ALL HELD", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
