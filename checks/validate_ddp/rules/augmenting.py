"""Where the samples that are trained on are changed at random, and who seeds the workers that do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from validate_ddp.findings import Place, Span
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.names_of_training import SEED
from validate_ddp.interpreter.objects import Augmented
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import DEALT, RNG, Loader, Subset
from validate_ddp.interpreter.values import (
    Class,
    Const,
    Function,
    Instance,
    Lazy,
    Opaque,
    Symbol,
    Value,
    bare,
    constant,
    reaching,
)
from validate_ddp.interpreter.vocabulary import LIBRARIES
from validate_ddp.rules.proposing import place
from validate_ddp.source.syntax import Call, Constant, FunctionDef
from validate_ddp.source.traversal import dotted, keywords_of, walk

_RANDOM = ("random", "numpy.random", "np.random")
_DRAWN = frozenset("randint uniform choice choices randrange sample randn rand normal random shuffle gauss".split())
_OF_TENSORS = frozenset("randint rand_like randn_like randint_like bernoulli".split())
_OWN = frozenset("Generator default_rng RandomState PCG64 Philox MT19937 SFC64 Random SystemRandom".split())
"""What makes a generator."""
_PER_SAMPLE = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
"""What is called for each sample or batch: of a class without any of these, every method counts."""
_DEEPEST = 3
_OF_WORKER = "worker_info().seed"
ZERO: Value = (Const(0),)


class Augmentation(NamedTuple):
    """Places that change samples at random; ``sure`` where nothing has to be guessed from one option's name."""

    places: list[Place]
    sure: bool = True


def augmentations(program: Program) -> Augmentation:
    """Random changes of the samples that are trained on, drawn in workers which nobody else seeds."""
    found: list[Place] = []
    named: list[Augmented] = []
    for loader in _trained_on(program):
        if any(map(_seeds, loader.worker_init_fn)) or loader.generator or loader.prepared not in ((), DEALT):
            continue  # its workers are seeded in their own way
        found.extend(_random_methods(loader.dataset + loader.collate_fn))
        named.extend(_told_to_augment(loader.dataset + loader.collate_fn))
        if not found:
            drawn = [fact for fact in program.facts(facts.Draw) if fact.transform and fact.who == "all"]
            found.extend(place(fact.site, "drawn here") for fact in drawn)
    if found:
        return Augmentation(found)
    places = [place(part.site, f"samples change at random here, as {part.said} says") for part in named]
    return Augmentation(list(dict.fromkeys(places)), any(part.sure for part in named))


def seed_of_loader(program: Program) -> tuple[facts.Seed | None, list[Place]]:
    """The seed, alike on every rank, of a loader's own generator, which gives workers theirs, and where these draw."""
    seeds = program.facts(facts.Seed)
    if any(map(sets_workers_apart, seeds)):
        return None, []
    for loader in _trained_on(program):
        if loader.prepared not in ((), DEALT) or constant(loader.num_workers or ZERO) == 0:
            continue  # what one process draws for its batches hangs on its own seeds
        made = [part for part in reaching(loader.generator) if isinstance(part, RNG)]
        if len(made) != 1 or not is_alike(made[0].seed) or not all(map(_keeps_base_seed, loader.worker_init_fn)):
            continue
        places = _random_methods(loader.dataset + loader.collate_fn)
        given = [fact for fact in seeds if fact.site == bare(made[0].at)[0].site]
        if places and given:
            return given[0], places[:2]
    return None, []


def sets_workers_apart(fact: facts.Seed) -> bool:
    """Whether it has the workers of every rank seeded with the rank, as ``seed_everything(0, workers=True)`` does."""
    return bool(fact.workers_apart) and constant(fact.workers_apart) is not False


def _keeps_base_seed(atom: Any) -> bool:
    """Whether what workers start with leaves them the seeds that the loader gave, or hands these on, and no rank."""
    if isinstance(atom, Const):
        return atom.value is None
    if not isinstance(atom, Function) or not isinstance(atom.node, FunctionDef):
        return False
    words = atom.node.words
    return not _seeds(atom) or ("initial_seed" in words and not any("rank" in word.lower() for word in words))


def seeds_of_workers(program: Program) -> list[facts.Seed]:
    """The seeds of workers that draw for the training, where they are surely the same for one worker of each rank."""
    sites = {loader.site for loader in _trained_on(program) if _may_draw(program, loader.dataset)}
    seeds = [fact for fact in program.facts(facts.Seed) if Flag.WORKER in fact.flags and sites & set(fact.chain)]
    return seeds if all(is_alike(fact.seed) for fact in seeds) else []


def _may_draw(program: Program, dataset: Value) -> bool:
    """Whether workers draw random numbers for samples: in sight, by name, or in a class of the project out of sight.

    What libraries make of a table of texts draws nothing, though its workers are seeded as a habit.
    """
    if _random_methods(dataset) or any(_told_to_augment(dataset)):
        return True
    if any(fact.transform for fact in program.facts(facts.Draw)):
        return True
    made = [atom.name for atom in bare(dataset) if isinstance(atom, Opaque)]
    return any(name.endswith("()") and name.partition(".")[0] not in (*LIBRARIES, "") for name in made)


def is_alike(seed: Value) -> bool:
    """Whether the seed is a constant, or an option for seeds, with constants added perhaps: the same on every rank."""
    return bool(seed) and all(
        (isinstance(atom, Const) and type(atom.value) is int)
        or (isinstance(atom, Opaque) and not reaching((atom,)) and _is_told(atom.name))
        for atom in bare(seed)
    )


