"""The training loop that `rehearsing.py` measures: plain DDP, steps in blocks, a block whenever it is told to.

Started as one of several ranks with the arguments SOCKET, where each rank asks what to do, and KIND: mlp, transformer
or collective. Without an import from __future__: TrainCheck puts lines of its own before it.
"""

import socket
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

COLLECTIVES = 200
"""Calls that one step of the kind ``collective`` makes."""


class Made(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Data made in memory. draw: gives one sample's input for its generator."""

    def __init__(self, size: int, draw: Callable[[torch.Generator], torch.Tensor]) -> None:
        self.inputs = [draw(torch.Generator().manual_seed(index)) for index in range(size)]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], torch.tensor(index % 10)


class Transformer(nn.Module):
    """Four layers over 32 tokens: 3.2 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (rows, 10) of tokens (rows, 32)."""
        return self.head(self.layers(self.embedding(tokens)).mean(1))


def mlp() -> nn.Module:
    """Three layers: 5.0 million parameters."""
    return nn.Sequential(
        nn.Linear(784, 1760), nn.ReLU(), nn.Linear(1760, 1760), nn.ReLU(), nn.Linear(1760, 300), nn.ReLU(),
        nn.Linear(300, 10),
    )  # fmt: skip


def training(kind: str) -> Iterator[None]:
    """A step each time it is advanced. Collective: every rank."""
    torch.manual_seed(0)
    if kind == "mlp":
        module, rows = mlp(), 128
        data = Made(1024, lambda generator: torch.randn(784, generator=generator))
    else:
        module, rows = Transformer(), 16
        data = Made(256, lambda generator: torch.randint(256, (32,), generator=generator))
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=rows, sampler=sampler)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            yield
        epoch += 1


def reducing() -> Iterator[None]:
    """`COLLECTIVES` all-reduces of one number each time it is advanced. Collective: every rank."""
    tensor = torch.ones(1)
    while True:
        for _ in range(COLLECTIVES):
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        yield


def main() -> None:
    """Introduces itself, then runs as many steps as each line says, and answers with the CPU seconds they took: of all
    threads, and of this one."""
    path, kind = sys.argv[1:3]
    dist.init_process_group("gloo")
    steps = reducing() if kind == "collective" else training(kind)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(path)
        talk = line.makefile("rw")
        for order in talk:
            start = time.process_time(), time.thread_time()
            for _ in range(int(order)):
                next(steps)
            print(time.process_time() - start[0], time.thread_time() - start[1], file=talk, flush=True)
    steps.close()  # type: ignore[attr-defined]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
