"""The script sets the address at which its ranks meet, and a launcher has set it already.

## What it does
Looks for `os.environ["MASTER_ADDR"] = "localhost"` and `os.environ["MASTER_PORT"] = "12355"`, on no condition, in a
script whose ranks torchrun starts.

## Why is this bad?
torchrun gives each rank the address and the port at which it listens for them itself. With another port every rank
waits for a store that nobody runs, and the job ends in a time-out, unless it happens to be the port that torchrun was
given. With `localhost` the ranks of a second node look for the first on their own machine.

## Example
```python
os.environ["MASTER_ADDR"] = "localhost"
os.environ["MASTER_PORT"] = "12355"
dist.init_process_group("nccl")
```

## Use instead
```python
os.environ.setdefault("MASTER_ADDR", "localhost")
os.environ.setdefault("MASTER_PORT", "12355")
dist.init_process_group("nccl")
```

## References
- [torchrun: environment variables](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.names import NODE
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Const, constant
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Variable
SEVERITIES = (WARNING, INFO)
EVIDENCE = "S"
FIX = "-"

HEAD = ""
VALID = (
    """
    # alone
    def worker(rank, world_size):
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = "12355"
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(worker, args=(2,), nprocs=2)
    """,
    """
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "12355")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    """,
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = "12355"
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    """,
    """
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    os.environ["MASTER_ADDR"] = os.environ.get("MASTER_ADDR", "localhost")
    os.environ["MASTER_PORT"] = os.environ.get("MASTER_PORT", "12355")
    dist.init_process_group("nccl")
    """,
    """
    # One process for each task of SLURM: nobody else sets these.
    os.environ["MASTER_PORT"] = "12355"
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
    torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))
    dist.init_process_group("nccl")
    """,
)
INVALID = (
    """
    os.environ["MASTER_PORT"] = "12355"  # expect
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    """,
    """
    def start():
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = "29511"  # expect
        dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))

    start()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    """,
    """
    nodes = int(os.environ["NNODES"])
    os.environ["MASTER_ADDR"] = "127.0.0.1"  # expect
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    """,
)

_LOOP_BACK = ("localhost", "127.0.0.1", "0.0.0.0")
_IDENTITY = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def check(program: Program) -> Iterator[Proposal]:
    """One finding, at the port where that is set, else at the address."""
    if not _is_launched(program):
        return
    overridden = [fact for fact in program.facts(facts.Variable) if _is_forced(program, fact)]
    port = next((fact for fact in overridden if fact.name == "MASTER_PORT"), None)
    address = next((fact for fact in overridden if fact.name == "MASTER_ADDR"), None)
    if port is not None:
        evidence = [place(address.site, "and the address here")] if address is not None else []
        yield propose(
            program,
            port,
            WARNING,
            "this replaces the port that the launcher has set: under torchrun the ranks wait where nobody listens, "
            "unless it was started with this very port; use `os.environ.setdefault`",
            evidence=evidence,
        )._replace(expects=("assign", ""))
    elif address is not None and constant(address.value) in _LOOP_BACK:
        several = program.speaks_of(NODE) or program.mentions(mentions.SEVERAL_STARTED)
        yield propose(
            program,
            address,
            WARNING if several else INFO,
            "this replaces the address that the launcher has set: the ranks of a second node look for the first on "
            "their own machine; use `os.environ.setdefault`",
        )._replace(expects=("assign", ""))


def _is_launched(program: Program) -> bool:
    """Whether torch's launcher starts the ranks, and nothing else may."""
    groups = [fact for fact in program.facts(facts.ProcessGroup) if fact.name == "init"]
    if not groups or any(Flag.SPAWNED in fact.flags for fact in groups):
        return False
    if any(fact.name in ("spawn", "Process", "horovod") for fact in program.facts(facts.Launch)):
        return False
    if any(fact.name in _IDENTITY for fact in program.facts(facts.Variable)):
        return False  # the script tells itself which rank it is
    return program.mentions(mentions.TORCHRUN) and not program.mentions(mentions.NO_TORCHRUN)


def _is_forced(program: Program, fact: facts.Variable) -> bool:
    """Whether every rank gets this value, whatever the launcher has set."""
    if fact.who != "all" or not program.runs_on_many(fact) or Flag.HANDLER in fact.flags or fact.hangs_on_unknown:
        return False
    return len(fact.value) == 1 and isinstance(fact.value[0], Const)
