"""What is declared of libraries fits the libraries, and the words by which files and functions are passed over."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from validate_ddp.findings import Span
from validate_ddp.interpreter import facts, rows, vocabulary
from validate_ddp.interpreter.call import Call, parameters
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.registry import Registry
from validate_ddp.interpreter.rows import Api, BrokenRow, Declaration, Method, api, method, unasked
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import DDP, Accelerator, Writer
from validate_ddp.interpreter.values import NONE, Const, Site, Symbol, Value
from validate_ddp.models import known
from validate_ddp.source import summaries
from validate_ddp.source.prefilter import may_matter

HERE = Site("train.py", Span(1, 0, 1, 1), Span(1, 0, 1, 1), "")
Kinds = frozenset[type[Fact]]


def starts(kind: type[Fact]) -> bool:
    """Whether a fact of this kind makes a program one of several ranks, or is enough for a rule without them."""
    fact = kind("new")
    fact.order, fact.guards = 0, ()
    return Program("train.py", [fact], None, None, []).is_distributed or kind is facts.DataParallel


STARTING: Kinds = frozenset(kind for kind in facts.BY_NAME.values() if starts(kind))
OF_ONE_PROCESS: Kinds = frozenset(
    (
        facts.Backward,
        facts.Device,
        facts.Draw,
        facts.Forward,
        facts.Load,
        facts.LoadState,
        facts.Loader,
        facts.Mode,
        facts.Optimizer,
        facts.Option,
        facts.Order,
        facts.Preparation,
        facts.RandomState,
        facts.Read,
        facts.Rework,
        facts.Save,
        facts.Seed,
        facts.SetEpoch,
        facts.Step,
        facts.Clip,
        facts.ZeroGrad,
    )
)
"""Kinds of facts that a script of one process has too: for them alone no file need be read."""
NO_START = frozenset("destroy_process_group register notebook_launcher debug_launcher".split())
"""What they start has another word of these, as the Accelerator that a notebook's function makes."""
BY_NAME_ALONE = frozenset(
    """DistributedSampler destroy_process_group DDP FSDP fully_shard register spawn start_processes Process""".split()
)
"""Their names do not say it, but what they are imported from does, or, of processes, what the ranks do in them."""


def dotted(row: Api) -> Iterator[str]:
    """The names as a program has them, as far as they are declared."""
    for name in row.names:
        yield from ([name if place == "*" else f"{place}.{name}" for place in row.within] or [name])


def declared(kinds: Kinds) -> Iterator[Api]:
    """The functions and classes whose facts are of these kinds."""
    for row in known.rows():
        if isinstance(row, Api) and not kinds.isdisjoint(row.facts):
            yield row


def last(name: str) -> str:
    return name.rpartition(".")[2]


def test_every_start_is_held_to_the_words() -> None:
    assert {facts.ProcessGroup, facts.Wrap, facts.Launch, facts.Sampler, facts.DataParallel} == STARTING
    assert STARTING.isdisjoint(OF_ONE_PROCESS)


def test_a_file_that_uses_what_is_of_several_ranks_is_not_passed_over() -> None:
    kinds = frozenset(facts.BY_NAME.values()) - OF_ONE_PROCESS
    missed = {name for row in declared(kinds) for name in dotted(row) if not may_matter(name.encode())}
    unlisted = {name for name in missed if last(name) not in BY_NAME_ALONE}
    assert not unlisted, f"_SIGNS in source/prefilter.py has no word of {', '.join(sorted(unlisted))}"
    assert {last(name) for name in missed} == BY_NAME_ALONE


def test_a_script_that_starts_a_second_rank_is_not_passed_over() -> None:
    names = {name for row in declared(STARTING) for name in dotted(row)}
    missed = {name for name in names if not any(word in name.encode() for word in summaries._STARTS)}
    unlisted = {name for name in missed if last(name) not in NO_START}
    assert not unlisted, f"_STARTS in source/summaries.py has no word of {', '.join(sorted(unlisted))}"
    assert {last(name) for name in missed} == NO_START
    idle = {word for word in summaries._STARTS if not any(word in name.encode() for name in names)}
    assert idle == {b"hvd"}  # as which Horovod is imported


def test_a_function_is_walked_for_whatever_is_declared_to_record_a_fact() -> None:
    names = {last(name) for row in known.rows() if isinstance(row, (Api, Method)) and row.facts for name in row.names}
    assert names - known.registry().words == vocabulary.EVERYDAY


