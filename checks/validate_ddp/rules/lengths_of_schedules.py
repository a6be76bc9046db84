"""Whether the length that a schedule of the learning rate is made from fits the steps that each rank makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import Place
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.names import SPREAD
from validate_ddp.interpreter.names_of_training import TURNS
from validate_ddp.interpreter.objects import Length
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Accelerator, Loader
from validate_ddp.interpreter.values import (
    Const,
    Opaque,
    Rank,
    Value,
    WorldSize,
    bare,
    constant,
    is_none,
    reaching,
)
from validate_ddp.models.data import distributed_samplers
from validate_ddp.rules.proposing import place


def in_one_process(length: Length, trained: list[facts.Iterate]) -> tuple[str, list[Place]] | None:
    """Whether it is the length of a sharded dataset, divided by the batch size of one rank."""
    for iterate in trained:
        for loader in bare(iterate.loader):
            samplers = distributed_samplers((loader,))
            given = [atom for atom in bare(loader.sampler + loader.batch_sampler) if not is_none(atom)]
            if not samplers or len(samplers) != len(given):
                continue
            if not _is_of(length, loader.dataset) or loader.prepared:
                continue
            divisors = [operand for operator, operand in length.steps if operator in ("Div", "FloorDiv")]
            if any(_is_batch(divisor, loader.batch_size) for divisor in divisors):
                message = (
                    "the schedule counts `len(dataset)` by the batch size of one rank: each rank makes only "
                    "1/world_size of these steps; count with `len(loader)`"
                )
                return message, [
                    place(length.site, "this is the length of the whole dataset"),
                    place(samplers[0].site, "each rank gets a share of it"),
                    place(loader.site, "the same number is the batch size of each rank"),
                ]
    return None


def accelerated_wrongly(
    program: Program, fact: facts.Scheduler, length: Length, trained: list[facts.Iterate]
) -> tuple[str, list[Place]] | None:
    """Whether the length is that of a loader on the wrong side of Accelerate's ``prepare``."""
    launchers = [atom for launch in program.facts(facts.Launch) for atom in launch.launcher]
    if (
        not any(scheduler.stepped for scheduler in fact.scheduler)
        or not launchers
        or not all(isinstance(launcher, Accelerator) for launcher in launchers)
    ):
        return None
    if any(launcher.split or launcher.unseen or launcher.own_schedule for launcher in launchers):
        return None
    prepared = bool(fact.scheduler[0].prepared)
    for loader in _measured(length, prepared, trained):
        served = [atom for fact in trained for atom in bare(fact.loader) if atom.site is loader.site]
        if not served or not all(atom.prepared for atom in served):
            continue
        if prepared:
            message = (
                "the schedule counts the steps of one rank, but a prepared scheduler is stepped num_processes times at "
                "each: it ends too early; multiply by `accelerator.num_processes`"
            )
        else:
            message = (
                "the schedule counts the batches of all ranks: each rank makes only 1/num_processes of these steps; "
                "take the length of the prepared loader, or prepare the scheduler too"
            )
        whole = "the loader" if loader in bare(length.of) else "the data set"
        return message, [
            place(length.site, f"the length of {whole} {'after' if prepared else 'before'} `prepare`"),
            place(loader.site, "the loader is made here"),
        ]
    return None


def _measured(length: Length, prepared: bool, trained: list[facts.Iterate]) -> Iterator[Loader]:
    """The loaders whose batches the length counts, on the side of ``prepare`` on which that is wrong."""
    for loader in bare(length.of):
        if isinstance(loader, Loader) and bool(loader.prepared) is prepared:
            yield loader
    if prepared:
        return
    divisors = [operand for operator, operand in length.steps if operator in ("Div", "FloorDiv")]
    for iterate in trained:  # the length of the data set, by the batch size of one rank
        for loader in bare(iterate.loader):
            if _is_of(length, loader.dataset):
                if any(_is_batch(divisor, loader.batch_size) for divisor in divisors):
                    yield loader


def is_plain(length: Length) -> bool:
    """Whether nothing that may stand for the number of ranks was divided or multiplied by."""
    for operator, operand in length.steps:
        if operator in ("Div", "FloorDiv", "Mult", "into"):
            for atom in bare(operand):
                known = isinstance(atom, Const) or (isinstance(atom, Opaque) and atom.name)
                if not known or SPREAD.matches(OF_ONE.sub("", getattr(atom, "name", ""))):
                    return False
    return True


def _is_of(length: Length, dataset: Value) -> bool:
    return any(atom is other for atom in bare(length.of) for other in bare(dataset))


OF_ONE = re.compile(r"per_(?:device|gpu|rank|worker|process)_")
"""What says of a number that it is that of one rank: `per_device_train_batch_size`."""


def _is_batch(divisor: Value, batch_size: Value) -> bool:
    """Whether it is the batch size of one rank, or that times the batches that are accumulated."""
    if _same_number(divisor, batch_size):
        return True
    if any(isinstance(part, (Rank, WorldSize)) for part in reaching((*divisor, *batch_size))):
        return False
    for size in bare(batch_size):
        own = size.name if isinstance(size, Opaque) else ""
        for atom in bare(divisor):
            name = atom.name if isinstance(atom, Opaque) else ""
            rest = name.removeprefix(own) if name.startswith(own) else name.removesuffix(own)
            if own and rest != name and TURNS.matches(rest) and not SPREAD.matches(rest):
                return True
    return False


def _same_number(first: Value, second: Value) -> bool:
    """Whether both are surely one number, and no world size went into it."""
    if any(isinstance(part, (Rank, WorldSize)) for part in reaching((*first, *second))):
        return False
    if constant(first) is not ... or constant(second) is not ...:
        return type(constant(first)) is int and constant(first) == constant(second)
    names = {_name(atom) for atom in (*bare(first), *bare(second))}
    return len(names) == 1 and names != {""}


def _name(atom: Any) -> str:
    return atom.name.rpartition(".")[2] if isinstance(atom, Opaque) else ""
