"""Checkpoints under damage, full disks, second jobs and evil pickles: one line each, and the last good one counts."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import resource
import shutil
import socket
import subprocess
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
from reference_trainer.checkpoint import CheckpointError, RunCheckpoints, latest, load, save  # noqa: E402
from reference_trainer.checkpoint.directory import Directory  # noqa: E402
from reference_trainer.checkpoint.lock import RunLock  # noqa: E402
from reference_trainer.checkpoint.manifest import Manifest  # noqa: E402
from reference_trainer.checkpoint.snapshot import Snapshot  # noqa: E402
from reference_trainer.config import (  # noqa: E402
    CheckpointConfig,
    ClubConfig,
    Config,
    ConfigError,
    DataConfig,
    DisentangleConfig,
    EmaConfig,
)
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    steps=6,
    global_batch=8,
    ema=EmaConfig(decay=0.9),
    club=ClubConfig(inner_steps=1, hidden=(4,)),
    data=DataConfig(train_samples=40, validation_samples=10),
    disentangle=DisentangleConfig(hidden=(8,), features=4),
    checkpoint=CheckpointConfig(keep=3),
)


@contextmanager
def opened(folder, config=CONFIG):
    """A trainer and its checkpoints, at the run's beginning."""
    trainer = Trainer(config, World())
    with RunCheckpoints(folder, config, trainer.plan, World()) as checkpoints:
        checkpoints.begin(trainer.state)
        yield trainer, checkpoints


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run with checkpoints after steps 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("original")
    with opened(folder) as (trainer, checkpoints):
        for _ in trainer.steps():
            checkpoints.save(trainer.state)
            if trainer.state.step == 3:
                break
    return folder


@pytest.fixture
def run(original, tmp_path):
    """A copy of it, to be damaged."""
    folder = tmp_path / "run"
    shutil.copytree(original, folder)
    return folder


def resumed_step(run):
    """The step that a new job goes on from."""
    with opened(run) as (trainer, _):
        return trainer.state.step


def one_line(text):
    return "\n" not in str(text).strip()


def test_a_run_goes_on_from_the_latest_checkpoint(run, capfd):
    assert resumed_step(run) == 3
    assert f"resumed from {run}/checkpoints/step-00000003, after step 3 of 6" in capfd.readouterr().err


# Damage.

FILES = ["model.safetensors", "ema.safetensors", "training.pt", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_anywhere_is_named_and_the_checkpoint_before_is_taken(run, capfd, name):
    path = run / "checkpoints" / "step-00000003" / name
    whole = path.read_bytes()
    for length in range(0, len(whole), 1000 if len(whole) > 1000 else 50):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as told:
            Snapshot.read(path.parent)
        assert str(path) in str(told.value) and one_line(told.value)
    assert resumed_step(run) == 2
    assert f"{path} is damaged" in capfd.readouterr().err
    assert (run / "checkpoints" / "step-00000003.aside1" / name).read_bytes() == whole[:length]


@pytest.mark.parametrize("name", FILES[:3])
def test_a_cut_file_that_the_manifest_agrees_with_is_still_no_weights(run, name):
    # What the reader of each format says of itself, were the sums not there.
    folder = run / "checkpoints" / "step-00000003"
    whole = (folder / name).read_bytes()
    for length in range(0, len(whole), 1000):
        (folder / name).write_bytes(whole[:length])
        agree(folder)
        with pytest.raises(CheckpointError) as told:
            Snapshot.read(folder)
        assert name in str(told.value) and one_line(told.value)


def agree(folder):
    """Writes the manifest anew, for what is there."""
    (folder / "manifest.json").unlink()
    Manifest.of(folder, step=3, world_size=1).write(folder)


@pytest.mark.parametrize("name", FILES[:3])
def test_a_flipped_bit_is_found(run, name):
    path = run / "checkpoints" / "step-00000003" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: its SHA-256 is not that of what was written"):
        Snapshot.read(path.parent)
    assert resumed_step(run) == 2


def edited(manifest, change):
    """The manifest after a change by hand."""
    found = json.loads(manifest.read_text())
    change(found)
    manifest.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda found: found["files"].pop("training.pt"), "the manifest has no training.pt"),
        (lambda found: found["files"]["training.pt"].update(sha256="0" * 64), "training.pt is damaged: its SHA-256"),
        (lambda found: found["files"]["training.pt"].update(bytes=1), r"training.pt is damaged: \d+ bytes, 1 were"),
        (lambda found: found["files"].update({"../../x": {"bytes": 1, "sha256": ""}}), "is no file of this folder"),
        (lambda found: found["files"].update(gone={"bytes": 1, "sha256": ""}), "gone cannot be read: No such file"),
        (lambda found: found.update(step=9), "training.pt does not belong to the manifest"),
        (lambda found: found.update(version=99), "has version 99 and this program reads 1"),
        (lambda found: found.update(files=[]), "manifest.json is damaged: AttributeError"),
        (lambda found: found.pop("step"), "manifest.json is damaged: KeyError: 'step'"),
    ],
)
def test_an_edited_manifest_is_told_and_the_checkpoint_before_is_taken(run, change, told):
    folder = run / "checkpoints" / "step-00000003"
    edited(folder / "manifest.json", change)
    with pytest.raises(CheckpointError, match=told) as error:
        Snapshot.read(folder)
    assert one_line(error.value)
    assert resumed_step(run) == 2


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_named(run, name, capfd):
    (run / "checkpoints" / "step-00000003" / name).unlink()
    assert resumed_step(run) == 2
    assert name in capfd.readouterr().err


