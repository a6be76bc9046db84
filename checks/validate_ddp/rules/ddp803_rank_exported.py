"""`RANK`, `WORLD_SIZE` or `LOCAL_RANK` is set for a launcher that sets it itself.

## What it does
Looks for these variables where `torchrun`, `accelerate launch` or `deepspeed` find them in their environment, and the
file itself does not use them, as in `--nnodes=$WORLD_SIZE`.

## Why is this bad?
The launcher ignores them: it counts nodes and processes by its options, and gives each process variables of its own. So
the number that was set is not the number of processes that start; and a plain `python` that follows in the same shell
believes that it is one of several ranks, and waits for the others.

## Example
```bash
export WORLD_SIZE=4
torchrun --nproc-per-node 2 train.py
```

## Use instead
```bash
torchrun --nproc-per-node 4 train.py
```
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import WARNING, Place, Proposal
from validate_ddp.launch import records
from validate_ddp.launch.meaning import LAUNCHERS
from validate_ddp.launch.records import Launch
from validate_ddp.rules.launching import place, propose

LAUNCH_TRIGGER = records.Setting
SEVERITIES = (WARNING,)
EVIDENCE = "L"
FIX = "-"

VALID = (
    "export WORLD_SIZE=2\nexport RANK=0\ntorchrun --nnodes=$WORLD_SIZE --node_rank=$RANK train.py\n",
    "WORLD_SIZE=4\ntorchrun --nproc_per_node 4 train.py\n",
    "export WORLD_SIZE=$SLURM_NTASKS\nsrun python train.py\n",
    "torchrun train.py\nexport RANK=0\npython eval.py\n",
    "RANK=0 WORLD_SIZE=1 python eval.py\ntorchrun train.py\n",
    "export RANK=0\nunset RANK\ntorchrun train.py\n",
)
INVALID = (
    "WORLD_SIZE=4 torchrun --nproc_per_node 2 train.py  # expect\n",
    "export RANK=0  # expect\nexport MASTER_PORT=1234\ntorchrun --nproc_per_node 2 train.py\npython eval.py\n",
    "set -a\nWORLD_SIZE=8  # expect\naccelerate launch train.py\n",
)

_NAMES = {"launch": "torch.distributed.launch", "accelerate": "accelerate launch"}
_NAMES |= {"torchrun": "torchrun", "deepspeed": "deepspeed"}
_SET = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding a variable that is set."""
    starts = list(launch.facts(records.Start))
    for start in starts:
        if start.launcher not in LAUNCHERS:
            continue
        for setting in start.settings:
            if setting.name not in _SET or setting.name in launch.used:
                continue
            evidence = [place(launch, start.head[0], "this launcher sets it itself")]
            later = [each for each in starts if each.launcher == "python" and _finds(each, setting) and not each.srun]
            waits = ""
            if later and setting.name != "LOCAL_RANK":
                evidence.append(Place(launch.path, later[0].span, "a plain Python finds it, and waits for other ranks"))
                waits = ", and a plain `python` in this file finds it"
            yield propose(
                launch,
                setting.span,
                setting.statement,
                WARNING,
                f"`{setting.name}` is ignored by `{_NAMES[start.launcher]}`, "
                f"which sets it for each process{waits}; leave it out",
                evidence=evidence,
            )


def _finds(start: records.Start, setting: records.Setting) -> bool:
    return any(each.span == setting.span for each in start.settings)
