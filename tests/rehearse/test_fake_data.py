"""``--fake-data``: what is made reads as the real thing, and nothing that is there is touched."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from validate_ddp import cli
from validate_ddp.console import UsageError
from validate_ddp.rehearse.fake_data import KINDS, make


def test_an_image_folder_holds_png_images_that_all_differ(tmp_path: Path) -> None:
    told = make(f"imagefolder:{tmp_path / 'deep' / 'data'}")
    images = sorted((tmp_path / "deep" / "data").rglob("*.png"))
    assert "train/ and val/" in told and len(images) == 8 * 16 + 8 * 8
    assert len({image.read_bytes() for image in images}) == len(images)
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["data"]
    for image in images[:3]:
        content = image.read_bytes()
        at = content.index(b"IDAT")
        (length,) = struct.unpack(">I", content[at - 4 : at])
        assert struct.unpack(">II", content[16:24]) == (64, 64)
        assert len(zlib.decompress(content[at + 4 : at + 4 + length])) == 64 * (1 + 3 * 64)


def test_tokens_are_little_endian_uint16(tmp_path: Path) -> None:
    make(f"tokens:{tmp_path / 'data'}")
    content = (tmp_path / "data" / "train.bin").read_bytes()
    assert len(content) == 200_000 and max(struct.unpack("<100000H", content)) == 63


@pytest.mark.parametrize("kind", KINDS)
def test_each_run_makes_the_same_data(kind: str, tmp_path: Path) -> None:
    make(f"{kind}:{tmp_path / 'one'}")
    make(f"{kind}:{tmp_path / 'two'}")
    one, two = (
        {path.relative_to(root): path.read_bytes() for path in (root, *root.rglob("*")) if path.is_file()}
        for root in (tmp_path / "one", tmp_path / "two")
    )
    assert one and one == two


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    assert "stays as it is" in make(f"text:{tmp_path / 'data'}")
    assert (tmp_path / "data").read_text() == "mine"


def test_folders_that_a_failed_download_left_empty_are_no_data(tmp_path: Path) -> None:
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    assert "stays as it is" not in make(f"mnist:{tmp_path / 'data'}")
    assert sorted(path.name for path in raw.iterdir())[0] == "t10k-images-idx3-ubyte"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("at", ["MNIST/raw/mine", "MNIST"])
def test_a_data_set_with_any_file_or_link_in_it_stays(at: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / at
    path.parent.mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    path.symlink_to(tmp_path / "empty")
    assert "stays as it is" in make(f"mnist:{tmp_path / 'data'}") and path.is_symlink()
    path.unlink()
    path.write_text("mine")
    assert "stays as it is" in make(f"mnist:{tmp_path / 'data'}") and path.read_text() == "mine"


def test_one_root_holds_several_data_sets_and_what_else_is_there(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prepare.py").write_text("mine")
    for kind in ("mnist", "cifar10", "tokens"):
        assert "stays as it is" not in make(f"{kind}:{tmp_path / 'data'}")
        assert "stays as it is" in make(f"{kind}:{tmp_path / 'data'}")
    there = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert there == ["MNIST", "cifar-10-batches-py", "prepare.py", "train.bin", "val.bin"]
    assert (tmp_path / "data" / "prepare.py").read_text() == "mine"


def test_nothing_is_added_to_a_part_of_the_data_nor_to_a_folder_of_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_text("mine")
    (tmp_path / "val.bin").write_text("mine")
    for kind in ("tokens", "imagefolder"):
        assert "stays as it is" in make(f"{kind}:{tmp_path}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat", "val.bin"]


@pytest.mark.parametrize("order", ["imagefolder", "imagefolder:", "cifar:x", ":x", ""])
def test_another_kind_is_refused_with_those_that_there_are(order: str) -> None:
    with pytest.raises(UsageError, match=r"KIND:PATH.*imagefolder, mnist"):
        make(order)


def test_a_path_that_cannot_be_written_is_one_line_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('started')")
    Path("file").write_text("")
    assert cli.main(["run", "--fake-data", "mnist:file/below", "train.py"]) == 2
    out, err = capfd.readouterr()
    assert "started" not in out and err.count("\n") == 1 and "file/below cannot be written" in err


@pytest.mark.runtime
def test_torchvision_reads_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    make(f"imagefolder:{tmp_path / 'images'}")
    make(f"mnist:{tmp_path / 'digits'}")
    folder = datasets.ImageFolder(str(tmp_path / "images" / "train"))
    assert len(folder) == 128 and folder[127][0].size == (64, 64) and folder[127][1] == 7
    digits = datasets.MNIST(str(tmp_path / "digits"))
    assert len(digits) == 512 and digits[0][0].size == (28, 28)
    assert len(datasets.MNIST(str(tmp_path / "digits"), train=False)) == 128
