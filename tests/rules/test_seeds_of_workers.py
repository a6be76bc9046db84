"""DDP205 on the generator of a DataLoader, from which its workers have their seeds."""

from __future__ import annotations

from typing import Any

import pytest

OF_WORKERS = """
import random

class Cropped(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(8)[random.randint(0, 4) :][:1]

def hands_on(worker):
    random.seed(torch.initial_seed() % 2**32)

def adds_the_rank(worker):
    random.seed(torch.initial_seed() + dist.get_rank())

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
data, generator = Cropped(), torch.Generator()
generator.manual_seed(SEED)
loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False), generator=generator, OPTIONS)
model = DDP(torch.nn.Linear(1, 1))
for batch in loader:
    model(batch).sum().backward()
dist.destroy_process_group()
"""
OPTIONS = {
    "workers with the seeds that the loader gives": ("0", "num_workers=2", ["warning"]),
    "workers that hand these on": ("0", "num_workers=2, worker_init_fn=hands_on", ["warning"]),
    "an option for their number": ("0", "num_workers=data.workers", ["warning"]),
    "the rank in the seed": ("dist.get_rank()", "num_workers=2", []),
    "the rank added in the workers": ("0", "num_workers=2, worker_init_fn=adds_the_rank", []),
    "workers seeded out of sight": ("0", "num_workers=2, worker_init_fn=somewhere.start", []),
    "no workers": ("0", "batch_size=2", []),
    "no workers, said so": ("0", "num_workers=0", []),
}


@pytest.mark.parametrize(("seed", "options", "severities"), OPTIONS.values(), ids=OPTIONS.keys())
def test_a_loaders_own_generator_seeds_its_workers(seed: str, options: str, severities: list[str], lint: Any) -> None:
    body = OF_WORKERS.replace("SEED", seed).replace("OPTIONS", options)
    assert lint.body(body).of("DDP205").severities == severities


def test_a_loaders_generator_is_told_of_beside_the_seed_of_the_processes(lint: Any) -> None:
    """A second seed of the processes, which mends their draws, does not reach these workers."""
    noisy = OF_WORKERS.replace("model(batch)", "model(batch + torch.randn_like(batch))").replace("SEED", "0")
    noisy = noisy.replace("torch.manual_seed(dist.get_rank())", "torch.manual_seed(0)").replace(
        "OPTIONS", "num_workers=2"
    )
    assert lint.body(noisy).of("DDP205").severities == ["warning", "warning"]
