"""What is true of a value, and of several conditions together, on which ranks."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from validate_ddp.findings import Span
from validate_ddp.interpreter.conditions import Truth, all_of, any_of, as_value, negated, truth_of
from validate_ddp.interpreter.objects import Dict, List, Range, Tuple
from validate_ddp.interpreter.presence import completed
from validate_ddp.interpreter.ranks import opposite
from validate_ddp.interpreter.training import DDP, Loader
from validate_ddp.interpreter.values import (
    NONE,
    UNKNOWN,
    Const,
    Opaque,
    Rank,
    RankTest,
    Site,
    Value,
    WorldSize,
    on_ranks,
)

SPAN = Span(1, 0, 1, 1)
HERE = Site("train.py", SPAN, SPAN, "")
TESTS = st.builds(RankTest, st.sampled_from(["zero", "nonzero", "local-zero", "some"]), st.booleans())
TRUTHS = st.one_of(st.sampled_from([True, False, None]), TESTS)


def told(truth: Truth) -> object:
    return (truth.who, truth.exact, truth.rest, truth.sure) if isinstance(truth, RankTest) else truth


@given(TRUTHS)
def test_what_is_not_untrue_is_true(truth: Truth) -> None:
    assert told(negated(negated(truth))) == told(truth)


@given(TRUTHS)
def test_a_truth_as_a_value_is_as_true(truth: Truth) -> None:
    assert told(truth_of(as_value(truth))) == told(truth)


@pytest.mark.parametrize("first, second", list(product([True, False, None], repeat=2)))
def test_without_ranks_conditions_combine_as_in_any_three_valued_logic(first: Truth, second: Truth) -> None:
    both, either = all_of([first, second]), any_of([first, second])
    if None not in (first, second):
        assert (both, either) == (first and second, first or second)
    assert told(negated(either)) == told(all_of([negated(first), negated(second)]))


@given(st.lists(TRUTHS, min_size=1, max_size=3))
def test_a_question_about_the_rank_is_one_in_any_company(truths: list[Truth]) -> None:
    asked = any(isinstance(truth, RankTest) for truth in truths)
    assert isinstance(all_of(truths), RankTest) is asked
    assert isinstance(any_of(truths), RankTest) is asked


@given(st.lists(TRUTHS, min_size=1, max_size=3))
def test_a_conjunction_is_exact_only_where_each_part_is(truths: list[Truth]) -> None:
    both = all_of(truths)
    if isinstance(both, RankTest) and both.exact:
        assert all(truth is True or (isinstance(truth, RankTest) and truth.exact) for truth in truths)


@pytest.mark.parametrize(
    "value, expected",
    [
        ((Const(0),), False),
        ((Const("nccl"), Const(1)), True),
        ((Const(0), Const(1)), None),
        ((Loader(HERE), DDP(HERE)), True),
        ((Range(HERE),), True),
        ((WorldSize(),), True),
        ((List(HERE),), None),
        ((Tuple(HERE),), None),
        ((Dict(HERE, {"model": NONE}),), None),
        ((Opaque("verbose"),), None),
        (UNKNOWN, None),
        ((), None),
    ],
)
def test_objects_are_true_and_containers_may_be_empty(value: Value, expected: Truth) -> None:
    assert truth_of(value) is expected


@pytest.mark.parametrize("scope, who", [("global", "nonzero"), ("local", "local-nonzero"), ("spawn", "nonzero")])
def test_a_rank_is_true_where_it_is_not_zero(scope: str, who: str) -> None:
    truth = truth_of((Rank(scope),))
    assert isinstance(truth, RankTest)
    assert (truth.who, truth.rest, truth.exact, truth.sure) == (who, opposite(who), True, True)


@pytest.mark.parametrize("who", ["zero", "nonzero", "local-zero"])
@pytest.mark.parametrize("sure", [True, False])
def test_what_some_ranks_hold_is_true_on_them(who: str, sure: bool) -> None:
    truth = truth_of(completed(on_ranks((Loader(HERE),), who, sure), NONE))
    assert isinstance(truth, RankTest)
    assert (truth.who, truth.exact, truth.sure) == (who, True, sure)


def test_what_a_branch_on_the_rank_leaves_open_is_not_exact() -> None:
    truth = truth_of((*on_ranks((Loader(HERE),), "zero"), Const(None)))
    assert isinstance(truth, RankTest)
    assert (truth.who, truth.exact) == ("zero", False)
