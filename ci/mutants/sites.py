"""Places that several planters look for: guards on the rank, training forwards, collectives, writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

from ci.mutants.flow import Flow
from ci.mutants.mutant import Place
from ci.mutants.script import File, Script

COLLECTIVES = (
    "distributed.barrier",
    "distributed.all_reduce",
    "distributed.reduce",
    ".wait_for_everyone",
    "fabric.barrier",
)
_RANK_TEST = re.compile(r"is_main|is_master|master_process|rank(\(\))?\s*==\s*0")
_WRITES = re.compile(r"\btorch\.save\(|\bjson\.dump\(|\bopen\(.*\"[wa]\"")


@lru_cache(maxsize=64)
def flow_of(script: Script) -> Flow:
    """The script's flow of values, found once."""
    return Flow(script)


def is_spawned(script: Script) -> bool:
    """Whether the script starts its own workers, on one machine."""
    return script.mentions(r"mp\.spawn\(")


def rank_zero(file: File) -> str | None:
    """A condition for "on rank zero" which can stand anywhere in the file where a process group is up."""
    for text, condition in (
        ("import torch.distributed as dist", "dist.get_rank() == 0"),
        ("from accelerate import", "accelerator.is_main_process"),
        ("import lightning as", "fabric.global_rank == 0"),
    ):
        if text in file.text:
            return condition
    return None


def rank_guards(script: Script) -> Iterator[tuple[File, cst.If]]:
    """``if`` on rank zero only, without another branch."""
    for file, node in script.find(cst.If):
        if node.orelse is None and _RANK_TEST.search(file.code(node.test)):
            yield file, node


def guarded_by_rank(file: File, node: cst.CSTNode) -> bool:
    """Whether an ``if`` on the rank lies around the node, in its function."""
    for parent in file.parents(node):
        if isinstance(parent, cst.FunctionDef):
            return False
        if isinstance(parent, cst.If) and re.search(r"rank|is_main|is_master", file.code(parent.test)):
            return True
    return False


def without_rank(file: File, test: cst.BaseExpression) -> str | None:
    """What is left of a condition when its part about the rank is taken out; "" for nothing, None if unclear."""
    if not isinstance(test, cst.BooleanOperation):
        return ""
    if not isinstance(test.operator, cst.And):
        return None
    if _RANK_TEST.search(file.code(test.right)):
        return file.code(test.left)
    if isinstance(test.left, cst.BooleanOperation):
        rest = without_rank(file, test.left)
        return f"{rest} and {file.code(test.right)}" if rest else None
    return file.code(test.right)


def with_rank(file: File, test: cst.BaseExpression, condition: str) -> str | None:
    """The condition with another one in place of its part about the rank."""
    rest = without_rank(file, test)
    if rest is None:
        return None
    return f"{condition} and {rest}" if rest else condition


def writes(script: Script, file: File, node: cst.CSTNode) -> list[Place]:
    """Statements that write files, in the node or in functions of the script which it calls directly."""
    found = _writes_in(file, node)
    for call in file.inside(node, cst.Call):
        callee = flow_of(script).callee(file, call)
        if callee is not None:
            found += _writes_in(*callee)
    return found


def _writes_in(file: File, node: cst.CSTNode) -> list[Place]:
    calls = [call for call in file.inside(node, cst.Call) if _WRITES.match(file.code(call))]
    return [file.place(file.statement(call)) for call in calls]


def in_evaluation(file: File, node: cst.CSTNode) -> bool:
    """Whether the node lies under ``no_grad``, or in a function that puts the model into evaluation."""
    for parent in file.parents(node):
        if isinstance(parent, cst.With) and re.search(r"no_grad|inference_mode", file.code(parent).partition("\n")[0]):
            return True
        if isinstance(parent, cst.FunctionDef):
            header = " ".join(file.code(decorator) for decorator in parent.decorators)
            return "no_grad" in header or ".eval()" in file.code(parent)
    return False


def forwards(script: Script) -> Iterator[tuple[File, cst.Call]]:
    """Calls of a wrapped model."""
    flow = flow_of(script)
    for file, call in script.find(cst.Call):
        if isinstance(call.func, (cst.Name, cst.Attribute)) and "wrapped" in flow.kinds(file, call.func):
            yield file, call


def training_forwards(script: Script) -> list[tuple[File, cst.Call]]:
    """Calls of a wrapped model in training."""
    return [(file, call) for file, call in forwards(script) if not in_evaluation(file, call)]


def wraps(script: Script) -> Iterator[tuple[File, cst.Call]]:
    """Calls of DistributedDataParallel."""
    yield from script.calls("DistributedDataParallel")


def starts(script: Script) -> list[Place]:
    """Statements that start the process group."""
    calls = script.calls("distributed.init_process_group")
    return [file.place(file.statement(call)) for file, call in calls]


def started_on_gpus(script: Script) -> list[tuple[File, cst.Call]]:
    """Calls that start the process group, without the CPU's branch where the script has one for each."""
    calls = list(script.calls("distributed.init_process_group"))
    return [(file, call) for file, call in calls if '"gloo"' not in file.code(call) or '"nccl"' in file.code(call)]


def device_uses(script: Script) -> list[Place]:
    """Statements that choose a device."""
    found = []
    for file, call in script.find(cst.Call):
        if re.search(r"set_device\(|torch\.device\(\"cuda\",|cuda:\{|device_ids=|\.to\(device\)", file.code(call)):
            statement = file.statement(call)
            if isinstance(statement, cst.SimpleStatementLine):
                found.append(file.place(statement))
    return found


def local_rank_reads(script: Script) -> list[tuple[File, cst.CSTNode]]:
    """Where LOCAL_RANK is read from the environment, not where it is set."""
    found: list[tuple[File, cst.CSTNode]] = []
    for file, node in script.find(cst.Subscript):
        if file.code(node) == 'os.environ["LOCAL_RANK"]' and not isinstance(file.parent(node), cst.AssignTarget):
            found.append((file, node))
    return found


def statement_calls(script: Script, *names: str) -> Iterator[tuple[File, cst.Call, cst.SimpleStatementLine]]:
    """Calls that are a statement of their own, alone on a line."""
    for file, call in script.calls(*names):
        line = file.statement(call)
        if (
            isinstance(file.parent(call), cst.Expr)
            and isinstance(line, cst.SimpleStatementLine)
            and len(line.body) == 1
        ):
            yield file, call, line


def assigned_name(file: File, call: cst.CSTNode) -> str | None:
    """What the value of the call is assigned to, as text."""
    assign = file.enclosing(call, cst.Assign)
    return file.code(assign.targets[0].target) if assign is not None else None
