"""What joining two branches makes of a value, and what a computation carries of what went into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from validate_ddp.findings import Span
from validate_ddp.interpreter.objects import Batch, Dict, List, Range, Tuple, contents, one_more
from validate_ddp.interpreter.presence import completed
from validate_ddp.interpreter.training import DDP, FSDP, Loader, Prepared, Sampler, State
from validate_ddp.interpreter.values import (
    FALSE,
    NONE,
    Class,
    Const,
    Instance,
    OnRanks,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Site,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    constant,
    join,
    merged,
    on_ranks,
    reaching,
)

SPAN = Span(1, 0, 1, 1)
HERE = Site("train.py", SPAN, SPAN, "")
MODEL = Instance(Class(None, ["class", None, "Net"], {}, []), HERE)
OTHER_MODEL = Instance(MODEL.cls, HERE)
LOADER, SAMPLER = Loader(HERE), Sampler(HERE)
WRAPPED, SHARDED = DDP(HERE, inner=(MODEL,)), FSDP(HERE, inner=(OTHER_MODEL,))
MOST_ATOMS, MOST_CARRIED = 8, 12

MAKERS: list[Callable[[], Any]] = [
    lambda: Const(None),
    lambda: Const(1),
    lambda: Const(True),
    lambda: Const("nccl"),
    lambda: Opaque("loss"),
    lambda: Opaque("output", (LOADER,)),
    lambda: Opaque("epochs", (), alike=True),
    lambda: Symbol("torch.nn.Linear"),
    lambda: Rank("global"),
    lambda: Rank("local", named="gpu"),
    lambda: Rank("global", named="rank"),
    lambda: WorldSize(),
    lambda: RankTest("zero"),
    lambda: OnRanks(Const(None), "nonzero"),
    lambda: MODEL,
    lambda: OTHER_MODEL,
    lambda: WRAPPED,
    lambda: SHARDED,
    lambda: LOADER,
    lambda: SAMPLER,
]
"""Each makes its atom anew where it is no object with an identity of its own."""


def joined(atoms: list[Any]) -> Value:
    value: Value = ()
    for atom in atoms:
        value = join(value, (atom,))
    return value


VALUES = st.lists(st.sampled_from(MAKERS), max_size=6).map(lambda makers: joined([make() for make in makers]))


def told(atom: Any) -> Any:
    """What tells an atom from others, but for the name of something unknown: that is the first one's."""
    if isinstance(atom, Const):
        return (type(atom.value), atom.value)
    if isinstance(atom, Opaque):
        return (Opaque, frozenset(map(id, atom.carries)), atom.alike)
    if isinstance(atom, Symbol):
        return (Symbol, atom.name)
    if isinstance(atom, Rank):
        return (Rank, atom.scope, atom.sure, atom.option, atom.named)
    if isinstance(atom, RankTest):
        return (RankTest, atom.who, atom.exact, atom.rest, atom.sure)
    if isinstance(atom, WorldSize):
        return (WorldSize, atom.local, atom.named)
    if isinstance(atom, OnRanks):
        return (OnRanks, atom.who, atom.sure, told(atom.atom))
    return id(atom)


def alternatives(value: Value) -> set[Any]:
    return set(map(told, value))


@given(VALUES)
def test_a_value_joined_with_itself_is_itself(value: Value) -> None:
    again = join(value, (*value,))
    assert alternatives(again) == alternatives(value)
    assert len(again) == len(value)


@given(VALUES, VALUES)
def test_both_branches_come_together_in_either_order(first: Value, second: Value) -> None:
    value = join(first, second)
    assume(len(value) < MOST_ATOMS)
    assert alternatives(value) == alternatives(join(second, first))


@given(VALUES, VALUES)
def test_a_join_holds_nothing_twice_and_one_unknown_at_most(first: Value, second: Value) -> None:
    value = join(first, second)
    assert len(value) == len(alternatives(value)) <= MOST_ATOMS
    assert sum(isinstance(atom, Opaque) for atom in value) <= 1


@given(VALUES, VALUES)
def test_a_join_invents_nothing(first: Value, second: Value) -> None:
    given = alternatives((*first, *second))
    assert {told(atom) for atom in join(first, second) if not isinstance(atom, Opaque)} <= given


