"""BatchNorm under DDP, with so few samples a rank that its statistics are those of a small batch.

## What it does
Looks for models with BatchNorm under DistributedDataParallel, in a script that trains and nowhere speaks of
SyncBatchNorm; not where each rank is known to get more than 16 rows at a time, nor in a branch for the CPU, whose
tensors SyncBatchNorm refuses. In a rehearsal it looks at how many rows
each rank's training forward is given.

## Why is this bad?
Each rank normalises by the mean and variance of its own rows, not of the global batch. With few rows they are noisy,
and the buffers that are saved are those of rank 0 alone.

## Example
```python
model = DDP(resnet50())
```

## Use instead
```python
model = DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm(resnet50()))
```

## References
- [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import INFO, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.surroundings import levels
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Layer
from validate_ddp.interpreter.values import Class, Instance, Lazy, Opaque, Value, bare, constant
from validate_ddp.models.optimizers import parts_of
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose
from validate_ddp.source.syntax import BoolOp, Call, ClassDef, Compare, Constant, Expression, FunctionDef, If, Node
from validate_ddp.source.traversal import children, is_name, last_name

TRIGGER = facts.Wrap
SEVERITIES = (INFO,)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling(once=True)

HEAD = """
    import torchvision

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x):
            return self.norm(self.layer(x))

    dist.init_process_group("gloo")
"""
TAIL = """
    model(torch.zeros(1, 3, 32, 32)).sum().backward()
    dist.destroy_process_group()
"""
VALID = (
    """
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(Normed()))
    """,
    """
    model = DDP(Net())
    """,
    """
    loader = DataLoader(range(640), batch_size=64, sampler=DistributedSampler(range(640), shuffle=False))
    model = DDP(Normed())
    """,
    """
    model = DDP(torchvision.models.vit_b_16())
    """,
    """
    device = torch.device(os.environ["DEVICE"])
    if device.type == "cpu" and dist.get_world_size() > 1:
        model = DDP(Normed())
    """,
    """
    device = torch.device(os.environ["DEVICE"])
    if device.type == "cuda":
        model = DDP(Net())
    else:
        model = DDP(Normed())
    """,
    """
    class Replaced(Net):
        def __init__(self, backbone):
            super().__init__()
            self.backbone = backbone
            for name, layer in backbone.named_children():
                if isinstance(layer, nn.BatchNorm2d):
                    setattr(backbone, name, nn.GroupNorm(8, layer.num_features))

    model = DDP(Replaced(nn.Identity()))
    """,
    """
    def build(kind):
        return Normed() if kind == "normed" else Net()

    model = DDP(build(os.environ["KIND"]))
    """,
    """
    # alone
    from torchvision.models import resnet50

    dist.init_process_group("gloo")
    model = DDP(resnet50()).eval()
    with torch.no_grad():
        print(model(torch.zeros(1, 3, 32, 32)).sum().item())
    dist.destroy_process_group()
    """,
)
INVALID = (
    """
    model = DDP(Normed())  # expect
    """,
    """
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Normed()

    model = DDP(Outer())  # expect
    """,
    """
    model = DDP(torchvision.models.resnet50(num_classes=10))  # expect
    """,
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    model = torchvision.models.__dict__[parser.parse_args().arch](num_classes=10)
    model = DDP(model)  # expect
    """,
    """
    device = torch.device(os.environ["DEVICE"])
    if device.type == "cpu":
        print("slow")
    else:
        model = DDP(Normed())  # expect
    """,
    """
    model = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))  # expect
    """,
)
_FEW = 16
_NORMS = frozenset("BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d".split())
_FAMILIES = """resnet resnext wide_resnet densenet mobilenet efficientnet shufflenet mnasnet regnet inception
    googlenet""".split()
