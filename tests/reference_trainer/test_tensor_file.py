"""A user's own images in place of the digits: every kind of file, and what does not fit."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")
from reference_trainer.config import Config, ConfigError, DataConfig  # noqa: E402
from reference_trainer.sources import Digits, read_images  # noqa: E402

pytestmark = pytest.mark.runtime

IMAGES = torch.arange(6 * 64).reshape(6, 8, 8) / 400
LABELS = torch.tensor([0, 1, 2, 3, 4, 9])


def write(path, **arrays):
    if path.suffix == ".npz":
        numpy.savez(path, **{name: each.numpy() for name, each in arrays.items()})
    elif path.suffix == ".safetensors":
        safetensors.save_file(arrays, path)
    else:
        torch.save(arrays, path)
    return path


def read(path):
    return read_images(path, side=8, classes=10)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_file_is_read_as_it_was_written(tmp_path, suffix):
    images, labels = read(write(tmp_path / f"own{suffix}", image=IMAGES, digit=LABELS, other=LABELS + 1))
    assert torch.equal(images, IMAGES) and torch.equal(labels, LABELS)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)


def test_flat_images_bytes_and_other_names_are_taken(tmp_path):
    bytes_ = (IMAGES * 255).round().to(torch.uint8).reshape(6, 64)
    images, labels = read(write(tmp_path / "own.npz", x=bytes_, y=LABELS.to(torch.int16)))
    assert torch.equal(images, bytes_.reshape(6, 8, 8).float() / 255) and torch.equal(labels, LABELS)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"image": IMAGES}, "no array named image or x, and digit or label or y, or it is empty; it has image"),
        ({"digit": LABELS}, "no array named image or x"),
        ({"image": IMAGES[:, :7], "digit": LABELS}, r"images are \(6, 7, 8\), .* expected \(n, 8, 8\) or \(n, 64\)"),
        ({"image": IMAGES, "digit": LABELS[:5]}, r"labels \(5,\) of"),
        ({"image": IMAGES, "digit": LABELS.float()}, "of torch.float32; expected .* whole numbers"),
        ({"image": IMAGES, "digit": LABELS + 1}, "labels from 1 to 10; expected 0 to 1, or bytes, and 0 to 9"),
        ({"image": IMAGES * 16, "digit": LABELS}, "images are from 0 to 15.32, .* expected 0 to 1"),
        ({"image": IMAGES * float("nan"), "digit": LABELS}, "images are from nan to nan"),
        ({"image": IMAGES[:0], "digit": LABELS[:0]}, "or it is empty"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, arrays, told):
    with pytest.raises(ConfigError, match=told) as caught:
        read(write(tmp_path / "own.npz", **arrays))
    assert "\n" not in str(caught.value) and "own.npz" in str(caught.value)


class Anything:
    """What a pickle could name."""


def test_files_that_cannot_be_read_are_one_line(tmp_path):
    numpy.savez(tmp_path / "code.npz", image=numpy.array([Anything()], dtype=object))
    torch.save(Anything(), tmp_path / "code.pt")
    torch.save([IMAGES], tmp_path / "list.pt")
    for name in ("half.npz", "half.safetensors", "half.pt"):
        (tmp_path / name).write_bytes(b"half")
    for name in ("code.npz", "code.pt", "list.pt", "half.npz", "half.safetensors", "half.pt", "gone.npz", "a.csv"):
        (tmp_path / "a.csv").touch()
        with pytest.raises(ConfigError) as caught:
            read(tmp_path / name)
        assert "\n" not in str(caught.value) and name in str(caught.value)


def test_own_images_are_split_and_rendered_as_the_digits_are(tmp_path):
    path = write(tmp_path / "own.pt", image=IMAGES, digit=LABELS)
    config = DataConfig(path=str(path), train_samples=3, validation_samples=1)
    parts = Digits.split(config, seed=1)
    assert [len(part) for part in parts] == [3, 1, 2]
    assert sorted(torch.cat([part.digits for part in parts]).tolist()) == LABELS.tolist()
    with pytest.raises(ConfigError, match="is 6, but there are 6 digits"):
        Digits.split(dataclasses.replace(config, train_samples=5), seed=1)


def test_the_setting_changes_what_is_trained_on(tmp_path):
    from reference_trainer.trainer import build_data

    path = write(tmp_path / "own.npz", image=IMAGES, digit=LABELS)
    found = build_data(dataclasses.replace(Config(), data=DataConfig(str(path), 4, 1)))
    assert set(found.train.digits.tolist()) <= set(LABELS.tolist()) and len(found.test) == 1
