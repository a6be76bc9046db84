"""CLUBLoss in one process: what each setting changes, what is logged and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from reference_trainer.config import ClubConfig, ConfigError  # noqa: E402
from reference_trainer.core.club import ClubError, club_gaussian  # noqa: E402
from reference_trainer.estimator import CLUBLoss, nll_sum  # noqa: E402

pytestmark = pytest.mark.runtime


def made(config=None, x_dim=4, y_dim=4, seed=0, **settings):
    torch.manual_seed(seed)
    return CLUBLoss(x_dim, y_dim, config or ClubConfig(**settings), group=None)


def dependent(samples=64, dims=4, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(2, samples, dims, generator=generator, dtype=torch.float64)
    return x.to(dtype), (0.8 * x + 0.6 * noise).to(dtype)


def weights(club):
    return torch.cat([each.detach().flatten() for each in club.estimator.parameters])


def test_the_main_loss_gives_q_no_gradient_and_the_features_one():
    club = made()
    x, y = (each.requires_grad_() for each in dependent())
    result = club(x, y)
    before = weights(club)
    result.loss.backward()
    assert all(each.grad is None for each in club.estimator.parameters)
    assert torch.equal(weights(club), before)
    assert x.grad.any() and y.grad.any()


def test_a_fit_gives_the_features_no_gradient_and_lowers_the_nll():
    club = made(inner_steps=50)
    x, y = (each.requires_grad_() for each in dependent())
    q = club.estimator.q
    before = nll_sum(*q(x), y).item()
    club.fit(x, y)
    assert x.grad is None and y.grad is None
    assert nll_sum(*q(x), y).item() < before - 1


def test_the_value_is_of_q_as_it_was_before_the_fit_and_the_loss_as_it_is_after():
    club = made()
    x, y = dependent()
    with torch.no_grad():
        before = club_gaussian(*club.estimator.q(x), y).value
    result = club(x, y)
    with torch.no_grad():
        after = club_gaussian(*club.estimator.q(x), y).value
    torch.testing.assert_close(result.value, before)
    torch.testing.assert_close(result.loss, club.weight * after)
    assert abs(before - after) > 1e-3


def test_the_value_of_independent_features_does_not_grow_with_inner_steps():
    """After 20 steps on a batch q knows that batch by heart: a value from after the fit would be far above 0."""
    torch.manual_seed(0)
    club = made(inner_steps=20, lr=1e-2)
    values, after = [], []
    for seed in range(30):
        x, y = torch.randn(2, 32, 4, generator=torch.Generator().manual_seed(seed))
        values.append(club(x, y).value.item())
        after.append(club_gaussian(*club.estimator.frozen(x), y).value.item())
    assert sum(after) / 30 > 1
    assert abs(sum(values) / 30) < 0.25 * sum(after) / 30


def run(config, steps=4):
    """Losses, values and q of some steps on dependent features."""
    club = made(config)
    found = []
    for step in range(steps):
        x, y = dependent(seed=step)
        result = club(x, y)
        found += [result.loss.item(), result.value.item()]
    return [*found, *weights(club).tolist()[:10]]


CHANGES = {
    "weight": 0.5,
    "variance": "unit",
    "update_every": 2,
    "inner_steps": 2,
    "lr": 1e-2,
    "hidden": (8,),
    "warmup_steps": 3,
}
ELSEWHERE = {
    "enabled": "the objective makes no CLUBLoss",
    "accumulation": "test_estimator.py: the union and the mean of micro-batches train differently",
    "path": "test_estimator.py: the same result; below: what is sent",
}


def test_every_setting_is_tested():
    assert set(CHANGES) | set(ELSEWHERE) == set(ClubConfig.__dataclass_fields__)


@pytest.mark.parametrize("name", CHANGES)
def test_each_setting_changes_something(name):
    assert run(replace(ClubConfig(), **{name: CHANGES[name]})) != run(ClubConfig())


def test_weight_and_warm_up_are_what_they_say():
    x, y = dependent()
    plain = made()(x, y)
    assert made(weight=1.0)(x, y).loss.item() == pytest.approx(10 * plain.loss.item(), rel=1e-6)
    assert made(weight=1.0)(x, y).value == plain.value
    club, factors = made(warmup_steps=4), []
    for _ in range(6):
        club(x, y)
        factors.append(club.weight / club.config.weight)
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_q_is_fitted_every_so_many_steps():
    club, fitted = made(update_every=3), []
    x, y = dependent()
    for _ in range(7):
        before = weights(club)
        club(x, y)
        fitted.append(not torch.equal(weights(club), before))
    assert fitted == [True, False, False, True, False, False, True]


def test_log_variance_stays_within_one():
    logvar = made().estimator.q(1e6 * torch.randn(8, 4))[1]
    assert logvar.abs().max() <= 1


def test_q_follows_the_type_of_the_features_and_never_goes_below_float32():
    for dtype, kind in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        club = made()
        with torch.autocast("cpu", torch.bfloat16):
            result = club(*dependent(dtype=dtype))
        assert weights(club).dtype == kind
        assert result.loss.dtype == result.value.dtype == kind


def test_a_state_in_float64_is_not_rounded_when_loaded():
    club, resumed = made(), made(seed=1)
    club(*dependent(dtype=torch.float64))
    resumed.load_state_dict(club.state_dict())
    assert torch.equal(weights(resumed), weights(club))
    expected, found = (each(*dependent(seed=2, dtype=torch.float64)).loss for each in (club, resumed))
    assert torch.equal(found, expected)


def test_a_state_of_another_version_is_refused_in_one_line():
    with pytest.raises(ClubError, match=r"no estimator of CLUB: another version saved it; .* \(checkpoint.init_from\)"):
        made().load_state_dict({"step": 2, "estimators": [made().state_dict()["estimator"]]})


def test_features_of_many_tokens_are_averaged_and_that_is_said_once(capfd):
    x, y = dependent()
    tokens = torch.stack([x - 1, x, x + 1], 1)
    found, expected = made()(tokens, y), made()(x, y)
    torch.testing.assert_close(found.value, expected.value)
    capfd.readouterr()
    club = made()
    for _ in range(3):
        club(tokens.unflatten(1, (3, 1)), y)
    said = [line for line in capfd.readouterr().err.splitlines() if "averaged" in line]
    assert said == ["CLUB: features (N, 3, 1, 4) are averaged to (N, 4)"]


@pytest.mark.parametrize(
    ("x", "y"), [((8, 5), (8, 4)), ((8, 4), (8, 3)), ((8, 4), (7, 4)), ((4,), (4,)), ((8, 4, 3), (8, 4))]
)
def test_features_of_other_shapes_are_refused(x, y):
    with pytest.raises(
        ClubError, match=r"expected \(n, ..., 4\) and \(n, ..., 4\) with the same n, as CLUBLoss was made"
    ):
        made()(torch.zeros(x), torch.zeros(y))


def test_one_sample_is_refused():
    with pytest.raises(ClubError, match="needs a global batch of 2 or more"):
        made()(torch.zeros(1, 4), torch.zeros(1, 4))


# The union, and sums for a caller that divides


def test_a_total_that_counts_tokens_leaves_the_weight_of_club_as_it_is():
    x, y = dependent()
    expected = made()(x, y).loss
    for total in (64 * 10, torch.tensor(640.0, dtype=torch.float64)):
        club = made()
        club.begin_step(total)
        torch.testing.assert_close(club.weighted_part(x, y) / 640, expected)
        club.begin_step(total)


def test_micro_batches_each_have_a_value_and_the_step_their_mean():
    club = made(accumulation="micro", update_every=2)
    club.begin_step()
    club.begin_step()  # no fit is due, so the values are of one q
    parts = [club.weighted_part(*dependent(seed=seed)).item() / 64 / club.weight for seed in (1, 2)]
    assert club.value.item() == pytest.approx(sum(parts) / 2, rel=1e-5)


@pytest.mark.parametrize("settings", [{"accumulation": "micro"}, {"path": "gather"}])
def test_the_union_is_refused_where_it_cannot_be_had(settings):
    club = made(**settings)
    club.begin_step()
    with pytest.raises(ClubError, match='the union of micro-batches needs accumulation="union", path="covariance"'):
        club.begin([dependent()])


def test_calls_out_of_order_are_refused():
    club = made()
    with pytest.raises(ClubError, match="no step has begun; call begin_step once per optimizer step"):
        club.loss(*dependent())
    with pytest.raises(ClubError, match="no value in this step yet"):
        club.value  # noqa: B018 - it raises


def test_q_has_no_batch_statistics():
    modules = list(made(hidden=(8, 8)).estimator.q.modules())
    assert not any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in modules)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight", -1.0),
        ("variance", "free"),
        ("update_every", 0),
        ("inner_steps", 0),
        ("lr", 0.0),
    ]
    + [("hidden", (8, 0)), ("warmup_steps", -1), ("accumulation", "mean"), ("path", "x")],
)
def test_a_setting_that_cannot_work_is_refused_by_its_name(name, value):
    with pytest.raises(ConfigError, match=f"^club.{name} "):
        ClubConfig(**{name: value})
