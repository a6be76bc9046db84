"""Functions that read and write files: checkpoints, configurations, logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from validate_ddp.interpreter import facts, vocabulary
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names_of_training import WRITES
from validate_ddp.interpreter.objects import Dict, Unique
from validate_ddp.interpreter.rows import Api, api, method
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.training import Buffer, File, Handler, Loaded, Writer
from validate_ddp.interpreter.values import (
    NONE,
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
from validate_ddp.models import unknown

_UNIQUE = """tempfile.mkdtemp tempfile.mktemp tempfile.mkstemp tempfile.NamedTemporaryFile tempfile.TemporaryDirectory
    tempfile.TemporaryFile os.getpid builtins.hash random.random random.randint random.choice secrets.token_hex"""


def _named_writer(machine: Machine, symbol: Symbol, call: Call) -> Value:
    paths = [value for value in (*call.args, *call.keywords.values()) if _path_like(value)]
    machine.record(facts.Save(symbol.last, path=paths[0] if paths else call.argument(0), role="file"), call.site)
    return NONE


def _path_like(value: Value) -> bool:
    return any(
        isinstance(atom, (Const, Opaque)) and "." in str(getattr(atom, "value", "") or getattr(atom, "name", ""))
        for atom in bare(value)
    )


def _load(machine: Machine, symbol: Symbol, call: Call) -> Value:
    path = call.value("f")
    loaded = Loaded(call.site, path=path)
    map_location = call.value("map_location") or ((Const(...),) if call.open else ())
    machine.record(facts.Load(symbol.name, loaded=(loaded,), path=path, map_location=map_location), call.site)
    machine.record(facts.Read(symbol.last, path=path), call.site)
    return (Opaque("loaded", merged(loaded, *reaching(path)), is_alike(path)),)


def _open(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return opened(machine, call.value("file"), call.value("mode"), call)


def opened(machine: Machine, path: Value, mode_value: Value, call: Call) -> Value:
    """Open a file: a fact where it is for writing."""
    mode = constant(mode_value)
    if isinstance(mode, str) and any(letter in mode for letter in "wax+"):
        machine.record(facts.Save("open", path=path, mode=mode_value, role="file"), call.site)
    elif mode in ("r", "rb", "rt") or not mode_value:
        machine.record(facts.Read("open", path=path), call.site)
    return (File(call.site, path=path, mode=mode_value),)


def _archive(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``tarfile.open(name, "w:gz")``: the first letter says whether it is written."""
    mode = constant(call.value("mode"))
    if isinstance(mode, str) and mode[:1] in ("w", "a", "x"):
        machine.record(
            facts.Save(symbol.last, path=call.value("file"), mode=(Const(mode[:1]),), role="file"), call.site
        )
    return unknown.unresolved(machine, symbol, call)


def _read(machine: Machine, symbol: Symbol, call: Call) -> Value:
    machine.record(facts.Read(symbol.last, path=call.value("path")), call.site)
    return unknown.unresolved(machine, symbol, call)


