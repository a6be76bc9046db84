"""A training script that does what observers do not expect. What it computes goes to `result.json` in its own folder.

It changes its folder, sends standard output elsewhere, forks, leaves a daemon behind, replaces functions of torch, and
makes batches that raise when anybody but its own code looks at them.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Batch:
    """It looks like a tensor and is none."""

    is_sparse = False

    def __init__(self, rows):
        self.inner = torch.stack([row for (row,) in rows])

    def dim(self):
        raise RuntimeError("nobody is to look at this batch")


def fork():
    """A child that uses torch, of which the parent takes the exit code."""
    child = os.fork()
    if child == 0:
        os._exit(int(torch.ones(3).sum().item()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def leave_a_daemon():
    """Two forks and a session of its own; its process id is in `daemon`."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    with open("daemon.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename("daemon.tmp", "daemon")
    time.sleep(100)
    os._exit(0)


def main():
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    sys.stdout = open("printed", "w")  # noqa: SIM115
    print("to a file of its own")
    calls = []
    original = torch.Tensor.backward

    def backward(tensor, *args, **kwargs):
        calls.append("backward")
        return original(tensor, *args, **kwargs)

    torch.Tensor.backward = backward
    torch.save = lambda state, path: calls.append(f"save {path}")
    torch.manual_seed(3)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    code = fork()
    leave_a_daemon()
    losses = []
    for batch in DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4, collate_fn=Batch):
        loss = model(batch.inner).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save(model.state_dict(), "last.pt")
    dist.destroy_process_group()
    sys.stdout.flush()
    with open("printed") as file:
        printed = file.read()
    result = {
        "losses": losses,
        "calls": calls,
        "child": code,
        "folder": os.path.basename(os.getcwd()),
        "printed": printed,
        "files": sorted(set(os.listdir()) - {"daemon", "daemon.tmp"}),
    }
    with open("result.json", "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
