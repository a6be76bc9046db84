"""The user's own fixtures: made in pytest's process, sent to the ranks."""

import pytest
import torch


@pytest.fixture
def batch():
    return torch.arange(64.0).reshape(8, 8) / 64