def test_a_new_function_is_found_where_nothing_else_in_the_programs_function_matters(
    lint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import exporting

def export(weights):
    exporting.put(weights, "exported.pt2")

dist.init_process_group("gloo")
export(DDP(torch.nn.Linear(4, 2)).module)
"""
    also(monkeypatch, api("exporting.put", parameters="object= path=", fact=facts.Save, role="checkpoint"))
    assert lint.body(script, "DDP502").told == [("DDP502", "warning")]


def asks(row: Api | Method) -> set[str]:
    """What the file of the row's function asks for by its role."""
    return set(re.findall(r'\.value\("(\w+)"\)', inspect.getsource(sys.modules[row.model.__module__])))


def test_a_parameter_that_is_declared_is_asked_for() -> None:
    for row in known.rows():
        if isinstance(row, (Api, Method)) and row.model.__module__ != rows.__name__:
            roles = {role for kind in row.facts for role in kind.roles}
            assert unasked(row.parameters, roles | asks(row)) == [], row.names


HOMES = """torch.utils.data torch.utils.data.distributed torch.nn torch.nn.parallel torch.optim torch.distributed.fsdp
torch.distributed.tensor.parallel torch.distributed.checkpoint torch.distributed.checkpoint.state_dict""".split()


def homes(row: Api) -> Iterator[str]:
    """The names under which the library may really have it."""
    yield from dotted(row)
    for home in HOMES:
        if any(place == "*" or home == place or home.startswith(f"{place}.") for place in row.within):
            yield from (f"{home}.{name}" for name in row.names)


def real(name: str) -> list[inspect.Parameter] | None:
    """The parameters of the function or class of that name; None where it is not installed or does not tell."""
    module, _, function = name.rpartition(".")
    try:
        return list(inspect.signature(getattr(importlib.import_module(module), function)).parameters.values())
    except (ImportError, AttributeError, TypeError, ValueError):
        return None


def test_parameters_are_those_of_the_library() -> None:
    checked = set()
    for row in known.rows():
        for name in homes(row) if isinstance(row, Api) and row.parameters else ():
            signature = real(name)
            if signature is None or any(each.kind == each.VAR_POSITIONAL for each in signature):
                continue
            checked.add(name)
            for role, (position, names) in row.parameters.items():
                if position >= 0 and names != ("",) and signature[position].kind != inspect.Parameter.POSITIONAL_ONLY:
                    assert signature[position].name in names, (name, role)
    told = "json.dump pickle.dump shutil.copy shutil.copy2 shutil.copyfile shutil.copytree io.open".split()
    if importlib.util.find_spec("torch") is not None:
        told += ["torch.load", "torch.optim.AdamW", "torch.utils.data.DataLoader"]
    assert checked >= set(told)


def call(*args: Value, **keywords: Value) -> Call:
    return Call("", list(args), keywords, HERE)


def test_an_argument_is_found_by_position_and_by_any_of_its_names() -> None:
    one, two = (Const(1),), (Const(2),)
    for given in (call(one, two), call(one, f=two), call(obj=one, filename=two)):
        given.parameters = parameters("obj path=f=filename")
        assert (given.value("obj"), given.value("path")) == (one, two)


def test_what_is_given_by_keyword_only_has_no_position_and_what_is_given_by_position_only_no_name() -> None:
    one, two = (Const(1),), (Const(2),)
    given = call(one, two, level=one, module=two)
    given.parameters = parameters("module= * level")
    assert (given.value("module"), given.value("level")) == (one, one)
    given = call(one, two)
    given.parameters = parameters("module * level")
    assert given.value("level") == ()


def test_a_role_that_is_not_declared_is_an_error() -> None:
    with pytest.raises(KeyError):
        call().value("path")


def test_the_innermost_package_that_declares_a_name_has_it() -> None:
    values: list[Value] = [(Const(number),) for number in range(5)]
    registry = Registry(
        (
            api("save", within="*", result=values[0]),
            api("save", within="torch", result=values[1]),
            api("save", within="torch.distributed.checkpoint", result=values[2]),
            api("torch.save", result=values[3]),
        ),
        unresolved=lambda machine, symbol, call: values[4],
        unknown=lambda machine, atom, call: (),
        forward=lambda machine, atom, call: (),
        annotated=lambda machine, node, name: (),
    )
    names = "here.save torch.jit.save torch.distributed.checkpoint.state.save torch.save torch.load".split()
    found: list[Value] = []
    machine: Any = None
    for name in names:
        found.append(registry.call_symbol(machine, Symbol(name), call()))
    assert found == values


def also(monkeypatch: pytest.MonkeyPatch, row: Declaration) -> None:
    monkeypatch.setattr(known, "registry", lambda: known.registry_of([*known.rows(), row]))


def test_a_new_function_of_a_library_is_one_row(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 2))
torch.export.write(torch.export.export(model.module, ()), "exported.pt2")
"""
    assert lint.body(script, "DDP502").told == []
    also(
        monkeypatch,
        api("torch.export.write", parameters="object=ep path=f", fact=facts.Save, role="checkpoint", result=NONE),
    )
    assert lint.body(script, "DDP502").told == [("DDP502", "warning")]


def test_a_new_method_of_a_librarys_object_is_one_row(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(4, 2))
if accelerator.is_main_process:
    accelerator.gather_ragged(torch.zeros(2))
"""
    assert lint(script, "DDP401").told == []
    also(monkeypatch, method("gather_ragged", of=Accelerator, fact=facts.Collective, parameters="arguments=tensor"))
    assert lint(script, "DDP401").told == [("DDP401", "error")]


