"""Which files the imports of a script lead to."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import torch.distributed as dist
{}
dist.init_process_group("nccl")
build()
dist.destroy_process_group()
"""
BUILDER = """
from torchvision.datasets import MNIST


def build():
    root = "data"
    kind = MNIST
    return MNIST(root, train=True, download=True)
"""


def codes(lint: Any, script: str, imported: str, **files: str) -> set[str]:
    lint.write({f"{script}.py": SCRIPT.format(imported), **files})
    return {finding.code for finding in lint.run(f"{script}.py")}


@pytest.mark.parametrize(
    "imported, file, is_followed",
    [
        ("from datasets import build", "datasets/__init__.py", True),
        ("from datasets.builder import build", "datasets/builder.py", True),  # the library has none of that
        ("from datasets import build", "datasets/data.txt", False),  # a folder of data: the library is meant
        ("from datasets import build", "lib/datasets.py", False),
        ("from transformers import build", "transformers/__init__.py", False),  # a copy of the library
    ],
)
def test_a_package_of_the_project_named_like_a_library(lint: Any, imported: str, file: str, is_followed: bool) -> None:
    assert codes(lint, "train", imported, **{file: BUILDER}) == ({"DDP208"} if is_followed else set())


@pytest.mark.parametrize("folder", ["flows-main", "me+flows", "flows"])
def test_a_copy_of_a_package_under_another_name(lint: Any, folder: str) -> None:
    """The root of a project is the package that its scripts import from."""
    found = codes(lint, f"{folder}/train", "from flows.data import build", **{f"{folder}/data.py": BUILDER})
    assert found == {"DDP208"}


def test_a_folder_of_another_name_is_not_the_package(lint: Any) -> None:
    assert codes(lint, "rivers/train", "from flows.data import build", **{"rivers/data.py": BUILDER}) == set()


@pytest.mark.parametrize(
    ("marks", "is_followed"),
    [
        (("pyproject.toml", "trainer/setup.py", "parts/setup.py"), True),
        (("trainer/setup.py", "parts/setup.py"), False),  # a folder in which projects of all kinds lie
        (("pyproject.toml", "trainer/setup.py"), False),  # a folder of data
    ],
)
def test_a_project_beside_it_in_one_repository_is_followed(
    lint: Any, marks: tuple[str, ...], is_followed: bool
) -> None:
    lint.write(dict.fromkeys(marks, "") | {"parts/building/__init__.py": BUILDER})
    found = codes(lint, "trainer/train", "from building import build")
    assert ("DDP208" in found) is is_followed
