"""`torch.distributed.launch` is deprecated.

## What it does
Looks for commands that start training by `python -m torch.distributed.launch`.

## Why is this bad?
It has been deprecated since PyTorch 1.10 in favour of `torchrun`, which is `python -m torch.distributed.run`. Without
`--use-env` it passes an option to the script: `--local_rank` up to PyTorch 1.13, `--local-rank` since 2.0, which a
script that declares only the old one refuses.

## Example
```bash
python -m torch.distributed.launch --nproc_per_node=8 --use_env train.py
```

## Use instead
```bash
torchrun --nproc-per-node=8 train.py
```

## Fix safety
The fix names `torch.distributed.run`. It is safe with `--use-env`, which goes; without it the script may need the
option that it is no longer given, and the fix is unsafe. So it is where the words stand in a variable, of which other
commands may be made too. There is none where `--use-env` is an item of a list, or in quotes.

## References
- [torchrun: transitioning from torch.distributed.launch](https://docs.pytorch.org/docs/stable/elastic/run.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import WARNING, Fix, Proposal
from validate_ddp.launch import records
from validate_ddp.launch.records import Launch, Start
from validate_ddp.rules.launching import is_within, propose, replaced, taken_out

LAUNCH_TRIGGER = records.Start
SEVERITIES = (WARNING,)
EVIDENCE = "L"
FIX = "safe"

VALID = (
    "torchrun --nproc_per_node=2 train.py\n",
    "python -m torch.distributed.run --nproc_per_node=2 train.py\n",
    "echo 'python -m torch.distributed.launch train.py'\n# python -m torch.distributed.launch train.py\n",
    "python -m torch.distributed.launch --help\n",
)
INVALID = (
    "python -m torch.distributed.launch --nproc_per_node=2 train.py  # expect\n",
    "CUDA_VISIBLE_DEVICES=0,1 python3 -u -m torch.distributed.launch --use_env train.py  # expect\n",
    'PYTHON=${PYTHON:-"python"}\n$PYTHON -m torch.distributed.launch --nproc_per_node=$1 train.py ${@:2}  # expect\n',
    'CMD="python -m torch.distributed.launch"  # expect\n$CMD --nproc_per_node 2 train.py\n',
)


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding a command, at the launcher's name."""
    for start in launch.facts(records.Start):
        if start.launcher != "launch" or start.has("help", "h"):
            continue
        tells = start.has("use_env")
        effect = "" if tells else ", which passes no `--local_rank` to the script"
        yield propose(
            launch,
            start.head[-1].span,
            start.statement,
            WARNING,
            f"`torch.distributed.launch` is deprecated; use `torchrun`{effect}",
            fix=_fix(launch, start),
        )


def _fix(launch: Launch, start: Start) -> Fix | None:
    module = start.head[-1]
    named = replaced(launch, module, "torch.distributed.run") if module.only == "torch.distributed.launch" else None
    if named is None:
        return None
    edits = [named]
    tells = start.has("use_env")
    if tells is not None:
        gone = taken_out(launch, start, [tells.word])
        if gone is None:
            return None
        edits.append(gone)
    safe = tells is not None and all(is_within(edit, start.statement) for edit in edits)
    return Fix("start by `torch.distributed.run`", safe, tuple(edits))