@given(VALUES, VALUES)
def test_what_has_a_role_stays_while_there_is_room(first: Value, second: Value) -> None:
    both = {
        told(atom): atom
        for atom in (*first, *second)
        if isinstance(atom, (Resource, Instance, RankTest, WorldSize)) or (isinstance(atom, Rank) and not atom.named)
    }
    for wrapper in (WRAPPED, SHARDED):
        if id(wrapper) in both:
            both.pop(id(wrapper.inner[0]), None)
    others = {told(atom) for atom in (*first, *second) if not isinstance(atom, (Const, Opaque))}
    assume(len(others) <= MOST_ATOMS)
    assert set(both) <= alternatives(join(first, second))


@given(st.lists(st.sampled_from([LOADER, SAMPLER, WRAPPED]), unique=True), st.integers(9, 20))
def test_constants_go_first_where_there_is_no_room(known: list[Any], number: int) -> None:
    value = join(tuple(Const(index) for index in range(number)), tuple(known))
    assert len(value) == (MOST_ATOMS if known else number)  # joining with nothing changes nothing
    assert set(known) <= set(value)


def test_true_one_and_one_as_a_float_are_three_constants() -> None:
    assert [constant((atom,)) for atom in joined([Const(1), Const(True), Const(1.0), Const(1)])] == [1, True, 1.0]


@pytest.mark.parametrize("wrapper", [WRAPPED, SHARDED])
def test_a_wrapper_swallows_what_it_wraps_and_nothing_else(wrapper: DDP | FSDP) -> None:
    model = wrapper.inner[0]
    for value in (join((model,), (wrapper,)), join((wrapper,), (model,))):
        assert value == (wrapper,)
    other = OTHER_MODEL if model is MODEL else MODEL
    assert set(join((other,), (wrapper,))) == {other, wrapper}


def test_what_accelerate_prepared_swallows_nothing() -> None:
    prepared = Prepared(HERE, inner=(MODEL,))
    assert set(join((MODEL,), (prepared,))) == {MODEL, prepared}


def test_a_rank_that_is_known_replaces_one_that_was_guessed() -> None:
    known, guessed = Rank("global"), Rank("local", named="gpu")
    assert join((guessed,), (known,)) == join((known,), (guessed,)) == (known,)
    assert len(join((guessed,), (Rank("global", named="rank"),))) == 2


def test_unknown_values_become_one_that_carries_what_both_did() -> None:
    atom: Any
    (atom,) = join((Opaque("first", (LOADER,), True),), (Opaque("second", (SAMPLER,), True),))
    assert (atom.name, atom.carries, atom.alike) == ("first", (LOADER, SAMPLER), True)
    (atom,) = join((Opaque("first", (), True),), (Opaque("second"),))
    assert not atom.alike


def test_nothing_joined_with_a_value_is_the_value() -> None:
    value: Value = (LOADER, Const(1))
    assert join((), value) is value
    assert join(value, ()) is value


@given(VALUES, st.sampled_from(["zero", "nonzero", "local-zero"]), st.booleans())
def test_what_some_ranks_hold_is_marked_once(value: Value, who: str, sure: bool) -> None:
    marked: tuple[Any, ...] = on_ranks(value, who, sure)
    assert all(isinstance(atom, OnRanks) for atom in marked)
    assert bare(marked) == bare(value)
    assert all(
        (atom.who, atom.sure) == (who, sure)
        for atom, old in zip(marked, value, strict=True)
        if not isinstance(old, OnRanks)
    )
    assert on_ranks(marked, "all") == marked


@pytest.mark.parametrize("who, others", [("zero", "nonzero"), ("local-nonzero", "local-zero")])
def test_the_ranks_that_hold_nothing_get_the_default(who: str, others: str) -> None:
    value: tuple[Any, ...] = completed(on_ranks((LOADER,), who, sure=False), NONE)
    assert [(atom.who, atom.sure, type(atom.atom)) for atom in value] == [
        (who, False, Loader),
        (others, False, Const),
    ]