@pytest.mark.parametrize(
    ("roles", "said"), [({}, "lacks: role"), ({"role": "file", "paths": ()}, "has no role of it: paths")]
)
def test_a_row_that_does_not_fit_its_fact_is_an_error(roles: dict[str, Any], said: str) -> None:
    with pytest.raises(BrokenRow, match=f"the row `torch.export.save` on Save {said}"):
        api("torch.export.save", parameters="object=ep path=f", fact=facts.Save, **roles)


@pytest.mark.parametrize(
    "parameters",
    [
        "object=ep path=f wroker=name",
        "object=ep path=f * level",
        "wroker=name object=ep path=f",
        "object=ep path=f name",
    ],
)
def test_a_row_with_a_parameter_that_nothing_asks_for_is_an_error(parameters: str) -> None:
    with pytest.raises(BrokenRow, match=r"^the row `torch.export.save` has .* nothing asks for: (wroker|level|name)$"):
        api("torch.export.save", parameters=parameters, fact=facts.Save, role="file")
    api("torch.export.save", parameters="name object=ep path=f", fact=facts.Save, role="file")


def test_a_row_with_roles_and_no_fact_is_an_error() -> None:
    with pytest.raises(
        BrokenRow, match=r"the row `torch\.export\.save` has no fact that these could be roles of: facts$"
    ):
        api("torch.export.save", parameters="object=ep path=f", facts=facts.Save)


def test_a_row_records_what_it_says_and_gives_the_object_that_it_makes() -> None:
    recorded: list[Fact] = []
    machine: Any = SimpleNamespace(record=lambda fact, site: recorded.append(fact))
    row = api("new.Writer", parameters="path=folder", makes=Writer, fact=facts.Save, role="log", called="writer")
    path = (Const("runs"),)
    (writer,) = row.call(machine, Symbol("new.Writer"), call(folder=path))
    assert isinstance(writer, Writer) and writer.path == path
    (fact,) = recorded
    assert fact.name == "writer" and fact.given == {"path": path, "role": "log", "writer": (writer,)}
    assert list(fact.given) == ["path", "role", "writer"]


def test_what_notes_leaves_the_answer_to_others_and_the_first_row_answers() -> None:
    asked: list[str] = []
    one, two, three = (Const(1),), (Const(2),), (Const(3),)

    def note(machine: Any, atom: Any, call: Call) -> Value:
        asked.append(call.name)
        return three

    registry = known.registry_of(
        (
            method("get_*", of=Writer, result=one),
            method("*", of=Writer, result=two),
            method("get_rank", note, of=Writer, notes=True),
            method("get_rank", note, of=DDP, notes=True),
        )
    )
    machine: Any = None
    writer = Writer(HERE)
    found = [registry.call_resource(machine, writer, Call(name, [], {}, HERE)) for name in ("get_rank", "get_it", "it")]
    assert (found, asked) == ([one, one, two], ["get_rank"])


def test_every_file_that_declares_rows_is_asked() -> None:
    folder = Path(known.__file__).parent
    declaring = {path.stem for path in folder.glob("*.py") if "\nDECLARED" in path.read_text(encoding="utf-8")}
    assert declaring == {file.__name__.rpartition(".")[2] for file in known._FILES}