def test_with_no_whole_checkpoint_left_the_run_does_not_begin_anew(run):
    for path in (run / "checkpoints").glob("step-*/training.pt"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="has no checkpoint that is whole; begin anew in another run_dir"):
        resumed_step(run)
    assert len(Directory(run / "checkpoints").all()) == 3


def test_a_checkpoint_that_was_asked_for_by_name_is_not_replaced_by_another(run):
    path = run / "checkpoints" / "step-00000002"
    (path / "training.pt").write_bytes(b"")
    config = Config(checkpoint=CheckpointConfig(resume=str(path)))
    with pytest.raises(CheckpointError, match=r"step-00000002/training.pt is damaged: 0 bytes"), opened(run, config):
        pass
    config = Config(checkpoint=CheckpointConfig(resume=str(run / "nowhere")))
    with pytest.raises(CheckpointError, match="nowhere, which is no checkpoint and no run with one"), opened(run, config):
        pass


def test_a_latest_that_names_nothing_is_told_and_the_newest_is_taken(run, capfd):
    (run / "checkpoints" / "latest").write_text("step-00000099\n")
    assert latest(run).name == "step-00000003"
    assert resumed_step(run) == 3
    assert "latest names 'step-00000099', which is not there" in capfd.readouterr().err
    assert (run / "checkpoints" / "latest").read_text() == "step-00000003\n"


def test_a_latest_that_names_nothing_where_nothing_is_left_stops_the_run(run):
    for path in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(path)
    with pytest.raises(CheckpointError, match="no checkpoint is there; put it back, or remove `latest`"):
        resumed_step(run)
    assert latest(run) is None


def test_what_a_killed_save_left_is_removed_and_never_taken(run):
    half = run / "checkpoints" / ".step-00000004.123"
    shutil.copytree(run / "checkpoints" / "step-00000003", half)
    (run / "checkpoints" / ".latest.123").write_text("step-0")
    assert resumed_step(run) == 3
    assert not list((run / "checkpoints").glob(".*"))


