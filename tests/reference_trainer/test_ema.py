"""The moving average of weights: its formula, its type, and that swapping leaves nothing behind."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from reference_trainer.state import Ema  # noqa: E402

pytestmark = pytest.mark.runtime


def one(value, dtype=torch.float64):
    module = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.constant_(module.weight, value)
    return module


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0.01, 0.9999))
def test_the_average_is_the_weighted_sum_of_all_weights_seen(values, decay):
    module = one(values[0])
    ema = Ema(module, decay)
    expected = values[0]
    for value in values[1:]:
        nn.init.constant_(module.weight, value)
        ema.update(module)
        expected = decay * expected + (1 - decay) * value
    assert ema.state_dict()["weight"].item() == pytest.approx(expected, abs=1e-12)


def test_an_average_of_bfloat16_weights_moves_although_their_last_bit_is_larger_than_its_step():
    module = one(1.0, torch.bfloat16)
    ema = Ema(module, 0.999)
    nn.init.constant_(module.weight, 2.0)
    for _ in range(100):
        ema.update(module)
    average = ema.state_dict()["weight"]
    assert average.dtype == torch.float32
    assert average.item() == pytest.approx(2 - 0.999**100, abs=1e-4)


def test_within_a_swap_the_module_has_the_average_and_after_it_its_own_weights_also_after_an_exception():
    module = one(1.0)
    ema = Ema(module, 0.5)
    nn.init.constant_(module.weight, 3.0)
    ema.update(module)
    with pytest.raises(KeyError), ema.swapped(module):
        assert module.weight.item() == 2.0
        raise KeyError
    assert module.weight.item() == 3.0 and ema.state_dict()["weight"].item() == 2.0


def test_a_saved_average_goes_on_where_it_was():
    module = one(1.0)
    ema, fresh = Ema(module, 0.5), Ema(one(7.0), 0.5)
    ema.update(module)
    fresh.load_state_dict(ema.state_dict())
    assert fresh.state_dict()["weight"].item() == 1.0


def test_a_trained_parameter_is_not_aliased():
    module = one(1.0)
    ema = Ema(module, 0.5)
    nn.init.constant_(module.weight, 5.0)
    assert ema.state_dict()["weight"].item() == 1.0