@pytest.mark.parametrize(
    "value",
    [
        (),
        (LOADER,),
        (LOADER, OnRanks(SAMPLER, "zero")),
        (*on_ranks((LOADER,), "zero"), *on_ranks(FALSE, "nonzero")),
    ],
)
def test_a_value_that_all_ranks_have_or_none_needs_no_default(value: Value) -> None:
    assert completed(value, NONE) is value


def test_a_computation_carries_objects_ranks_and_what_unknown_values_carried() -> None:
    rank, batch = Rank("global"), Batch(HERE, loader=(LOADER,))
    value = (Const(1), Symbol("torch.add"), OnRanks(LOADER, "zero"), Opaque("x", (batch, rank)), MODEL, WorldSize())
    assert carried_by(value)[:-1] == (LOADER, batch, rank, MODEL)
    assert isinstance(carried_by(value)[-1], WorldSize)


@pytest.mark.parametrize("kind", [List, Tuple, Dict, Range])
def test_a_container_is_carried_as_what_it_holds(kind: type[List]) -> None:
    assert carried_by((kind(HERE, {"0": (LOADER, Const(1)), "1": (kind(HERE, {"*": (MODEL,)}),)}),)) == (LOADER, MODEL)


def test_containers_that_hold_each_other_come_to_an_end() -> None:
    first, second = List(HERE, {"*": (LOADER,)}), Dict(HERE)
    first.fields["0"], second.fields["back"] = (second, first), (first, SAMPLER)
    assert reaching((first,)) == (LOADER, SAMPLER)
    assert contents((second,)) == [first, SAMPLER, LOADER, second, first]


def test_a_state_is_carried_with_what_it_is_of() -> None:
    state = State(HERE, of=(WRAPPED, List(HERE, {"0": (MODEL,)})))
    assert carried_by((state,)) == (state, WRAPPED, MODEL)


@given(st.lists(st.sampled_from([Loader(HERE) for _ in range(20)]), max_size=40))
def test_what_is_carried_is_bounded_told_once_and_in_order(atoms: list[Loader]) -> None:
    once = tuple(dict.fromkeys(atoms))
    for found in (carried_by(atoms), carried_by((Opaque("x", tuple(atoms)),)), merged(*atoms)):
        assert found == once[:MOST_CARRIED]


@given(VALUES)
def test_what_reaches_a_value_is_never_plain(value: Value) -> None:
    assert not any(isinstance(part, (Const, Symbol, Opaque, OnRanks)) for part in reaching(value))
    roles = {id(atom) for atom in value if isinstance(atom, (Resource, Instance, Rank, RankTest, WorldSize))}
    assert roles <= set(map(id, reaching(value)))


def kinds(cls: type[Resource] = Resource) -> list[type[Resource]]:
    return [kind for each in cls.__subclasses__() for kind in (each, *kinds(each))]


@pytest.mark.parametrize("kind", sorted(set(kinds()), key=str))
def test_each_kind_of_object_says_what_it_is_and_takes_no_part_that_it_does_not_declare(kind: type[Resource]) -> None:
    assert str(vars(kind)["__doc__"]).rstrip().endswith(".")
    made = kind.__new__(kind)
    made.fields = {}
    with pytest.raises(AttributeError):
        made.datset = (LOADER,)  # type: ignore[attr-defined]


def test_a_part_is_empty_until_somebody_gives_it_and_lies_in_the_fields() -> None:
    loader = Loader(HERE, dataset=(MODEL,))
    assert (loader.dataset, loader.sampler, loader.fields) == ((MODEL,), (), {"dataset": (MODEL,)})
    loader.sampler = (SAMPLER,)
    assert loader.fields["sampler"] == (SAMPLER,)
    loader.fields["batch_size"] = (Const(4),)  # as the program's own assignment does
    assert constant(loader.batch_size) == 4


def test_a_copy_changes_without_its_original() -> None:
    loader = Loader(HERE, dataset=(MODEL,))
    other = loader.copy()
    other.prepared = (Const(True),)
    assert (type(other), other.site, other.dataset) == (Loader, HERE, (MODEL,))
    assert not loader.prepared


def test_what_happens_again_is_counted() -> None:
    assert [constant(one_more(count)) for count in ((), (Const(1),), (Opaque(),))] == [1, 2, 1]
