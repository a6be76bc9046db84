"""The global random generators of this process: their state, to be saved and put back.

What touches a sample does not draw from them (`randomness`); dropout does, and whatever code of others.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["rng_state", "seed_generators", "set_rng_state"]


def seed_generators(seed: int) -> None:
    """Seeds them all: what torch's own seeding leaves out differs in every process. Local."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Of torch (CPU and, for a GPU, its own), Python and numpy, as plain data and tensors. Local."""
    numpy = np.random.get_state(legacy=False)
    key = torch.from_numpy(numpy["state"]["key"].astype(np.int64))  # copied; torch saves no uint32 safely
    version, internal, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        # As a tensor: a pickle of hundreds of numbers took as long as all weights of a small model.
        "python": (version, torch.tensor(internal), gauss),
        "numpy": {**numpy, "state": {**numpy["state"], "key": key}},
    }


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Puts back what ``rng_state`` gave; a GPU's only on a GPU. Local."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["device"] is not None:
        torch.cuda.set_rng_state(state["device"], device)
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    numpy = state["numpy"]
    key = numpy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})