"""Of torchvision, the families of models whose every member has BatchNorm."""


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each wrapper around a model that surely has BatchNorm."""
    if program.mentions(mentions.SYNCED_NORM) or not program.facts(facts.Backward):
        return
    sizes = [constant(fact.batch_size) for fact in program.facts(facts.Loader)]
    if sizes and all(isinstance(size, int) and size > _FEW for size in sizes):
        return
    reported = set()
    for fact in program.facts(facts.Wrap):
        if fact.name != "ddp" or fact.site in reported or not program.runs_on_many(fact):
            continue
        norm = next((part for part in _parts(fact.inner) if _has_norm(part) or _may_have_it(program, part)), None)
        if norm is None or not all(any(map(_has_norm, _parts((model,)))) for model in _instances(fact.inner)):
            continue  # where the configuration says which model it is, all of them have it
        if _is_for_cpu(program, fact):
            continue
        reported.add(fact.site)
        yield propose(
            program,
            fact,
            INFO,
            "this model has BatchNorm, and each rank takes its statistics from its own rows: with few rows a rank, "
            "`SyncBatchNorm.convert_sync_batchnorm` makes them those of the global batch",
            evidence=[place(norm.site, "made here")] if isinstance(norm, (Layer, Instance)) else [],
        )


def _is_for_cpu(program: Program, fact: Fact) -> bool:
    """Whether a condition around it lets only the CPU pass: `elif device.type == "cpu":`, or the else of `"cuda"`."""
    for level in levels(program.body(fact.site.path), fact.site.statement):
        if isinstance(level.owner, If):
            inside = level.body is level.owner.body
            if _says(level.owner.test, "cpu" if inside else "cuda", inside):
                return True
    return False


def _says(test: Expression, device: str, inside: bool) -> bool:
    """Whether a condition holds for this device alone; for one that fails, whether only that device passes it."""
    if isinstance(test, BoolOp) and test.op == "And" and inside:
        return any(_says(part, device, inside) for part in test.values)
    if not isinstance(test, Compare) or test.ops != ["Eq"]:
        return False
    sides = (test.left, *test.comparators)
    return any(isinstance(side, Constant) and side.value == device for side in sides)


def _parts(model: Value) -> list[Any]:
    return [*parts_of(model), *bare(model)]


def _instances(model: Value) -> list[Instance]:
    return [atom for atom in bare(model) if isinstance(atom, Instance)]


def _has_norm(part: Any) -> bool:
    if isinstance(part, Layer):
        return part.called in _NORMS
    if isinstance(part, Opaque):
        name = part.name.removesuffix("()")
        last = name.rpartition(".")[2]
        return name.startswith("torchvision.models.") and (last.startswith(tuple(_FAMILIES)) or last.endswith("_bn"))
    return isinstance(part, Instance) and any(
        _makes_norm(base.node, base.module.scope.names, set()) for base in part.cls.lineage() if isinstance(base, Class)
    )


def _may_have_it(program: Program, part: Any) -> bool:
    """Whether it is any model of torchvision, ``models.__dict__[arch]()``, where the program speaks of one with it."""
    named = isinstance(part, Opaque) and part.name.startswith("torchvision.models.__dict__")
    return named and program.mentions(mentions.RESIDUAL)


def _makes_norm(made_by: ClassDef | FunctionDef, names: dict[str, Value], seen: set[str]) -> bool:
    """Whether a definition makes a BatchNorm, or uses a definition of its file that does."""
    words = made_by.words
    if not _NORMS.isdisjoint(words) and _is_made(made_by):
        return True
    for word in words:
        for atom in names.get(word, ()) if word not in seen else ():
            seen.add(word)
            node = atom.node if isinstance(atom, (Class, Lazy)) else None
            if isinstance(node, (ClassDef, FunctionDef)) and _makes_norm(node, names, seen):
                return True
    return False


def _is_made(node: Node) -> bool:
    """Whether a BatchNorm is named other than to ask for one: `isinstance(layer, nn.BatchNorm2d)`."""
    if isinstance(node, Call) and is_name(node.func, "isinstance"):
        return False
    return last_name(node) in _NORMS or any(map(_is_made, children(node)))


def observe(run: Run) -> Seen:
    """Looks at one rank: all have the same model."""
    rank = run.ranks[0] if run.ranks else 0
    most: dict[int, int] = {}
    for event in run.of(rank, protocol.Forward):
        if event.training and event.grad and event.rows:
            most[event.ddp] = max(event.rows, most.get(event.ddp, 0))
    for wrapper in run.of(rank, protocol.Ddp):
        rows = most.get(wrapper.ddp)
        if not rows or not wrapper.batch_norms:
            continue
        if rows <= _FEW:
            message = (
                f"{wrapper.batch_norms} BatchNorm modules see at most {rows} rows on each rank: "
                "`SyncBatchNorm.convert_sync_batchnorm` makes it the global batch"
            )
            yield Observation(INFO, wrapper.site, message, (), (rank,))
        else:
            yield Well()
