"""Which of the files that a user names are no Python."""

from __future__ import annotations

import pytest
from validate_ddp.source.kinds import foreign, says_python


@pytest.mark.parametrize(
    ("path", "head", "kind"),
    [
        ("run.sh", b"torchrun train.py\n", "a shell script"),
        ("jobs/train.sbatch", b"", "a batch script"),
        ("train.slurm", b"#!/bin/bash\n", "a script for bash"),
        ("config.YAML", b"a: 1\n", "YAML"),
        ("ds_config.json", b"{}\n", "JSON"),
        ("docker/Dockerfile", b"FROM x\n", "a Dockerfile"),
        ("Dockerfile.gpu", b"FROM x\n", "a Dockerfile"),
        ("Makefile", b"all:\n", "a Makefile"),
        (".env", b"A=1\n", "a configuration file"),
        ("launch", b"#! /usr/bin/env bash\n", "a script for bash"),
        ("launch", b"#!/bin/sh -e\n", "a script for sh"),
    ],
)
def test_a_launch_file_is_told_from_python(path: str, head: bytes, kind: str) -> None:
    assert foreign(path, head) == kind
    assert not says_python(path, head)


@pytest.mark.parametrize(
    ("path", "head", "says"),
    [
        ("train.py", b"#!/bin/sh\n", True),
        ("train.PY", b"", True),
        ("a.ipynb", b"{", True),
        ("train", b"#!/usr/bin/env python\n", True),
        ("train", b"#!/usr/bin/env -S python3 -u\n", True),
        ("train", b"#!/opt/conda/bin/python3.11\n", True),
        ("job.sbatch", b"#!/usr/bin/env python3\n", True),
        ("train", b"import torch\n", False),
        ("train.txt", b"", False),
        ("train.py.in", b"import torch\n", False),
    ],
)
def test_what_is_or_may_be_python_is_read(path: str, head: bytes, says: bool) -> None:
    assert foreign(path, head) == ""
    assert says_python(path, head) is says
