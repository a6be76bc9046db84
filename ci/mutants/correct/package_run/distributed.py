"""Process group, ranks and reductions."""

import datetime
import os

import torch
import torch.distributed as dist


def init_distributed():
    """Returns the device of this process, and its local rank where there are GPUs."""
    # mutant DDP111: datetime.timedelta(minutes=20) -> 1800; at init_process_group(
    timeout = datetime.timedelta(minutes=20)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu"), None
    local_rank = int(os.environ["LOCAL_RANK"])  # mutant DDP103: LOCAL_RANK -> RANK; at device_ids=; at set_device(
    torch.cuda.set_device(local_rank)  # mutant DDP102 a: delete
    # mutant DDP104: timeout) -> timeout, rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("nccl", timeout=timeout)
    # mutant DDP102 a: insert dist.barrier()
    # mutant DDP102 a: insert torch.cuda.set_device(local_rank)
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
        # mutant DDP403: try: ... except RuntimeError: pass
        # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)  # mutant DDP401: if dist.get_rank() == 0: ...
    return tensor


def cleanup():
    if is_available_and_initialized():
        dist.barrier()  # mutant DDP401: if dist.get_rank() == 0: ...
        # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
        dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(
