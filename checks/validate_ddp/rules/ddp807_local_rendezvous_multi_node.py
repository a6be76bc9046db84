"""The ranks of several nodes are to meet at an address that each node takes for itself.

## What it does
Looks for a launcher of several nodes whose address is `localhost`, 127.0.0.1, or `--standalone`; for one that is given
no address, where the launcher takes 127.0.0.1; and for an address that becomes `localhost` where finding it fails.

## Why is this bad?
Each node waits at its own address for the others, until the time-out; with `--nnodes 1:2` each trains alone. Where
`|| echo localhost` hides the failure, the job hangs far from its cause.

Nothing is said where the file itself starts several nodes of a test on one machine.

## Example
```bash
torchrun --nnodes 2 --node-rank "$SLURM_NODEID" --master-addr localhost --nproc-per-node 8 train.py
```

## Use instead
```bash
torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "$FIRST_NODE:29500" --nproc-per-node 8 train.py
```
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.launch import records
from validate_ddp.launch.meaning import LAUNCHERS, Nodes, is_local, meeting, nodes
from validate_ddp.launch.records import Launch, Start, Word
from validate_ddp.rules.launching import place, propose

LAUNCH_TRIGGER = records.Record
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "L"
FIX = "-"

VALID = (
    "torchrun --nnodes 2 --node_rank $R --master_addr $MASTER_ADDR train.py\n",
    "torchrun --nnodes 1 --master_addr localhost train.py\n",
    "torchrun --standalone --nproc_per_node 2 train.py\n",
    "NNODES=${NNODES:-2}\nADDR=${ADDR:-localhost}\ntorchrun --nnodes $NNODES --master_addr $ADDR train.py\n",
    "for R in 0 1; do\n  torchrun --nnodes 2 --node_rank $R --master_addr localhost train.py &\ndone\n",
    "torchrun --nnodes 2 --node_rank 0 --master_addr 127.0.0.1 t.py &\n"
    "torchrun --nnodes 2 --node_rank 1 --master_addr 127.0.0.1 t.py\n",
    "export PET_MASTER_ADDR=$HOST\ntorchrun --nnodes 2 train.py\n",
    "torchrun $ARGS --nnodes 2 train.py\n",
    "accelerate launch --num_machines 2 --main_process_ip $IP --machine_rank $R train.py\n",
    "ADDR=$(scontrol show hostnames | head -1 || echo localhost)\ntorchrun --nnodes 1 --master_addr $ADDR train.py\n",
)
INVALID = (
    "torchrun --nnodes=2 --node_rank=0 --master_addr=127.0.0.1 train.py  # expect\n",
    "torchrun --nnodes=1:2 --rdzv_backend=c10d --rdzv_endpoint=localhost:6000 train.py  # expect\n",
    'ADDR=localhost  # expect\nNNODES=4\nARGS="--nnodes $NNODES --master_addr $ADDR"\ntorchrun $ARGS train.py\n',
    "torchrun --standalone --nnodes 2 train.py  # expect\n",
    "export MASTER_ADDR=$HOST\ntorchrun --nnodes 2 --node_rank $SLURM_NODEID train.py  # expect\n",
    "ADDR=$(scontrol show hostnames | head -1 || echo localhost)\n"
    "srun torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $ADDR:29500 train.py  # expect\n",
    "accelerate launch --num_machines 2 --machine_rank 0 --num_processes 16 train.py  # expect\n",
    "# file: config.yaml\ndistributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 16\n"
    "main_process_ip: 127.0.0.1  # expect\n",
)


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding a command or configuration, at the address."""
    yield from _of_configuration(launch)
    if _is_one_machine(launch):
        return
    for start in launch.facts(records.Start):
        wanted = nodes(start, launch.job)
        if start.launcher in LAUNCHERS and wanted is not None and wanted.most > 1:
            yield from _of_start(launch, start, wanted)


def _of_configuration(launch: Launch) -> Iterator[Proposal]:
    """Accelerate's configuration of several machines."""
    for config in launch.facts(records.Config):
        machines, address = config.option("num_machines"), config.option("main_process_ip")
        if machines is None or (machines.number or 1) < 2 or address is None:
            continue
        if address.only is not None and is_local(address.only):
            yield propose(
                launch,
                address.span,
                address.span,
                WARNING,
                f"{machines.number} machines are to meet at `{address.only}`, which each takes for itself",
                evidence=[place(launch, machines, "several machines")],
            )


def _of_start(launch: Launch, start: Start, wanted: Nodes) -> Iterator[Proposal]:
    count = f"{wanted.least} to {wanted.most}" if wanted.least != wanted.most else str(wanted.most)
    severity = ERROR if wanted.least > 1 and start.complete else WARNING
    evidence = [place(launch, wanted.word, f"{count} nodes")]
    alone = start.has("standalone")
    if alone is not None:
        yield propose(
            launch,
            alone.word.span,
            start.statement,
            severity,
            f"`--standalone` is for one node, and this waits for {count}: each waits for the others at its own address",
            evidence=evidence,
        )
        return
    host = meeting(start).host
    if host is None:
        yield from _without(launch, start, wanted, count)
        return
    if not host.texts or not all(map(is_local, host.texts)) or (host.open and not host.fallback):
        return
    effect = "each waits for the others there" if wanted.least > 1 else "each trains alone"
    message = f"{count} nodes are to meet at `{host.texts[0]}`, which each takes for itself: {effect}"
    if host.fallback:
        severity = WARNING
        message = (
            f"where the address cannot be found, {count} nodes meet at `{host.texts[0]}`, which each takes for itself: "
            "let the failure end the job"
        )
    yield propose(launch, host.span, start.statement, severity, message, evidence=evidence)


def _without(launch: Launch, start: Start, wanted: Nodes, count: str) -> Iterator[Proposal]:
    """No address is given, and nothing hides one."""
    hidden = not start.complete or "PET_" in launch.text or wanted.least < 2
    kept = ("config_file", "deepspeed_hostfile", "rdzv_conf", "hostfile")
    if hidden or start.has(*kept) or start.launcher == "deepspeed" or not _is_shell(launch):
        return  # the launcher of DeepSpeed takes the first host of its list
    said = start.setting("MASTER_ADDR")
    told = " and reads no `MASTER_ADDR`" if said is not None and start.launcher != "accelerate" else ""
    if start.launcher == "accelerate" and (said is not None or start.has("machine_rank") is None):
        return
    name = "main_process_ip" if start.launcher == "accelerate" else "rdzv-endpoint"
    yield propose(
        launch,
        wanted.word.span,
        start.statement,
        WARNING,
        f"{count} nodes are given no address where to meet: the launcher takes 127.0.0.1{told}; give `--{name}`",
        evidence=[place(launch, said.span, "set here, and not read")] if said is not None else [],
    )


def _is_shell(launch: Launch) -> bool:
    """Whether the environment of the command is the file's own: operators of clusters set addresses for theirs."""
    return not launch.path.lower().endswith((".yaml", ".yml", ".json", "dockerfile"))


def _is_one_machine(launch: Launch) -> bool:
    """Whether the file starts several nodes itself, one beside the other."""
    ranks: set[str] = set()
    for start in launch.facts(records.Start):
        word = start.option("node_rank", "machine_rank")
        ranks.update(word.texts if isinstance(word, Word) and not word.open else ())
    return len(ranks) > 1