# Pickles.


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_that_would_run_code_is_refused_in_one_line(run, tmp_path, capfd, how, protocol):
    folder, touched = run / "checkpoints" / "step-00000003", tmp_path / "touched"
    with open(folder / "training.pt", "wb") as file:
        if how == "torch":
            torch.save({"step": 3, "x": Evil(touched)}, file, pickle_protocol=protocol)
        else:
            pickle.dump({"step": 3, "x": Evil(touched)}, file, protocol=protocol)
    agree(folder)
    reason = r"names (posix|os|nt)\.system, and loading" if protocol == 2 else "is not plain data"
    with pytest.raises(CheckpointError, match=rf"training.pt is refused: it {reason}") as told:
        load(folder / "training.pt")
    assert one_line(told.value)
    assert resumed_step(run) == 2 and "training.pt is refused" in capfd.readouterr().err
    assert not touched.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_what_is_no_checkpoint_at_all_is_told_in_one_line(tmp_path):
    for content in (b"", b"x", b"PK\x03\x04", os.urandom(1000), b"\x80\x04N."):
        (tmp_path / "x.pt").write_bytes(content)
        try:
            assert load(tmp_path / "x.pt") is None  # the last one is a pickle of None
        except CheckpointError as error:
            assert "x.pt is " in str(error) and one_line(error)
    with pytest.raises(CheckpointError, match="cannot be read: No such file or directory"):
        load(tmp_path / "gone.pt")


# Disks.


