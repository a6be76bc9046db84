"""What a user writes on the first day."""

import pytest
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from trainer import build, fit, loss
from validate_ddp.testing import assert_disjoint_cover, assert_gradient_matches_single_process, assert_replicas_equal


@pytest.mark.world_size(2)
def test_replicas_stay_equal(world, batch):
    model = DistributedDataParallel(build(seed=world.rank))
    fit(model, world.scattered(batch))
    assert_replicas_equal(model)


@pytest.mark.world_size([1, 2, 4])
def test_gradient_is_that_of_one_process(world, batch):
    assert_gradient_matches_single_process(build, loss, batch)


@pytest.mark.world_size(2)
def test_every_sample_is_seen_once(world):
    assert_disjoint_cover(DistributedSampler(range(10)), 10)
