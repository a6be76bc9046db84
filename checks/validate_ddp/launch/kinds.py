"""Which files are launch files, by name, first line and the words in them; no parse."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable

SHELL, YAML, JSON, DOCKERFILE, MARKDOWN = "shell", "yaml", "json", "dockerfile", "markdown"
SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm", ".yaml", ".yml", ".json", ".dockerfile")
LARGEST = 1024 * 1024
"""Bytes of a file that a walk takes for a launch file; above that YAML and JSON are data."""

_LAUNCHERS = (b"torchrun", b"torch.distributed.", b"accelerate", b"deepspeed", b"DeepSpeed")
DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu")
"""Keys that only DeepSpeed's own configuration has."""
_DEEPSPEED = tuple(key.encode() for key in DEEPSPEED)
_SIGNS = (
    *_LAUNCHERS,
    *_DEEPSPEED,
    *(b"num_processes", b"NCCL_", b"TORCH_DISTRIBUTED_", b"srun ", b"MASTER_PORT"),
)
_STARTS_PROCESSES = (b"subprocess", b"os.system", b"Popen", b"os.popen")
_TELLING = {
    "a shell script": SHELL,
    "a batch script": SHELL,
    **{f"a script for {shell}": SHELL for shell in ("sh", "bash", "zsh", "ksh", "dash")},
    "YAML": YAML,
    "JSON": JSON,
    "a Dockerfile": DOCKERFILE,
}


READMES = ("README.md", "readme.md", "Readme.md")
TYPED = re.compile(rb"torchrun|accelerate launch|torch\.distributed\.(?:run|launch)|\bdeepspeed\b")
"""What a command holds that starts several ranks."""
_NAMED = re.compile(rb"([\w-]+)\.py\b|(?:-m|--module)[ =]+(?:\w+\.)*(\w+)")


def names_one(data: bytes, names: Collection[bytes]) -> bool:
    """Whether the bytes name one of these scripts, given without suffixes, or modules."""
    return any(found[0] in names or found[1] in names for found in _NAMED.findall(data))


def is_candidate(name: str) -> bool:
    """Whether a file that a walk meets may be a launch file, by its name alone."""
    if name.endswith(SUFFIXES):
        return True
    return name.startswith(("Dockerfile", "Containerfile")) and not name.endswith((".py", ".md"))


def kind(path: str, head: bytes) -> str:
    """What a file is read as; empty for one that is no launch file."""
    if os.path.basename(path).lower().endswith((".jsonl", ".fish", ".csh", ".zsh")):
        return ""  # data; and shells of another syntax
    if head.startswith(b'{"validate-ddp baseline"'):
        return ""  # it quotes statements that start training
    if path.lower().endswith(".md"):
        return MARKDOWN  # only of a file that the user names: a walk takes none for a candidate
    from validate_ddp.source.kinds import foreign

    return _TELLING.get(foreign(path, head), "")


def may_launch(data: bytes) -> bool:
    """Whether the bytes can be about starting training."""
    return any(sign in data for sign in _SIGNS)


def may_be_deepspeed(data: bytes) -> bool:
    """Whether the bytes can be a configuration of DeepSpeed."""
    return any(key in data for key in _DEEPSPEED)


def naming(scripts: Iterable[str]) -> re.Pattern[bytes]:
    """What bytes that start one of these scripts hold: the name of its file, or that of its module."""
    stems = set()
    for script in scripts:
        folder, name = os.path.split(os.path.splitext(script)[0])
        stems |= {name, os.path.basename(folder)} if name == "__main__" else {name}
    either = b"|".join(re.escape(os.fsencode(stem)) for stem in sorted(stems))
    module = rb"(?:-m|--module)\W{1,20}(?:\w[\w.]{0,200}\.)?"
    return re.compile(rb"\b(?:" + either + rb")\.py\b|" + module + rb"(?:" + either + rb")\b")


def may_launch_from_python(data: bytes) -> bool:
    """Whether a Python file can hold the command of a launcher, or set variables of NCCL."""
    if b"NCCL_" in data or b"TORCH_DISTRIBUTED_TIMEOUT" in data:
        return b"environ" in data or b"putenv" in data
    return any(sign in data for sign in _LAUNCHERS) and any(sign in data for sign in _STARTS_PROCESSES)