def _is_told(name: str) -> bool:
    """Whether a value's name is that of an option for seeds; what is computed from one has a name such as `seed1`.

    What a worker is told is drawn by its rank: `get_worker_info().seed`.
    """
    return _OF_WORKER not in name and SEED.matches(name.strip("0123456789"))


def _trained_on(program: Program) -> Iterator[Loader]:
    for fact in program.facts(facts.Iterate):
        for loader in bare(fact.loader):
            if program.trains(fact) and not loader.open:
                yield loader


def _told_to_augment(dataset: Any, depth: int = 0) -> Iterator[Augmented]:
    """What says that a data set, or what it was made of, changes samples at random, although it is out of sight."""
    for part in reaching(dataset) if depth < _DEEPEST else ():
        if isinstance(part, Augmented):
            yield part
        elif isinstance(part, Subset):
            yield from _told_to_augment(part.dataset, depth + 1)
        elif isinstance(part, Instance):
            for value in part.fields.values():
                yield from _told_to_augment(value, depth + 1)


def _random_methods(value: Value, depth: int = 0) -> list[Place]:
    """Where random numbers are drawn for a sample: by a data set, by what it calls, by what puts samples together."""
    found: list[Place] = []
    for atom in bare(value) if depth < _DEEPEST else ():
        if isinstance(atom, Subset):
            found.extend(_random_methods(atom.dataset, depth + 1))
        elif isinstance(atom, Function) and isinstance(atom.node, FunctionDef):
            found.extend(_of_functions(atom.module, [atom.node]))
        elif isinstance(atom, Opaque):  # `ConcatDataset([first, second])`
            for part in atom.carries:
                if isinstance(part, Instance) and part.cls.find("__getitem__")[0] is not None:
                    found.extend(_random_methods((part,), depth + 1))
        elif isinstance(atom, Instance):
            methods = _methods_for_samples(atom)
            for module, node in methods:
                found.extend(_of_functions(module, [node]))
            used = {word for _, node in methods for word in node.words}
            for name, held in atom.fields.items():
                if name in used:
                    found.extend(_random_methods(_called(held), depth + 1))
    return found


def _seeds(atom: Any) -> bool:
    """Whether what workers start with may seed them: not where it is in sight and says nothing of seeds."""
    if isinstance(atom, Const):
        return atom.value is not None
    if not isinstance(atom, Function) or not isinstance(atom.node, FunctionDef):
        return True
    return any(said in word.lower() for word in atom.node.words for said in ("seed", "rng"))


def _called(value: Value) -> Value:
    """Of what an object holds, what is called for each sample: functions, and objects that can be called."""
    return tuple(
        atom
        for atom in bare(value)
        if isinstance(atom, Function)
        or (isinstance(atom, Instance) and any(atom.cls.find(name)[0] is not None for name in ("__call__", "forward")))
    )


def _methods_for_samples(instance: Instance) -> list[tuple[Any, FunctionDef]]:
    """The methods that make a sample, with their modules: those that are called for it, and what these call."""
    methods = {
        name: (function.module, function.node)
        for cls in reversed(instance.cls.lineage())
        if isinstance(cls, Class)
        for name, member in cls.members.items()
        for function in bare(member)
        if isinstance(function, Function) and isinstance(function.node, FunctionDef) and name != "__init__"
    }
    pending = [name for name in _PER_SAMPLE if name in methods] or list(methods)
    reached: dict[str, None] = {}
    while pending:
        name = pending.pop()
        if name not in reached:
            reached[name] = None
            pending += [word for word in methods[name][1].words if word in methods]
    return [methods[name] for name in reached]


def _of_functions(module: Any, nodes: list[FunctionDef], depth: int = 0) -> Iterator[Place]:
    """The functions among these, and among those of the module that they call, which draw from the process's state."""
    names = module.scope.names
    for node in nodes:
        if not _OWN.isdisjoint(node.words):
            continue  # drawn from a generator of its own, which the process's seed does not reach
        if any(_draws(part, names) for part in walk(node.body) if isinstance(part, Call)):
            yield Place(module.path, Span(*node.span), f"`{node.name}` draws random numbers for a sample")
        elif depth < _DEEPEST:
            others = (_definition(names.get(word, ())) for word in node.words if word != node.name)
            yield from _of_functions(module, [other for other in others if other is not None], depth + 1)


def _definition(value: Value) -> FunctionDef | None:
    """The function of the same module that a name stands for, looked up already or not."""
    for atom in value:
        node = getattr(atom, "node", None)
        if isinstance(atom, (Lazy, Function)) and isinstance(node, FunctionDef):
            return node
    return None


def _draws(call: Call, names: dict[str, Value]) -> bool:
    """Whether a call draws from the random state of the process: of Python, NumPy or PyTorch."""
    written = dotted(call.func)
    if written is None or "generator" in keywords_of(call):
        return False
    root, dot, rest = written.partition(".")
    for atom in names.get(root, ()):
        if isinstance(atom, Symbol):
            root = atom.name
        elif isinstance(atom, Lazy) and atom.target is None and atom.node is None:
            root = f"{atom.dotted}.{atom.name}" if atom.name else atom.dotted
    library, _, last = (root + dot + rest).rpartition(".")
    if library == "torch" and last in ("rand", "randn"):  # of a size, it may stand for data that are not there
        return all(isinstance(part, Constant) and part.value == 1 for part in call.args)
    return last in (_OF_TENSORS if library == "torch" else _DRAWN if library in _RANDOM else ())
