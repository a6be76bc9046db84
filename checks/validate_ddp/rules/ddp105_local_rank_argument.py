"""The device comes from a command line option that torchrun does not pass.

## What it does
Looks for a script that declares `--local_rank`, takes its device from it, and reads `LOCAL_RANK` nowhere.

## Why is this bad?
`torch.distributed.launch` of old passed `--local_rank=N` to each process. torchrun sets the environment variable
`LOCAL_RANK` and passes no option: the option keeps its default on every rank, so all of them take one GPU, or the
script believes that it runs alone. Since PyTorch 2.0 `torch.distributed.launch` passes `--local-rank`, with a hyphen,
which a parser that knows `--local_rank` only refuses.

Nothing is said where the option is declared but unused, and where DeepSpeed's launcher, which does pass it, may be
meant.

## Example
```python
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
```

## Use instead
```python
parser.add_argument("--local_rank", "--local-rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
```

## Fix safety
The fix sets the option's default from `LOCAL_RANK`. It is unsafe, since the script then believes to be distributed
wherever that variable is set. There is none where the default is another number than zero, which stands for a run that
is not distributed.

## References
- [torchrun: transitioning from torch.distributed.launch](https://docs.pytorch.org/docs/stable/elastic/run.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import WARNING, Edit, Fix, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Rank, bare, constant, reaching
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Option
SEVERITIES = (WARNING,)
EVIDENCE = "S"
FIX = "unsafe"

HEAD = """
    parser = argparse.ArgumentParser()
"""
TAIL = """
    dist.init_process_group("nccl")
    dist.destroy_process_group()
"""
VALID = (
    """
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = parser.parse_args()
    torch.cuda.set_device(args.local_rank)
    """,
    """
    parser.add_argument("--local_rank", type=int, default=0, help="please ignore")
    args = parser.parse_args()
    torch.cuda.set_device(dist.get_node_local_rank())
    """,
    """
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        args.local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(args.local_rank)
    """,
    """
    # alone
    def worker(local_rank, args):
        args.local_rank = local_rank
        torch.cuda.set_device(args.local_rank)
        dist.init_process_group("nccl", rank=local_rank, world_size=2)
        dist.destroy_process_group()

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=0)
        mp.spawn(worker, args=(parser.parse_args(),), nprocs=2)
    """,
    """
    import deepspeed

    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    torch.cuda.set_device(args.local_rank)
    """,
)
INVALID = (
    """
    parser.add_argument("--local_rank", type=int, default=0)  # expect
    args = parser.parse_args()
    torch.cuda.set_device(args.local_rank)
    """,
    """
    # alone
    def options():
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        parser.add_argument("--local_rank", "--local-rank", type=int, default=-1)  # expect
        return parser.parse_args()

    class Trainer:
        def __init__(self, args):
            self.local_rank = args.local_rank
            self.model = DDP(torch.nn.Linear(2, 2).cuda(self.local_rank), device_ids=[self.local_rank])

    def main():
        args = options()
        dist.init_process_group("nccl")
        Trainer(args)
        dist.destroy_process_group()

    if __name__ == "__main__":
        main()
    """,
    """
    parser.add_argument("--local_rank", type=int)  # expect
    args, rest = parser.parse_known_args()
    device = torch.device(f"cuda:{args.local_rank}")
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding, at the option's declaration."""
    options = [fact for fact in program.facts(facts.Option) if fact.name == "local_rank"]
    devices = [fact for fact in program.facts(facts.Device) if _is_from_option(fact)]
    if not options or not devices or not program.is_distributed or program.mentions(mentions.LOCAL_RANK_ELSEWHERE):
        return
    if program.facts(facts.Launch):
        return
    fact, used = options[0], devices[0]
    default = constant(fact.default) if fact.default else None
    name = constant(fact.option)
    every = f"its default, {default}" if default is not ... else "its default"
    effect = f"every rank gets {every}"
    if constant(fact.required) is True:
        effect = "every rank stops there, as it is required"
    yield propose(
        program,
        fact,
        WARNING,
        f"the device comes from `{name}` alone, which torchrun does not pass: {effect}; read `LOCAL_RANK`",
        evidence=[place(used.site, "it becomes the device here")],
        fix=_fix(fact),
    )


def _is_from_option(fact: facts.Device) -> bool:
    """Whether the device is the option's value, and no rank that was read from elsewhere."""
    parts = [*bare(fact.device), *reaching(fact.device)]
    ranks = [part for part in parts if isinstance(part, Rank)]
    return any(rank.option for rank in ranks) and not any(rank.sure for rank in ranks)


def _fix(fact: facts.Option) -> Fix | None:
    parser = fact.parser
    if not parser or constant(fact.required) is True:
        return None
    if fact.default and constant(fact.default) not in (0, None):
        return None  # -1 says that there is one process: zero would start a group for it
    path, statement = fact.site.path, fact.site.statement
    source = 'int(os.environ.get("LOCAL_RANK", 0))'
    edits = (
        Edit("add_import", path, statement, "import os"),
        Edit("insert_after", path, statement, f"{parser}.set_defaults(local_rank={source})"),
    )
    return Fix("take the option's default from `LOCAL_RANK`", False, edits)
