"""Facts are made with the roles that their class declares, and no others."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from validate_ddp.findings import Span
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.machine import Scope
from validate_ddp.interpreter.trace import Program, trace
from validate_ddp.interpreter.values import Class, Const, Function, Instance, Site
from validate_ddp.models.known import registry
from validate_ddp.source.summaries import Summaries


def traced(script: str, folder: Path) -> Program:
    path = folder / "train.py"
    path.write_text(script)
    summaries = Summaries()
    summaries.begin()
    return trace(summaries, str(path), registry())


def test_a_role_that_a_kind_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="no role of Save: objct"):
        facts.Save("save", role="file", objct=())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no role of Wrap: who"):
        facts.Wrap("ddp", wrapper=(), inner=(), who="all")  # type: ignore[call-arg]


def test_what_is_not_given_is_empty_and_what_is_given_keeps_its_order() -> None:
    made = facts.Save("save", path=(Const("a.pt"),), role="file", object=())
    assert (made.mode, made.writer, made.object) == ((), (), ())
    assert list(made.given) == ["path", "role", "object"]


def test_a_class_has_the_roles_of_the_class_that_it_is_made_of() -> None:
    assert facts.Wrap.roles == facts.DataParallel.roles >= {"wrapper", "inner", "device_ids"}
    assert not Fact.roles and facts.Step.roles == {"optimizer"}


def test_a_rule_names_each_kind_as_the_module_does() -> None:
    assert facts.BY_NAME["facts.Save"] is facts.Save
    assert all(getattr(facts, name.removeprefix("facts.")) is kind for name, kind in facts.BY_NAME.items())
    assert all(kind.__doc__ for kind in facts.BY_NAME.values())


def test_a_fact_that_is_moved_is_of_its_kind_with_all_but_the_place_and_the_names(tmp_path: Path) -> None:
    script = "import torch\nfor epoch in range(3):\n    with open('a') as file:\n        torch.save({}, 'a.pt')\n"
    (save,) = traced(script, tmp_path).facts(facts.Save)
    site = Site("other.py", Span(1, 0, 1, 1), Span(1, 0, 1, 1), "")
    moved = save.moved(site)
    same = ("name", "who", "guards", "chain", "loops", "flags", "order", "given")
    assert type(moved) is facts.Save and moved.site == site and moved.scope is None is not save.scope
    assert all(getattr(moved, role) == getattr(save, role) for role in same) and moved.given is not save.given


def test_the_walk_says_where_a_fact_is_and_what_lies_around_it(tmp_path: Path) -> None:
    script = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")

def save(model):
    torch.save(model, "a.pt")

for epoch in range(3):
    if dist.get_rank() == 0:
        try:
            save(1)
        except OSError:
            pass
"""
    (save,) = traced(script, tmp_path).facts(facts.Save)
    assert (save.who, save.role, save.site.span.line, len(save.chain), len(save.loops)) == (
        "zero",
        "checkpoint",
        8,
        1,
        1,
    )
    assert Flag.CONDITIONAL in save.flags and isinstance(save.scope, Scope)


def test_facts_of_several_kinds_come_in_the_order_of_the_walk(tmp_path: Path) -> None:
    script = "import torch.distributed as dist\n" + "dist.init_process_group()\ndist.barrier()\n" * 2
    program = traced(script, tmp_path)
    found: list[Any] = program.facts(facts.Collective, facts.ProcessGroup)
    assert [fact.order for fact in found] == sorted(fact.order for fact in found)
    assert program.kinds == {facts.ProcessGroup, facts.Collective}


def test_nothing_of_a_walk_is_left_once_its_program_is_let_go(tmp_path: Path) -> None:
    script = """
class Trainer:
    def __init__(self):
        self.hook = self.step

    def step(self):
        def inner(count):
            return (lambda: inner(count)) if count else None
        return inner(3)

class Derived(Trainer):
    pass

Derived().hook()
"""

    def held() -> int:
        return sum(type(each) in (Scope, Instance, Class, Function) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = held()
        program = traced(script, tmp_path)
        assert held() > before
        program.let_go()
        del program
        assert held() == before
    finally:
        gc.enable()
