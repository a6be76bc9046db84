"""Checkpoints under damage and with evil pickles: one line each, and the last good one counts."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil

import pytest

torch = pytest.importorskip("torch")
from trainer_runs import one_line, opened, resumed_step  # noqa: E402

from reference_trainer.checkpoint import CheckpointError, load  # noqa: E402
from reference_trainer.checkpoint.directory import Directory, verify  # noqa: E402
from reference_trainer.checkpoint.weights import read_part  # noqa: E402
from reference_trainer.config import (  # noqa: E402
    CheckpointConfig,
    Config,
)

pytestmark = pytest.mark.runtime


def test_a_run_goes_on_from_the_latest_checkpoint(run, capfd):
    assert resumed_step(run) == 3
    assert f"resumed from {run}/checkpoints/step-00000003, after step 3 of 6" in capfd.readouterr().err


# Damage.

FILES = ["shard-00001-model-00001-of-00001.safetensors", "training.pt", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_anywhere_is_named_and_the_checkpoint_before_is_taken(run, capfd, name):
    path = run / "checkpoints" / "step-00000003" / name
    whole = path.read_bytes()
    for length in range(0, len(whole), 1000 if len(whole) > 1000 else 50):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as told:
            verify(path.parent)
        assert str(path) in str(told.value) and one_line(told.value)
    assert resumed_step(run) == 2
    assert f"{path} is damaged" in capfd.readouterr().err
    assert (run / "checkpoints" / "step-00000003.aside1" / name).read_bytes() == whole[:length]


@pytest.mark.parametrize("name", FILES[:2])
def test_a_cut_file_that_the_manifest_agrees_with_is_still_no_weights(run, name):
    # What the reader of each format says of itself, were the sums not there.
    folder = run / "checkpoints" / "step-00000003"
    whole = (folder / name).read_bytes()
    for length in range(0, len(whole), 1000):
        (folder / name).write_bytes(whole[:length])
        agree(folder, name)
        with pytest.raises(CheckpointError) as told:
            read_part(folder)
            load(folder / name)
        assert str(folder) in str(told.value) and one_line(told.value)


def agree(folder, name):
    """Has the manifest say what is there under this name."""
    content = (folder / name).read_bytes()
    entry = {"sha256": hashlib.sha256(content).hexdigest()}
    edited(folder / "manifest.json", lambda found: found["files"].update({name: entry}))


@pytest.mark.parametrize("name", FILES[:2])
def test_a_flipped_bit_is_found(run, name):
    path = run / "checkpoints" / "step-00000003" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: its SHA-256 is not that of what was written"):
        verify(path.parent)
    assert resumed_step(run) == 2


def edited(manifest, change):
    """The manifest after a change by hand."""
    found = json.loads(manifest.read_text())
    change(found)
    manifest.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda found: found["files"].pop("training.pt"), "training.pt is damaged: its SHA-256"),
        (lambda found: found["files"]["training.pt"].update(sha256="0" * 64), "training.pt is damaged: its SHA-256"),
        (lambda found: found["files"]["training.pt"].update(sha256=""), "training.pt is damaged: its SHA-256"),
        (lambda found: found["files"].update(gone={"sha256": ""}), "gone cannot be read: No such file"),
        (lambda found: found.update(version=99), "has version 99 and this program reads 2$"),
        (
            lambda found: found.update(version=1),
            r"reads 2; its weights are in model.safetensors",
        ),
        (lambda found: found.update(files=[]), "manifest.json is damaged: TypeError"),
        (lambda found: found.pop("files"), "manifest.json is damaged: KeyError: 'files'"),
    ],
)
def test_an_edited_manifest_is_told_and_the_checkpoint_before_is_taken(run, change, told):
    folder = run / "checkpoints" / "step-00000003"
    edited(folder / "manifest.json", change)
    with pytest.raises(CheckpointError, match=told) as error:
        verify(folder)
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
    told = (
        r"has no checkpoint that is whole on all ranks; begin anew in another run_dir; of the latest, .*000003/training"
    )
    with pytest.raises(CheckpointError, match=told) as error:
        resumed_step(run)
    assert one_line(error.value)
    assert len(Directory(run / "checkpoints").all()) == 3


def test_a_run_of_an_older_version_is_refused_in_one_line_that_says_where_its_weights_are(run, capfd):
    for path in (run / "checkpoints").glob("step-*/manifest.json"):
        edited(path, lambda found: found.update(version=1))
    with pytest.raises(CheckpointError, match=r"000003/manifest.json has version 1 .* in model.safetensors") as told:
        resumed_step(run)
    assert one_line(told.value) and not capfd.readouterr().err


def test_a_checkpoint_that_was_asked_for_by_name_is_not_replaced_by_another(run, tmp_path):
    path = run / "checkpoints" / "step-00000002"
    (path / "training.pt").write_bytes(b"")
    for asked, told in ((path, "step-00000002/training.pt is damaged"), (run / "nowhere", "nowhere, which is no")):
        config = Config(checkpoint=CheckpointConfig(resume=str(asked)))
        with pytest.raises(CheckpointError, match=told), opened(tmp_path / "new", config):
            pass


def test_what_a_killed_save_left_is_removed_and_never_taken(run):
    half = run / "checkpoints" / ".step-00000004.123"
    shutil.copytree(run / "checkpoints" / "step-00000003", half)
    (run / "checkpoints" / ".best.123").write_text("step-0")
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
    agree(folder, "training.pt")
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