def _dump(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``dump(object, file)``: writing to a handle that was opened here was noted there."""
    target = call.value("file")
    if target and not any(isinstance(atom, Resource) for atom in bare(target)):
        machine.record(facts.Save(symbol.last, path=target, role="handle"), call.site)
    return NONE


def _logging(machine: Machine, symbol: Symbol, call: Call) -> Value:
    path = call.value("filename")
    handler = Handler(call.site)
    level = call.value("level")
    if any(isinstance(atom, OnRanks) for atom in level) or any(isinstance(part, Rank) for part in reaching(level)):
        handler.quiet = (Const(True),)  # the other ranks log errors only
    if path and constant(path) is not None:
        mode = call.value("mode") or (() if call.open else (Const("a"),))
        machine.record(facts.Save(symbol.last, path=path, mode=mode, role="log", handler=(handler,)), call.site)
    return (handler,)


def _configured(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``logging.config.dictConfig({"handlers": {"file": {"class": "logging.FileHandler", "filename": path}}})``."""
    for handlers in _within(call.argument(0, "config"), "handlers"):
        for held in [held for name in handlers.fields for held in _within((handlers,), name)]:
            made, path = _said(held, "class", "FileHandler"), held.fields.get("filename", ())
            if not made or not path:
                continue
            handler = Handler(call.site)
            if "filters" in held.fields:  # they may let through what some ranks log
                handler.quiet = (Const(True),)
            mode = (Const(_said(held, "mode", "w") or "a"),)
            save = facts.Save(made.rpartition(".")[2], path=path, mode=mode, role="log", handler=(handler,))
            machine.record(save, call.site)
    return NONE


def _said(held: Dict, name: str, ending: str) -> str:
    """What a field surely or perhaps says that ends so: a loop over all fields may have written into each."""
    texts = [atom.value for atom in bare(held.fields.get(name, ())) if isinstance(atom, Const)]
    return next((text for text in texts[:1] if isinstance(text, str) and text.endswith(ending)), "")


def _within(value: Value, name: str) -> list[Dict]:
    """The dictionaries that a value has under a name."""
    held = [atom.fields.get(name, ()) for atom in bare(value) if isinstance(atom, Dict)]
    return [atom for each in held for atom in bare(each) if isinstance(atom, Dict)]


def _join(machine: Machine, symbol: Symbol, call: Call) -> Value:
    parts = [constant(value) for value in call.args]
    name = "/".join(part if isinstance(part, str) else "" for part in parts)
    if all(isinstance(part, str) for part in parts):
        return (Const(name),)
    return (Opaque(name, carried_by(call.given), is_alike(call.given)),)


def _unique(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Opaque("unique", (Unique(call.site, _is_before(machine)),)),)


def _is_before(machine: Machine) -> bool:
    return Flag.SPAWNED not in machine.flags and any(frame.function is not None for frame in machine.frames)


def _timestamp(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``datetime.now().timestamp()``: no two processes read the same moment from their clocks."""
    if not (isinstance(atom, Opaque) and atom.name in ("datetime.datetime.now()", "datetime.datetime.utcnow()")):
        return None
    return (Opaque(MOMENT, (Unique(call.site, _is_before(machine)),)),)


MOMENT = "datetime.timestamp"
"""The name of the seconds of a process's clock, with their fractions."""


_READERS = """numpy.load safetensors.torch.load_file pandas.read_csv pandas.read_parquet pandas.read_json
    pandas.read_pickle datasets.load_from_disk"""
_TRACKERS = """wandb.init mlflow.start_run swanlab.init trackio.init comet_ml.Experiment aim.Run
    neptune.init_run clearml.Task.init"""
_SUMMARY_WRITERS = (
    "torch.utils.tensorboard.SummaryWriter",
    "torch.utils.tensorboard.writer.SummaryWriter",
    "tensorboardX.SummaryWriter",
)


def _saving(names: str | Iterable[str], parameters: str, role: facts.Role = "file") -> Api:
    """A row on functions that write a file."""
    return api(names, parameters=parameters, fact=facts.Save, role=role, result=NONE)


_IMAGES = [
    f"{module}.{name}"
    for module in ("imageio", "imageio.v2", "imageio.v3")
    for name in ("imwrite", "imsave", "mimwrite", "mimsave", "get_writer")
]


def _tracked(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A run of a tracker: several on purpose where they make a group, none where it is off, perhaps on some ranks."""
    mode = call.value("mode")
    told = (*mode, *call.value("name"), *call.value("id"))
    off = constant(mode) == "disabled" or any(isinstance(atom, OnRanks) for atom in mode)
    if not (call.open or call.value("group") or off):
        machine.record(facts.Save(symbol.name, path=told or (Const("run"),), role="run"), call.site)
    return (Opaque(symbol.last, ()),)


DECLARED = (
    _saving(vocabulary.CHECKPOINT_WRITERS, "object=obj=tensors=model path=f=filename", "checkpoint"),
    api("torch.load", _load, parameters="f map_location", fact=(facts.Load, facts.Read)),
    api(
        "builtins.open io.open codecs.open fsspec.open smart_open.open tensorflow.io.gfile.GFile",
        _open,
        parameters="file=file=filename=urlpath=uri=name mode",
        fact=(facts.Save, facts.Read),
    ),
    api(_READERS, _read, parameters="path=file=filename=path=filepath_or_buffer", fact=facts.Read),
    api("os.path.join pathlib.Path pathlib.PurePath", _join),
    api("io.BytesIO io.StringIO", makes=Buffer),
    api("fileno", makes=File, within="*"),  # `open(sys.stdout.fileno(), "w")`
    api("os.dup", makes=File),
    api("uuid1 uuid4", _unique, within="*"),  # lhotse and others bring their own
    api(f"{_UNIQUE} time.time_ns", _unique),
    method("timestamp", _timestamp),
    api(
        "pickle.dump json.dump yaml.dump yaml.safe_dump", _dump, parameters="obj= file=file=stream=fp", fact=facts.Save
    ),
    _saving("joblib.dump", "value path=filename"),
    _saving("numpy.save numpy.savez numpy.savez_compressed", "path=file"),
    _saving("numpy.savetxt", "path=fname"),
    _saving("shutil.copy shutil.copy2 shutil.copyfile shutil.copytree shutil.move", "object=src path=dst"),
    _saving("torch.jit.save", "object=m path=f", "checkpoint"),
    _saving("torchvision.utils.save_image torchvision.utils.save_grid", "tensor path=fp"),
    _saving("torchvision.io.write_png torchvision.io.write_jpeg", "input path=filename"),
    _saving("torchvision.io.write_video cv2.imwrite", "path=filename"),
    _saving("torchaudio.save", "path=uri=filepath"),
    _saving("soundfile.write", "path=file"),
    _saving("scipy.io.wavfile.write scipy.io.savemat", "path=filename=file_name"),
    _saving(_IMAGES, "path=uri"),
    _saving("matplotlib.pyplot.savefig", "path=fname"),
    _saving("omegaconf.OmegaConf.save", "config path=f"),
    _saving(
        "diffusers.utils.export_to_video diffusers.utils.export_to_gif", "frames path=output_video_path=output_gif_path"
    ),
    api("zipfile.ZipFile", _archive, parameters="file mode", fact=facts.Save),
    api("tarfile.open", _archive, parameters="file=name mode", fact=facts.Save),
    api("jsonlines.open", _open, parameters="file mode", fact=(facts.Save, facts.Read)),
    api("h5py.File zarr.open zarr.open_group", _open, parameters="file=name=store mode", fact=facts.Save),
    api(_TRACKERS, _tracked, parameters="* mode group name=name=run_name id=id=run_id", fact=facts.Save),
    _saving("torch.onnx.export", "model args path=f", "checkpoint"),
    api("logging.basicConfig", _logging, parameters="* filename mode=filemode level", fact=facts.Save),
    api("loguru.logger.add", _logging, parameters="filename=sink mode level", fact=facts.Save),
    api("logging.config.dictConfig", _configured, fact=facts.Save),
    api("logging.FileHandler", _logging, parameters="filename mode * level", fact=facts.Save),
    api(_SUMMARY_WRITERS, parameters="path=log_dir=logdir", makes=Writer, fact=facts.Save, role="log"),
    api(WRITES.words, _named_writer, within="*", fact=facts.Save),
)
