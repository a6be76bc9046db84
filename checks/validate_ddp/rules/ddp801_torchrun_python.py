"""The launcher is given `python` as the script to run.

## What it does
Looks for `torchrun`, `accelerate launch`, `deepspeed` and `python -m torch.distributed.launch` whose script is
`python`, without `--no-python`.

## Why is this bad?
A launcher starts `python -u SCRIPT` itself. Given `torchrun python train.py` it runs `python -u python train.py`, and
every process ends at once: there is no file called `python`.

## Example
```bash
torchrun --nproc-per-node 8 python train.py
```

## Use instead
```bash
torchrun --nproc-per-node 8 train.py
```

## Fix safety
The fix takes the word out. It is safe: the command that it changes cannot have run. There is none where the word is an
item of a list.

## References
- [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Fix, Proposal
from validate_ddp.launch import records
from validate_ddp.launch.meaning import LAUNCHERS
from validate_ddp.launch.records import Launch, Start, Word
from validate_ddp.rules.launching import propose, taken_out

LAUNCH_TRIGGER = records.Start
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "L"
FIX = "safe"

VALID = (
    "torchrun --nproc_per_node 2 python_monitor.py\n",
    "torchrun --nproc_per_node 2 --no-python python train.py\n",
    "python -m torch.distributed.run --nproc_per_node=2 train.py\n",
    "accelerate launch --no_python python train.py\n",
    "srun python train.py\n",
    "torchrun --role python train.py\n",
    "echo torchrun python train.py\n",
    "# torchrun python train.py\ntorchrun train.py python\n",
)
INVALID = (
    "torchrun --nproc_per_node 2 python train.py  # expect\n",
    "ARGS=(--nproc_per_node 2 --standalone)\nsrun torchrun ${ARGS[@]} python3 train.py  # expect\n",
    "accelerate launch --num_processes 2 python -m pkg.train  # expect\n",
    "nohup deepspeed --num_gpus 2 /usr/bin/python -u train.py > log 2>&1 &  # expect\n",
    "bash -c 'torchrun --nproc_per_node 2 python train.py'  # expect\n",
    "# file: job.yaml\nnum_nodes: 1\nresources: {}\nrun: |\n  cd code\n  torchrun python train.py  # expect\n",
)

_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?$")


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding a command, at the word."""
    for start in launch.facts(records.Start):
        script = start.script
        if start.launcher not in LAUNCHERS or script is None or start.has("no_python"):
            continue
        if not script.texts or not all(map(_PYTHON.match, script.texts)):
            continue
        name = {"launch": "torch.distributed.launch", "accelerate": "accelerate launch"}.get(
            start.launcher, start.launcher
        )
        yield propose(
            launch,
            script.span,
            start.statement,
            ERROR if script.only is not None and start.complete else WARNING,
            f"`{name}` starts Python itself: it would run `{script.texts[0]}` as the script; take the word out",
            fix=_fix(launch, start, script),
        )


def _fix(launch: Launch, start: Start, script: Word) -> Fix | None:
    """The word goes, and ``-u`` with it, which launchers give Python themselves."""
    span, held = script.span, start.statement
    if script.only is None or script.raw != script.only or not held.line <= span.line <= held.end_line:
        return None
    rest = list(start.arguments)
    taken = [script]
    while rest and rest[0].only == "-u":
        taken.append(rest.pop(0))
    following = rest[0] if rest else None
    if following is None or ((following.only or "-").startswith("-") and following.only != "-m"):
        return None
    if following.only == "-m" and start.launcher == "deepspeed":
        return None  # it calls the option `--module`
    edit = taken_out(launch, start, taken)
    return Fix("take `python` out", True, (edit,)) if edit is not None else None
