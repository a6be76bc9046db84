"""Tells a file that is no Python, as a launch script or a configuration, from one that is: by its name or first line.

Only a file that the user names is asked about: in folders nothing but .py and .ipynb files is looked for.
"""

from __future__ import annotations

import os
import re

PYTHON = (".py", ".pyw", ".pyi", ".ipynb")

_SUFFIXES = {
    **dict.fromkeys((".sh", ".bash", ".zsh", ".ksh", ".fish", ".csh"), "a shell script"),
    **dict.fromkeys((".sbatch", ".slurm", ".pbs", ".lsf", ".sge"), "a batch script"),
    **dict.fromkeys((".yaml", ".yml"), "YAML"),
    **dict.fromkeys((".json", ".jsonl"), "JSON"),
    ".toml": "TOML",
    **dict.fromkeys((".cfg", ".conf", ".ini", ".env"), "a configuration file"),
    **dict.fromkeys((".ps1", ".bat", ".cmd"), "a script for Windows"),
    ".mk": "a Makefile",
    ".dockerfile": "a Dockerfile",
    **dict.fromkeys((".md", ".rst"), "a text"),
}
_NAMES = {
    **dict.fromkeys(("makefile", "gnumakefile", "justfile"), "a Makefile"),
    **dict.fromkeys(("dockerfile", "containerfile"), "a Dockerfile"),
}
_INTERPRETER = re.compile(rb"#![ \t]*(?:\S*/)?(?:env[ \t]+(?:-\S+[ \t]+|\w+=\S*[ \t]+)*(?:\S*/)?)?([\w.+-]+)")
_RUNS_PYTHON = re.compile(rb"i?python[\d.]*$|pypy[\d.]*$|torchrun$")


def foreign(path: str, head: bytes) -> str:
    """What a file is that is no Python, in words; empty for Python, and where its name and first line do not tell.

    head: what the file begins with, a line of it. A first line that names an interpreter goes before the name.
    """
    name = os.path.basename(path).lower()
    if name.endswith(PYTHON):
        return ""
    interpreter = _INTERPRETER.match(head)
    if interpreter is not None:
        program = interpreter.group(1)
        return "" if _RUNS_PYTHON.match(program) else f"a script for {program.decode('ascii')}"
    stem, suffix = os.path.splitext(name)
    # `Dockerfile.gpu` and `train.sh` alike; a name that is only a suffix (`.env`) has none for `splitext`
    return _SUFFIXES.get(suffix or stem) or _NAMES.get(name.partition(".")[0], "")


def says_python(path: str, head: bytes) -> bool:
    """Whether name or first line say that a file is Python: one that does not parse is then broken."""
    if os.path.basename(path).lower().endswith(PYTHON):
        return True
    interpreter = _INTERPRETER.match(head)
    return interpreter is not None and _RUNS_PYTHON.match(interpreter.group(1)) is not None
