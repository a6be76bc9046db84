"""The port where the ranks meet is above 65535.

## What it does
Looks for ports above 65535 in `--master-port`, `--rdzv-endpoint`, `--main_process_port` or `MASTER_PORT`.

## Why is this bad?
There is no such port: the launcher, or `init_process_group`, ends with an error.

## Example
```bash
torchrun --nproc-per-node 2 --master-port 66666 train.py
```

## Use instead
```bash
torchrun --nproc-per-node 2 --master-port 26666 train.py
```
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.launch import records
from validate_ddp.launch.meaning import ports
from validate_ddp.launch.records import Launch, as_number
from validate_ddp.rules.launching import propose

LAUNCH_TRIGGER = records.Record
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "L"
FIX = "-"

VALID = (
    "torchrun --master_port 65535 train.py\n",
    "torchrun --master_port ${PORT:-29500} train.py\n",
    "torchrun --nproc_per_node 2 train.py --port 70000\n",
)
INVALID = (
    "torchrun --master_port 66666 train.py  # expect\n",
    "torchrun --rdzv_endpoint=node0:295000 train.py  # expect\n",
    "torchrun --master_port ${PORT:-70000} train.py  # expect\n",
    "export MASTER_PORT=99999  # expect\nsrun python train.py\n",
)


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding a port."""
    for port, statement in ports(launch):
        numbers = [as_number(text) for text in port.texts]
        wrong = [number for number in numbers if number is not None and number > 65535]
        if wrong and len(wrong) == len(numbers):
            by_default = "" if port.only is not None else " by default"
            yield propose(
                launch,
                port.span,
                statement,
                WARNING if by_default else ERROR,
                f"port {wrong[0]} is taken{by_default}, and the highest there is is 65535",
            )
