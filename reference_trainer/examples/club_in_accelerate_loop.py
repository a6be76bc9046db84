"""CLUB in somebody else's Accelerate loop: two lines before training, one in the step. On CPUs:

    accelerate launch --multi_gpu --num_processes 2 club_in_accelerate_loop.py

With --accumulation 2 CLUB is the mean of the micro-batches' CLUBs, for Accelerate divides each loss by 2.
"""

from __future__ import annotations

import argparse
import gc
import itertools

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from reference_trainer.config import ClubConfig
from reference_trainer.estimator import CLUBLoss


class TwoEncoders(nn.Module):
    """What is wrapped: all that the optimizer trains, in one forward. CLUB's estimator is not in it."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = (nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 6)) for _ in range(2))
        self.head, self.decoder = nn.Linear(6, 1), nn.Linear(12, 12)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y = self.x(inputs), self.y(inputs)
        return x, y, self.head(x), self.decoder(torch.cat([x, y], 1))


def train(accelerator: Accelerator, options: argparse.Namespace) -> None:
    """The loop, as in any script that uses Accelerate."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # so that runs on different numbers of processes can be compared
    inputs = torch.randn(512, 12)
    data = TensorDataset(inputs, inputs[:, :3].sum(1, keepdim=True))
    loader = DataLoader(data, options.batch_size, shuffle=True, generator=torch.Generator().manual_seed(1))
    model = TwoEncoders()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    # Before training, on every process: its estimator belongs to the checkpoint (club.state_dict()).
    club = CLUBLoss(6, 6, ClubConfig(weight=0.1, accumulation="micro"))
    club.set_accelerator(accelerator)

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, (batch, target) in enumerate(itertools.islice(batches, options.steps), 1):
        with accelerator.accumulate(model):
            x, y, guess, rebuilt = model(batch)
            result = club(x, y)  # every process, every micro-batch
            loss = F.mse_loss(guess, target) + F.mse_loss(rebuilt, batch) + result.loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if step % 16 == 0:
            accelerator.print(f"step {step:4}  club {result.value.item():8.4f}")

    if options.save and accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), options.save)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=64, help="micro-batches (default 64)")
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a micro-batch, on one process")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of an optimizer step")
    parser.add_argument("--save", help="file for the weights")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulation)
    train(accelerator, options)
    # DDP ends before its process group: torch 2.13 may abort otherwise.
    accelerator.free_memory()
    gc.collect()
    accelerator.end_training()
