"""``--fake-data KIND:PATH``: small data sets in the formats that training scripts read, made of nothing but this."""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable

from validate_ddp.console import UsageError

_CLASSES, _SIDE = 8, 64
MADE = ".made-by-validate-ddp"
"""A file beside data whose checksums a library knows: in a rehearsal they are not looked at."""
_WORDS = "the quick brown fox jumps over a lazy dog and then some more words of text".split()


def make(order: str) -> str:
    """Makes the data that ``KIND:PATH`` orders, and returns a line that tells so. What is there already stays as it is.

    Folders that hold no file are no data: a download that failed leaves such; and one root may hold several data sets.
    Every sample differs from all others, so that the rehearsal can tell who read which, and is the same in each run.
    Raises UsageError for an unknown kind and a path that cannot be written; nothing is left half made.
    """
    kind, colon, path = order.partition(":")
    if kind not in KINDS or not colon or not path:
        raise UsageError(f"--fake-data {order}: give KIND:PATH, where KIND is one of {', '.join(KINDS)}")
    what, write, names = KINDS[kind]
    parts = [os.path.join(path, name) for name in names] if os.path.isdir(path) else []
    if not all(map(_holds_nothing, parts or [path])):
        return f"fake data: {path} is there already and stays as it is"
    above = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(above, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=above, prefix=".fake-data-") as folder:
            made = os.path.join(folder, "data")
            write(made, random.Random(0))
            for part in parts or [path]:
                for at, _, _ in os.walk(part, topdown=False):
                    os.rmdir(at)  # fails where anything has come there meanwhile
                shutil.move(os.path.join(made, os.path.basename(part)) if parts else made, part)
    except OSError as error:
        raise UsageError(f"--fake-data {order}: {path} cannot be written: {error.strerror or error}") from error
    return f"fake data: {path} is {what}"


def _holds_nothing(path: str) -> bool:
    """Whether nothing is there, or a folder with no file in it or in any below. A link is taken for something."""
    if not os.path.isdir(path) or os.path.islink(path):
        return not os.path.lexists(path)
    return not any(
        files or any(os.path.islink(os.path.join(at, name)) for name in folders) for at, folders, files in os.walk(path)
    )


def _file(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def _image_folder(path: str, draw: random.Random) -> None:
    for split, images in (("train", 16), ("val", 8)):
        for label in range(_CLASSES):
            for number in range(images):
                _file(os.path.join(path, split, f"class{label}", f"{number}.png"), _png(label, draw))


def _png(label: int, draw: random.Random) -> bytes:
    """An image that its class tints, with slopes of its own: 8 bits a channel, RGB, no filter."""
    start, down, right = (draw.randrange(256), draw.randrange(1, 8), draw.randrange(1, 8))
    tint = 32 * label
    rows = bytearray()
    for y in range(_SIDE):
        rows.append(0)
        for x in range(_SIDE):
            value = start + down * y + right * x
            rows += bytes((value & 255, tint, (value >> 1) + draw.randrange(2) & 255))
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def _digits(name: str) -> Callable[[str, random.Random], None]:
    """The four files of a data set of torchvision's that is stored as MNIST is."""

    def write(path: str, draw: random.Random) -> None:
        for split, count in (("train", 512), ("t10k", 128)):
            labels = bytes(draw.randrange(10) for _ in range(count))
            pixels = bytearray(draw.randbytes(count * 28 * 28))
            for number, label in enumerate(labels):  # a bright band tells the label
                at = number * 28 * 28 + 28 * 2 * label
                pixels[at : at + 28 * 2] = b"\xff" * (28 * 2)
            raw = os.path.join(path, name, "raw")
            _file(os.path.join(raw, f"{split}-images-idx3-ubyte"), struct.pack(">IIII", 2051, count, 28, 28) + pixels)
            _file(os.path.join(raw, f"{split}-labels-idx1-ubyte"), struct.pack(">II", 2049, count) + labels)

    return write


def _cifar10(path: str, draw: random.Random) -> None:
    """Six batches as torchvision unpacks them, in pickles of arrays that are written without NumPy."""
    folder = os.path.join(path, "cifar-10-batches-py")
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        labels = bytes(draw.randrange(10) for _ in range(128))
        pixels = b"".join(bytes((25 * label,)) * 1024 + draw.randbytes(2048) for label in labels)
        array = b"cnumpy\nfrombuffer\n(B" + struct.pack("<I", len(pixels)) + pixels + _pickled("uint8") + b"tR"
        numbers = b"](" + b"".join(b"K" + bytes((label,)) for label in labels) + b"e"
        _file(
            os.path.join(folder, name),
            b"\x80\x03}(" + _pickled("data") + array + _pickled("labels") + numbers + b"u.",
        )
    names = b"](" + b"".join(_pickled(f"class{label}") for label in range(10)) + b"e"
    _file(os.path.join(folder, "batches.meta"), b"\x80\x03}(" + _pickled("label_names") + names + b"u.")
    _file(os.path.join(folder, MADE), b"")


def _pickled(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _text(path: str, draw: random.Random) -> None:
    words = [draw.choice(_WORDS) + (".\n" if draw.random() < 0.1 else " ") for _ in range(20_000)]
    _file(path, "".join(words).encode())


def _tokens(path: str, draw: random.Random) -> None:
    for split, count in (("train", 100_000), ("val", 10_000)):
        tokens = (draw.randrange(64) for _ in range(count))
        _file(os.path.join(path, f"{split}.bin"), struct.pack(f"<{count}H", *tokens))


KINDS: dict[str, tuple[str, Callable[[str, random.Random], None], tuple[str, ...]]] = {
    "imagefolder": (
        f"train/ and val/ with {_CLASSES} classes of 16 and 8 PNG images, {_SIDE} x {_SIDE}", _image_folder, (),
    ),
    "mnist": ("the root of torchvision's MNIST: 512 and 128 images", _digits("MNIST"), ("MNIST",)),
    "fashionmnist": (
        "the root of torchvision's FashionMNIST: 512 and 128 images", _digits("FashionMNIST"), ("FashionMNIST",),
    ),
    "cifar10": ("the root of torchvision's CIFAR10: 640 and 128 images", _cifar10, ("cifar-10-batches-py",)),
    "text": ("a text of 20,000 words", _text, ()),
    "tokens": (
        "train.bin and val.bin: 100,000 and 10,000 tokens below 64, as uint16", _tokens, ("train.bin", "val.bin"),
    ),
}  # fmt: skip
"""What each kind is, how it is written, and what of it goes into a folder that is there and has none of this."""
