"""What torch's wrapper has of itself is known whole: all else is asked of it in vain."""

from __future__ import annotations

import pytest
from validate_ddp.interpreter.wrapped import HAS

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.runtime, pytest.mark.timeout(60)]


@pytest.mark.world_size(2)
def test_every_attribute_of_the_wrapper_is_known(world):
    wrapper = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    assert {name for name in dir(wrapper) if not name.startswith("_")} <= HAS
