"""The port where the ranks meet is a fixed number.

## What it does
Looks for a literal port in `--master-port`, `--rdzv-endpoint`, `--main_process_port` or an exported `MASTER_PORT`.

## Why is this bad?
On a machine that several jobs share, the second one that uses the number fails with `address already in use`, or joins
the ranks of the first.

Nothing is said where no other job is on the machine: of containers, pods and cloud notebooks, of batch jobs of
several nodes or with four GPUs of one and more, which take whole nodes, of ranks that Slurm starts itself, and of one
process that `accelerate launch` starts, which nobody meets.

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

from validate_ddp.findings import INFO, Proposal, Span
from validate_ddp.launch import records
from validate_ddp.launch.meaning import LAUNCHERS, NODES, gpus_per_node, nodes, ports, processes
from validate_ddp.launch.records import Job, Launch, Start, Word
from validate_ddp.rules.launching import place, propose

LAUNCH_TRIGGER = records.Start
SEVERITIES = (INFO,)
EVIDENCE = "L"
FIX = "-"

VALID = (
    "torchrun --nproc_per_node 2 train.py\n",
    "torchrun --standalone --master_port 12345 --nproc_per_node 2 train.py\n",
    "torchrun --nproc_per_node 2 --master_port ${PORT:-29501} train.py\n",
    "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 train.py\n",
    "export MASTER_PORT=$((10000 + SLURM_JOBID % 20000))\nsrun python train.py\n",
    "PORT=$1\ntorchrun --master_port $PORT train.py\n",
    "# file: pod.yaml\ncommand: [torchrun, --master_port, '29501', train.py]\n",
    "export MASTER_PORT=12345\nsrun python train.py\n",
    "#SBATCH --gres=gpu:8\ntorchrun --master_port 29501 --nproc_per_node 8 train.py\n",
    "#SBATCH --exclusive\ntorchrun --master_port 29501 --nproc_per_node 2 train.py\n",
    "srun torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $HOST:6000 train.py\n",
    "accelerate launch --num_processes 1 --main_process_port 2036 train.py\n",
    "docker run --gpus all image torchrun --master_port 29501 train.py\n",
)
INVALID = (
    "torchrun --nproc_per_node 2 --master_port 29501 train.py  # expect\n",
    "PORT=29501  # expect\ntorchrun --master_port=$PORT train.py\n",
    "torchrun --rdzv_backend=c10d --rdzv_endpoint=$HOST:6000 train.py  # expect\n",
    "accelerate launch --num_processes 2 --main_process_port 2036 train.py  # expect\n",
    "accelerate launch --num_processes 1 --use_deepspeed --main_process_port 2036 train.py  # expect\n",
    "#SBATCH --gres=gpu:1\nexport MASTER_PORT=12345  # expect\ntorchrun --master_port $MASTER_PORT train.py\n",
    """
    accelerate launch --num_processes 2 --main_process_port 2036 train.py --stage 1  # expect
    accelerate launch --num_processes 2 --main_process_port 2036 train.py --stage 2
    accelerate launch --num_processes 2 --main_process_port 2037 train.py --stage 3  # expect
    """,
)


_LEAST_OF_A_NODE = 4
"""GPUs of a node, for which jobs are mostly given all of it."""
_GROUPED = ("use_deepspeed", "use_fsdp", "use_megatron_lm", "multi_gpu", "num_machines", "config_file")
"""Options of accelerate, one of which may make a group of a single process."""
_CONTAINERS = ("docker ", "podman ", "/kaggle/", "/content/")


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding a port, at the first command that has it."""
    if launch.path.lower().endswith((".yaml", ".yml", ".json", "dockerfile")) or _is_alone(launch):
        return
    unread = {start.statement for start in launch.facts(Start) if _leaves_unread(start, launch.job)}
    several = {start.statement for start in launch.facts(Start) if _is_of_several(start, launch.job)}
    found: dict[int, list[tuple[Word, Span]]] = {}
    for port, statement in ports(launch):
        if port.number and port.number <= 65535 and statement not in several | unread:
            found.setdefault(port.number, []).append((port, statement))
    for number, places in found.items():
        (port, statement), *others = places
        yield propose(
            launch,
            port.span,
            statement,
            INFO,
            f"port {number} is fixed: two jobs on one machine cannot both have it; "
            "let the environment set it, or use `--standalone` on one node",
            evidence=[place(launch, other, "and here") for other, _ in others],
        )


def _is_alone(launch: Launch) -> bool:
    """Whether no other job is on the machine, or none of what starts here is a launcher with ranks that meet."""
    starts = [start for start in launch.facts(records.Start) if start.launcher in LAUNCHERS]
    if not starts or any(sign in launch.text for sign in _CONTAINERS):
        return True
    return _takes_nodes(launch.job) or all(_is_of_several(start, launch.job) for start in starts)


def _leaves_unread(start: Start, job: Job | None) -> bool:
    """Whether the launcher makes up a port itself, or starts a single process without a group."""
    if start.launcher != "accelerate":
        return start.has("standalone") is not None
    count = processes(start, job)
    return count is not None and count[0] == 1 and start.complete and start.has(*_GROUPED) is None


def _takes_nodes(job: Job | None) -> bool:
    if job is None:
        return False
    asked, gpus = job.option("nodes"), gpus_per_node(job)
    several = asked is not None and asked.number != 1
    return (
        several
        or any(given.name == "exclusive" for given in job.options)
        or (gpus is not None and gpus[0] >= _LEAST_OF_A_NODE)
    )


def _is_of_several(start: Start, job: Job | None) -> bool:
    """Whether it waits for other nodes."""
    if start.launcher not in LAUNCHERS:
        return False
    wanted, word = nodes(start, job), start.option(NODES[start.launcher])
    if wanted is not None:
        return wanted.most > 1
    by_job = start.srun is not None or (word is not None and any(each.startswith("SLURM_") for each in word.names))
    return word is not None and by_job
