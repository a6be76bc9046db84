"""The port where the ranks meet is a fixed number.

## What it does
Looks for a literal port in `--master-port`, `--rdzv-endpoint`, `--main_process_port` or an exported `MASTER_PORT`.

## Why is this bad?
On a machine that several jobs share, the second one that uses the number fails with `address already in use`, or joins
the ranks of the first. A container or a pod has ports of its own: there nothing is said.

## Example
```bash
torchrun --nproc-per-node 2 --master-port 29501 train.py
```

## Use instead
```bash
torchrun --nproc-per-node 2 --standalone train.py
torchrun --nproc-per-node 2 --master-port "${MASTER_PORT:-29501}" train.py
```
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, Proposal
from validate_ddp.launch import records
from validate_ddp.launch.meaning import ports
from validate_ddp.launch.records import Launch
from validate_ddp.rules.launching import propose

LAUNCH_TRIGGER = records.Start
SEVERITIES = (INFO,)
EVIDENCE = "L"
FIX = "-"

VALID = (
    "torchrun --nproc_per_node 2 train.py\n",
    "torchrun --nproc_per_node 2 --master_port ${PORT:-29501} train.py\n",
    "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 train.py\n",
    "export MASTER_PORT=$((10000 + SLURM_JOBID % 20000))\nsrun python train.py\n",
    "PORT=$1\ntorchrun --master_port $PORT train.py\n",
    "# file: pod.yaml\ncommand: [torchrun, --master_port, '29501', train.py]\n",
)
INVALID = (
    "torchrun --nproc_per_node 2 --master_port 29501 train.py  # expect\n",
    "PORT=29501  # expect\ntorchrun --master_port=$PORT train.py\n",
    "torchrun --rdzv_backend=c10d --rdzv_endpoint=$HOST:6000 train.py  # expect\n",
    "export MASTER_PORT=12345  # expect\nsrun python train.py\n",
)


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding a port."""
    if launch.path.lower().endswith((".yaml", ".yml", ".json", "dockerfile")):
        return
    for port, statement in ports(launch):
        if port.number and port.number <= 65535:
            yield propose(
                launch,
                port.span,
                statement,
                INFO,
                f"port {port.number} is fixed: two jobs on one machine cannot both have it; "
                "let the environment set it, or use `--standalone` on one node",
            )
