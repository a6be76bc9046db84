"""Process group, ranks and reductions."""

import datetime
import os

import torch
import torch.distributed as dist


def init_distributed():
    """Returns the device of this process, and its local rank where there are GPUs."""
    timeout = datetime.timedelta(minutes=20)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu"), None
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", timeout=timeout)
    return torch.device("cuda", local_rank), local_rank


def is_available_and_initialized():
    return dist.is_available() and dist.is_initialized()


def rank():
    return dist.get_rank() if is_available_and_initialized() else 0


def world_size():
    return dist.get_world_size() if is_available_and_initialized() else 1


def is_main():
    return rank() == 0


def reduce_sum(tensor):
    """Sum over ranks, in place. Collective."""
    if world_size() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor


def cleanup():
    if is_available_and_initialized():
        dist.barrier()
        dist.destroy_process_group()
