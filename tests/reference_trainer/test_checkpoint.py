"""Checkpoints under damage and with evil pickles: one line each, and the last good one counts."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest

torch = pytest.importorskip("torch")
from trainer_runs import one_line, opened, resumed_step  # noqa: E402

from reference_trainer.checkpoint import CheckpointError, load  # noqa: E402
from reference_trainer.checkpoint.directory import Directory, seal  # noqa: E402
from reference_trainer.checkpoint.run import Snapshot  # noqa: E402
from reference_trainer.config import (  # noqa: E402
    CheckpointConfig,
    Config,
)

pytestmark = pytest.mark.runtime


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
    seal(folder, 3, 1)


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
        (lambda found: found["files"].pop("training.pt"), "the manifest has no .* training.pt"),
        (lambda found: found["files"]["training.pt"].update(sha256="0" * 64), "training.pt is damaged: its SHA-256"),
        (lambda found: found["files"]["training.pt"].update(bytes=1), r"training.pt is damaged: \d+ bytes, 1 were"),
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
    with (
        pytest.raises(CheckpointError, match="nowhere, which is no checkpoint and no run with one"),
        opened(run, config),
    ):
        pass


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


def test_what_is_no_checkpoint_at_all_is_told_in_one_line(tmp_path):
    for content in (b"", b"x", b"PK\x03\x04", os.urandom(1000), b"\x80\x04N."):
        (tmp_path / "x.pt").write_bytes(content)
        try:
            assert load(tmp_path / "x.pt") is None  # the last one is a pickle of None
        except CheckpointError as error:
            assert "x.pt is " in str(error) and one_line(error)
    with pytest.raises(CheckpointError, match="cannot be read: No such file or directory"):
        load(tmp_path / "gone.pt")
