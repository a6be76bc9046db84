"""What is declared of libraries fits the libraries, and the words by which files and functions are passed over."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from validate_ddp.findings import Span
from validate_ddp.interpreter import facts, vocabulary
from validate_ddp.interpreter.call import Call, parameters
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.registry import Registry
from validate_ddp.interpreter.rows import Api, Declaration, Method, api, method
from validate_ddp.interpreter.training import DDP, Accelerator, Writer
from validate_ddp.interpreter.values import NONE, Const, Site, Symbol, Value
from validate_ddp.models import known
from validate_ddp.source import summaries
from validate_ddp.source.prefilter import may_matter

HERE = Site("train.py", Span(1, 0, 1, 1), Span(1, 0, 1, 1), "")
Kinds = frozenset[type[Fact]]
SEVERAL: Kinds = frozenset(
    (
        facts.ProcessGroup,
        facts.Wrap,
        facts.DataParallel,
        facts.Shard,
        facts.Sampler,
        facts.Collective,
        facts.ShardedState,
    )
)
"""Kinds of facts by which a program has to do with several ranks."""
STARTING: Kinds = frozenset((facts.ProcessGroup, facts.Wrap, facts.Launch, facts.Sampler))
"""Kinds of facts without one of which no second rank comes into being."""
SOUGHT: Kinds = SEVERAL | {
    facts.Launch,
    facts.Loader,
    facts.Partition,
    facts.Save,
    facts.Load,
    facts.LoadState,
    facts.SetEpoch,
    facts.Backward,
    facts.ZeroGrad,
}
"""Kinds of facts for whose sake a function is walked."""
NO_START = frozenset("destroy_process_group register notebook_launcher debug_launcher".split())
"""What they start has another word of these, as the Accelerator that a notebook's function makes."""
BY_NAME_ALONE = frozenset("DistributedSampler destroy_process_group DDP FSDP fully_shard register".split())
"""Their names do not say it, but what they are imported from does."""
PASSED_OVER = frozenset(
    """Allgather Allreduce Alltoall Barrier Bcast Gather Reduce Scatter bcast mesh_reduce rendezvous
    all_gather_into_tensor_coalesced all_gather_single all_gather_single_autograd all_gather_single_coalesced
    all_gather_tensor all_gather_tensor_autograd all_to_all_single_autograd permute_tensor reduce_scatter_single
    reduce_scatter_single_autograd reduce_scatter_single_coalesced reduce_scatter_tensor_autograd
    reduce_scatter_tensor_coalesced gather_for_metrics pad_across_processes wait_for_everyone
    StatefulDataLoader DataLoaderX FastDataLoader MultiEpochsDataLoader
    start_processes notebook_launcher debug_launcher PartialState AcceleratorState initialize size local_size register
    FullyShardedDataParallel DistributedDataParallelCPU LegacyDistributedDataParallel
    accumulate launch load_checkpoint load_state local_main_process_first prepare_data_loader prepare_model
    save_fp16_model setup setup_dataloaders setup_module split_between_processes
    PipelineStage distribute_module distribute_tensor parallelize_module pipeline
    async_save save_state_dict get_state_dict set_model_state_dict set_optimizer_state_dict set_state_dict
    optim_state_dict_to_load scatter_full_optim_state_dict shard_full_optim_state_dict sharded_optim_state_dict
    save_file savez_compressed savetxt copy copytree export export_onnx export_to_onnx
    dump_json dump_yaml save_json save_yaml write_json write_yaml""".split()
)
"""A function is not walked for one of these alone: a list that may only get shorter."""


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


def test_a_file_that_uses_what_is_of_several_ranks_is_not_passed_over() -> None:
    missed = {name for row in declared(SEVERAL) for name in dotted(row) if not may_matter(name.encode())}
    assert {last(name) for name in missed} <= BY_NAME_ALONE


def test_a_script_that_starts_a_second_rank_is_not_passed_over() -> None:
    names = {name for row in declared(STARTING) for name in dotted(row)}
    missed = {name for name in names if not any(word in name.encode() for word in summaries._STARTS)}
    assert {last(name) for name in missed} == NO_START
    idle = {word for word in summaries._STARTS if not any(word in name.encode() for name in names)}
    assert idle == {b"hvd"}  # as which Horovod is imported


def test_a_function_is_walked_for_what_is_declared_but_for_those_that_are_listed() -> None:
    names = {last(name) for row in declared(SOUGHT) for name in row.names}
    for row in known.rows():
        if isinstance(row, Method) and not SOUGHT.isdisjoint(row.facts):
            names.update(row.names)
    assert names - vocabulary.KEYS == PASSED_OVER


@pytest.mark.parametrize(
    "name",
    """json.dump pickle.dump shutil.copy shutil.copy2 shutil.copyfile shutil.copytree io.open logging.FileHandler
    torch.load torch.onnx.export torch.multiprocessing.spawn torch.distributed.get_rank numpy.save numpy.savetxt
    torch.nn.parallel.DistributedDataParallel torch.nn.DataParallel torch.distributed.fsdp.fully_shard""".split(),
)
def test_parameters_are_those_of_the_library(name: str) -> None:
    module, _, function = name.rpartition(".")
    real = list(inspect.signature(getattr(pytest.importorskip(module), function)).parameters)
    roles = known.registry().find(name).parameters
    assert roles
    for position, names in roles.values():
        if position >= 0:
            assert real[position] in names, (name, position)


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
    with pytest.raises(TypeError, match=f"a row on Save {said}"):
        api("torch.export.save", parameters="object=ep path=f", fact=facts.Save, **roles)


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
