"""What the fixes of several rules are made of: conditions for rank zero, and code that has the program's own names."""

from __future__ import annotations

import itertools

from validate_ddp.findings import Edit, Span
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.names import SOME_RANK
from validate_ddp.interpreter.surroundings import (
    bound_names,
    call_at,
    held_by_names,
    imported_names,
    levels,
    returns_within,
    written,
)
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Accelerator
from validate_ddp.interpreter.values import Const, Rank, RankTest, Site, Value, bare
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Expression, FunctionDef, Node
from validate_ddp.source.traversal import last_name, walk

_NOWHERE = Span(1, 0, 1, 0)
_ALONE, _ZERO = syntax.Constant(-1), syntax.Constant(0)


def rank_zero(program: Program, fact: Fact) -> tuple[str, tuple[Edit, ...]] | None:
    """A condition that holds on rank zero alone at a fact's place, and the imports that it needs.

    What the program has there already: a flag of the main process, a rank, an accelerator; else ``get_rank()``.
    """
    body = program.body(fact.site.path)
    for name in held_by_names(body, fact, _is_flag):
        return name, ()
    for name in held_by_names(body, fact, _is_rank):
        return f"{name} in (-1, 0)" if _may_be_alone(program) else f"{name} == 0", ()
    for name in held_by_names(body, fact, _is_accelerator):
        return f"{name}.is_main_process", ()
    before = [other for other in program.facts(facts.ProcessGroup) if other.name == "init" and other.order < fact.order]
    if not before or any(launch.name == "horovod" for launch in program.facts(facts.Launch)):
        return None
    dist, imports = distributed(program, fact.site.path, fact.site.statement)
    if dist is None:
        return None
    test = f"{dist}.get_rank() == 0"
    if fact.site.path == program.entry and always_initialised(program):
        return test, imports
    return f"not {dist}.is_initialized() or {test}", imports  # a module serves scripts without a group too


def _may_be_alone(program: Program) -> bool:
    """Whether the program says -1 for the rank of a single process: it compares one with that, or has it by default."""
    return program.once(
        _may_be_alone, lambda: any(_says_alone(node) for file in program.files for node in walk(program.body(file)))
    )


def _says_alone(node: Node) -> bool:
    if isinstance(node, syntax.Compare):
        sides = [node.left, *node.comparators]
        listed = [side.elts for side in sides if isinstance(side, (syntax.Tuple, syntax.List))]
        if any(elements in ([_ALONE, _ZERO], [_ZERO, _ALONE]) for elements in listed):
            return True
        return _ALONE in sides and any(map(_is_of_rank, sides))
    if isinstance(node, syntax.Assign):
        return node.value == _ALONE and any(map(_is_of_rank, node.targets))
    if isinstance(node, FunctionDef):
        return any(SOME_RANK.matches(each.name) and each.default == _ALONE for each in node.args.parameters)
    if not isinstance(node, syntax.Call):
        return False
    given = node.args[1:] if node.args and _is_of_rank(node.args[0]) else []  # `os.environ.get("RANK", -1)`
    given = [*given, *(keyword.value for keyword in node.keywords if SOME_RANK.matches(keyword.arg or ""))]
    return any(value in (_ALONE, syntax.Constant("-1")) for value in given)


def _is_of_rank(node: Expression) -> bool:
    return SOME_RANK.matches(str(node.value) if isinstance(node, syntax.Constant) else last_name(node))


def _is_flag(value: Value) -> bool:
    """Whether it is true on rank zero only; or for all, where a default for a single process joins it."""
    tests = [atom for atom in bare(value) if isinstance(atom, RankTest)]
    rest = [atom for atom in bare(value) if not isinstance(atom, RankTest)]
    known = all(test.who == "zero" and test.exact and test.sure for test in tests)
    return bool(tests) and known and all(map(_is_true, rest))


def _is_true(atom: object) -> bool:
    return isinstance(atom, Const) and atom.value is True


def _is_rank(value: Value) -> bool:
    ranks = [atom for atom in bare(value) if isinstance(atom, Rank)]
    rest = [atom for atom in bare(value) if not isinstance(atom, Rank)]
    return (
        bool(ranks)
        and all(rank.scope == "global" and rank.sure and not rank.text for rank in ranks)
        and all(isinstance(atom, Const) and type(atom.value) is int and atom.value == 0 for atom in rest)
    )


def is_local_rank(value: Value) -> bool:
    """Whether it is the rank within the node, or zero for a single process."""
    ranks = [atom for atom in bare(value) if isinstance(atom, Rank)]
    rest = [atom for atom in bare(value) if not isinstance(atom, Rank)]
    return (
        bool(ranks)
        and all(rank.scope == "local" and rank.sure and not rank.text for rank in ranks)
        and all(isinstance(atom, Const) and type(atom.value) is int and atom.value == 0 for atom in rest)
    )


def _is_accelerator(value: Value) -> bool:
    return len(value) == 1 and isinstance(value[0], Accelerator)


def distributed(program: Program, path: str, place: Span) -> tuple[str | None, tuple[Edit, ...]]:
    """How to write ``torch.distributed`` at a place, with an import of it where the file has none."""
    body = program.body(path)
    name = written(body, "torch.distributed", place)
    if name is not None:
        return name, ()
    statement = "import torch.distributed as dist"
    if "dist" in [*bound_names(body, place), *imported_names(body)]:
        return "torch.distributed", (Edit("add_import", path, _NOWHERE, "import torch.distributed"),)
    return "dist", (Edit("add_import", path, _NOWHERE, statement),)


def always_initialised(program: Program) -> bool:
    """Whether every run of the script starts its process group."""
    started = [fact for fact in program.facts(facts.ProcessGroup) if fact.name == "init"]
    return any(is_certain(program, fact) for fact in started)


def _calls(program: Program, site: Site, function: str) -> bool:
    """Whether the call at ``site`` is plainly one of ``function``, or makes an object of the class that has it."""
    call = call_at(program.body(site.path), site.span)
    return call is not None and (last_name(call.func) == function or function.startswith("__"))


def is_certain(program: Program, fact: Fact) -> bool:
    """Whether every run comes to a fact: no condition is round it, and no ``return`` ahead of it or of its callers."""
    if Flag.CONDITIONAL in fact.flags or fact.guards:
        return False
    launches = {launch.site for launch in program.facts(facts.Launch)}
    sites = [*fact.chain, fact.site]
    for site, inside in itertools.pairwise(sites):
        if site not in launches and not _calls(program, site, inside.function):
            return False  # handed on, as to `set_defaults(func=train)`: somebody may call it
    for site in sites:
        held = levels(program.body(site.path), site.statement)
        functions = [number for number, level in enumerate(held) if isinstance(level.owner, FunctionDef)]
        for level in held[functions[-1] if functions else 0 :]:
            if any(returns_within(node) for node in level.body[: level.at]):
                return False
    return True
