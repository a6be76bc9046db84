"""What is declared of libraries fits the libraries, and the words by which files and functions are passed over."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from validate_ddp.interpreter import facts, vocabulary
from validate_ddp.interpreter.call import Call, parameters
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.registry import Registry
from validate_ddp.interpreter.rows import Api, Method, api
from validate_ddp.interpreter.values import Const, Symbol, Value
from validate_ddp.models import known
from validate_ddp.source import summaries
from validate_ddp.source.prefilter import may_matter

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
    return Call("", list(args), keywords, None)


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
