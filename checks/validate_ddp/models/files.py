"""Functions that read and write files: checkpoints, configurations, logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from validate_ddp.interpreter import facts, vocabulary
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Unique
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.training import Buffer, File, Handler, Loaded, Writer
from validate_ddp.interpreter.values import (
    Const,
    OnRanks,
    Opaque,
    Rank,
    Resource,
    Symbol,
    Value,
    bare,
    carried_by,
    constant,
    merged,
    reaching,
)

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call

Model = Callable[[Machine, Symbol, "Call"], Value]


def find(name: str) -> Model | None:
    if name in vocabulary.CHECKPOINT_WRITERS:
        return _save
    last = name.rpartition(".")[2]
    if last in ("uuid1", "uuid4"):  # lhotse and others bring their own
        return _unique
    return _FILES.get(name) or (_named_writer if last in _NAMED_WRITERS else None)


_NAMED_WRITERS = frozenset("yaml_save save_yaml dump_yaml write_yaml save_json dump_json write_json".split())
"""Helpers of files that are not there, whose names say that they write a file and nothing else."""


def _named_writer(machine: Machine, symbol: Symbol, call: Call) -> Value:
    paths = [value for value in (*call.args, *call.keywords.values()) if _path_like(value)]
    machine.record(facts.Save(symbol.last, path=paths[0] if paths else call.argument(0), role="file"), call.site)
    return (Const(None),)


def _path_like(value: Value) -> bool:
    return any(
        isinstance(atom, (Const, Opaque)) and "." in str(getattr(atom, "value", "") or getattr(atom, "name", ""))
        for atom in bare(value)
    )


def _save(machine: Machine, symbol: Symbol, call: Call) -> Value:
    machine.record(
        facts.Save(
            symbol.last,
            object=call.argument(0, "obj"),
            path=call.argument(1, "f") or call.argument(1, "filename"),
            role="checkpoint",
        ),
        call.site,
    )
    return (Const(None),)


def _load(machine: Machine, symbol: Symbol, call: Call) -> Value:
    loaded = Loaded(call.site, path=call.argument(0, "f"))
    machine.record(
        facts.Load(
            symbol.name,
            loaded=(loaded,),
            path=call.argument(0, "f"),
            map_location=call.argument(1, "map_location") or ((Const(...),) if call.open else ()),
        ),
        call.site,
    )
    path = call.argument(0, "f")
    return (Opaque("loaded", merged(loaded, *reaching(path)), is_alike(path)),)


def _open(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return opened(machine, call.argument(0, "file"), call.argument(1, "mode"), call)


def opened(machine: Machine, path: Value, mode_value: Value, call: Call) -> Value:
    """Open a file: a fact where it is for writing."""
    mode = constant(mode_value)
    if isinstance(mode, str) and any(letter in mode for letter in "wax+"):
        machine.record(facts.Save("open", path=path, mode=mode_value, role="file"), call.site)
    return (File(call.site, path=path, mode=mode_value),)


def _dump(position: int) -> Model:
    """``dump(object, file)``: writing to a handle that was opened here was noted there."""

    def dump(machine: Machine, symbol: Symbol, call: Call) -> Value:
        target = call.argument(position, "file") or call.argument(position, "stream") or call.argument(position, "fp")
        if not target or any(isinstance(atom, Resource) for atom in bare(target)):
            return (Const(None),)
        machine.record(facts.Save(symbol.last, path=target, role="handle"), call.site)
        return (Const(None),)

    return dump


def _writes(position: int, name: str, role: facts.Role = "file") -> Model:
    def write(machine: Machine, symbol: Symbol, call: Call) -> Value:
        path = call.argument(position, name)
        machine.record(facts.Save(symbol.last, path=path, role=role), call.site)
        return (Const(None),)

    return write


def _logging(machine: Machine, symbol: Symbol, call: Call) -> Value:
    path = call.argument(-1, "filename") if symbol.last == "basicConfig" else call.argument(0, "filename")
    handler = Handler(call.site)
    level = call.argument(-1, "level")
    if any(isinstance(atom, OnRanks) for atom in level) or any(isinstance(part, Rank) for part in reaching(level)):
        handler.quiet = (Const(True),)  # the other ranks log errors only
    if path and constant(path) is not None:
        machine.record(facts.Save(symbol.last, path=path, role="log", handler=(handler,)), call.site)
    return (handler,)


def _writer(machine: Machine, symbol: Symbol, call: Call) -> Value:
    path = call.argument(0, "log_dir") or call.argument(0, "logdir")
    writer = Writer(call.site, path=path)
    machine.record(facts.Save(symbol.last, path=path, role="log", writer=(writer,)), call.site)
    return (writer,)


def _join(machine: Machine, symbol: Symbol, call: Call) -> Value:
    parts = [constant(value) for value in call.args]
    name = "/".join(part if isinstance(part, str) else "" for part in parts)
    if all(isinstance(part, str) for part in parts):
        return (Const(name),)
    return (Opaque(name, carried_by(call.given), is_alike(call.given)),)


def _buffer(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Buffer(call.site),)


def _unique(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Opaque("unique", (Unique(call.site),)),)


_FILES: dict[str, Model] = {
    "torch.load": _load,
    "builtins.open": _open,
    "io.open": _open,
    "codecs.open": _open,
    "os.path.join": _join,
    "pathlib.Path": _join,
    "pathlib.PurePath": _join,
    "io.BytesIO": _buffer,
    "io.StringIO": _buffer,
    "tempfile.mkdtemp": _unique,
    "tempfile.mktemp": _unique,
    "tempfile.mkstemp": _unique,
    "tempfile.NamedTemporaryFile": _unique,
    "tempfile.TemporaryDirectory": _unique,
    "tempfile.TemporaryFile": _unique,
    "os.getpid": _unique,
    "builtins.hash": _unique,
    "random.random": _unique,
    "random.randint": _unique,
    "random.choice": _unique,
    "secrets.token_hex": _unique,
    "pickle.dump": _dump(1),
    "json.dump": _dump(1),
    "yaml.dump": _dump(1),
    "yaml.safe_dump": _dump(1),
    "joblib.dump": _writes(1, "filename"),
    "numpy.save": _writes(0, "file"),
    "numpy.savez": _writes(0, "file"),
    "numpy.savez_compressed": _writes(0, "file"),
    "numpy.savetxt": _writes(0, "fname"),
    "shutil.copy": _writes(1, "dst"),
    "shutil.copy2": _writes(1, "dst"),
    "shutil.copyfile": _writes(1, "dst"),
    "shutil.copytree": _writes(1, "dst"),
    "torch.onnx.export": _writes(2, "f", "checkpoint"),
    "logging.basicConfig": _logging,
    "logging.FileHandler": _logging,
    "torch.utils.tensorboard.SummaryWriter": _writer,
    "torch.utils.tensorboard.writer.SummaryWriter": _writer,
    "tensorboardX.SummaryWriter": _writer,
}