@contextmanager
def at_most(size):
    """No file of this process can grow beyond ``size`` bytes: what a full disk or a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def mounted(tmp_path):
    """A small file system of its own: (its folder, a function that makes it read-only)."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder, lambda: subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def files(folder):
    """All files but the lock, by name."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("size", [10, 3000, 20_000])
def test_a_file_that_cannot_be_written_whole_stops_in_one_line_and_changes_nothing(run, size):
    before = files(run)
    with opened(run) as (trainer, checkpoints):
        next(trainer.steps())
        with at_most(size), pytest.raises(CheckpointError) as told:
            checkpoints.save(trainer.state)
        assert "step-00000004 could not be saved: " in str(told.value) and "File too large" in str(told.value)
        assert "the latest checkpoint is step-00000003, as it was" in str(told.value) and one_line(told.value)
    assert files(run) == before
    assert resumed_step(run) == 3


def test_a_full_disk_stops_in_one_line_and_the_last_checkpoint_is_good(mounted):
    folder, _ = mounted
    (folder / "ballast").write_bytes(bytes(150_000))
    with opened(folder) as (trainer, checkpoints):
        with pytest.raises(CheckpointError, match="could not be saved: .*No space left on device.*; the latest") as told:
            for _ in trainer.steps():
                checkpoints.save(trainer.state)
        assert one_line(told.value)
        failed = trainer.state.step
    assert failed > 1 and resumed_step(folder) == failed - 1


def test_a_full_disk_before_the_first_checkpoint_says_that_there_is_none(mounted):
    folder, _ = mounted
    with opened(folder) as (trainer, checkpoints):
        with pytest.raises(OSError, match="No space"):
            (folder / "ballast").write_bytes(bytes(500_000))
        next(trainer.steps())
        with pytest.raises(CheckpointError, match=r"No space left on device.*; there is no other checkpoint"):
            checkpoints.save(trainer.state)


def test_a_read_only_directory_is_told_before_anything_is_trained(mounted, original):
    folder, make_read_only = mounted
    shutil.copytree(original / "checkpoints" / "step-00000003", folder / "checkpoints" / "step-00000003")
    make_read_only()
    with pytest.raises(CheckpointError, match="cannot be written: Read-only file system; give another one as run_dir"):
        resumed_step(folder)


@pytest.mark.parametrize("name", ["run", "checkpoints"])
def test_a_file_in_place_of_the_folder_is_told(tmp_path, name):
    run = tmp_path / "run"
    if name == "checkpoints":
        run.mkdir()
    (run if name == "run" else run / name).write_text("mine")
    with pytest.raises(CheckpointError, match=rf"{name} cannot be (written|read): (File exists|Not a directory)"):
        resumed_step(run)
    assert (run if name == "run" else run / name).read_text() == "mine"


def test_a_save_that_fails_on_rank_zero_is_an_error_on_every_rank(worlds, tmp_path):
    told = worlds.run(failing_save, tmp_path, world_size=2)
    assert told[0] == told[1] and "checkpoints cannot be read: Not a directory" in told[0]


def failing_save(folder):
    trainer = Trainer(CONFIG, World.current())
    with RunCheckpoints(folder, CONFIG, trainer.plan, World.current()) as checkpoints:
        checkpoints.begin(trainer.state)
        next(trainer.steps())
        if World.current().is_main:
            (folder / "checkpoints").write_text("a file in place of the folder")
        try:
            checkpoints.save(trainer.state)
        except CheckpointError as error:
            return str(error)


def test_a_checkpoint_that_only_rank_zero_sees_is_an_error_on_every_rank(worlds, run, tmp_path):
    told = worlds.run(begin_in, [run, tmp_path / "elsewhere"], world_size=2)
    assert told[0] == told[1] and told[0].startswith("rank 1: ") and "cannot be read" in told[0]


def begin_in(folders):
    """Each rank looks for the checkpoint in a folder of its own, as without a shared file system."""
    world = World.current()
    trainer = Trainer(CONFIG, world)
    with RunCheckpoints(folders[world.rank], CONFIG, trainer.plan, world) as checkpoints:
        chosen = checkpoints._choose
        checkpoints._choose = lambda: folders[world.rank] / "checkpoints" / chosen().name
        try:
            checkpoints.begin(trainer.state)
        except CheckpointError as error:
            return str(error)


# Two jobs.


def test_a_second_job_in_one_run_directory_is_told_who_holds_it(run):
    with opened(run):
        with pytest.raises(CheckpointError) as told:
            resumed_step(run)
    assert f"is in use by process {os.getpid()} on {socket.gethostname()}; wait for that job" in str(told.value)
    assert one_line(told.value) and resumed_step(run) == 3


def test_a_lock_that_another_program_took_without_its_name_is_told_too(tmp_path):
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="is in use by another process"):
            RunLock(tmp_path)


def test_a_child_that_outlives_the_job_does_not_keep_the_directory_locked(tmp_path):
    # As loader workers do for some seconds, when their rank is killed.
    lock = RunLock(tmp_path)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    with pytest.raises(CheckpointError, match="in use"):
        RunLock(tmp_path)  # the child gave up its copy, not the lock
    lock.release()
    RunLock(tmp_path).release()
    os.close(write)
    os.waitpid(child, 0)


# What is kept.


def test_the_last_checkpoints_are_kept_and_the_one_that_best_names(tmp_path):
    directory = Directory(tmp_path / "checkpoints")
    for step in range(1, 7):
        directory.write(step, 1, lambda folder: (folder / "x").write_text("x"))
        if step == 2:
            directory.point("best", 2)
        directory.prune(2)
    assert [path.name for path in directory.all()] == ["step-00000006", "step-00000005", "step-00000002"]
    assert directory.pointed("latest").name == "step-00000006"
    assert directory.pointed("best").name == "step-00000002"


def test_a_checkpoint_is_never_overwritten(tmp_path):
    directory = Directory(tmp_path / "checkpoints")
    directory.write(1, 1, lambda folder: (folder / "x").write_text("first"))
    with pytest.raises(CheckpointError, match="is there already; nothing was overwritten"):
        directory.write(1, 1, lambda folder: (folder / "x").write_text("second"))
    assert (directory.folder / "step-00000001" / "x").read_text() == "first"
    assert not list(directory.folder.glob(".*"))


def test_a_single_file_is_the_old_one_or_the_new_one(tmp_path):
    path = tmp_path / "deep" / "weights.pt"
    save({"x": torch.ones(3)}, path)
    with at_most(100), pytest.raises(OSError, match="File too large"):
        save({"x": torch.zeros(3)}, path)
    assert load(path)["x"].tolist() == [1, 1, 1]
    assert [each.name for each in path.parent.iterdir()] == ["weights.pt"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"save_every": -1}, "checkpoint.save_every is -1; it must not be negative"),
        ({"keep": 0}, "checkpoint.keep is 0; it must be above 0"),
        ({"best_mode": "most"}, "checkpoint.best_mode is 'most'; it must be 'min' or 'max'"),
        ({"resume": ""}, "checkpoint.resume is empty; it must be auto, none or the path of a checkpoint"),
        ({"best": "loss"}, "checkpoint.best is 'loss' and eval_every 0; set how often to evaluate"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(options, told):
    with pytest.raises(ConfigError, match=told):
        Config(checkpoint=CheckpointConfig(**options))
