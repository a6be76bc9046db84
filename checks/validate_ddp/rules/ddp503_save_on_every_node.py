"""The first rank of each node writes the same checkpoint.

## What it does
Looks for checkpoints that are guarded by the local rank (`local_rank == 0`, `accelerator.is_local_main_process`), to a
path that is the same on every node.

## Why is this bad?
`LOCAL_RANK` is zero once on each node. On one node the guard is right; on several, with the shared file system that
clusters have, one process a node writes into the same file at the same time, and the result can be a mix. The global
rank is zero once.

A script which nothing shows to be for more than one node (it reads no global rank, node rank or number of nodes), or
whose guard does not say `local` (`rank % devices == 0`), gets this as advice.

Not reported: scripts that spawn the ranks of one node themselves, or whose launch files all say that they start one,
paths that hold the rank or the node, and folders of the node itself (`/tmp`).

## Example
```python
if int(os.environ["LOCAL_RANK"]) == 0:
    torch.save(model.module.state_dict(), "model.pt")
```

## Use instead
```python
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
```

## References
- [torchrun: environment variables](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.names import HOSTNAME, LOCAL_MAIN, LOCAL_PLACE, OF_NODE
from validate_ddp.interpreter.names_of_training import TRAINED_STATE
from validate_ddp.interpreter.objects import Unique, contents
from validate_ddp.interpreter.sameness import hangs_on_rank
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Buffer, File, Shell, State
from validate_ddp.interpreter.values import Const, Instance, Opaque, Rank, Site, WorldSize, bare, reaching
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.record.writers import by_one, is_of_script, one_a_node, writers
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Save
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling("no path that two ranks write", once=True)

HEAD = """
    dist.init_process_group("nccl")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(torch.nn.Linear(2, 2).cuda())
"""
VALID = (
    """
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
    """,
    """
    if local_rank == 0:
        torch.save(model.module.state_dict(), f"model_{dist.get_rank()}.pt")
        torch.save(model.module.state_dict(), "/tmp/model.pt")
    """,
    """
    if local_rank == 0 and int(os.environ["GROUP_RANK"]) == 0:
        torch.save(model.module.state_dict(), "model.pt")
    """,
    """
    # alone
    def worker(local_rank):
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=local_rank, world_size=2)
        if local_rank == 0:
            torch.save(torch.nn.Linear(2, 2).state_dict(), "model.pt")
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(worker, nprocs=2)
    """,
)
INVALID = (
    """
    if local_rank == 0:
        torch.save(model.module.state_dict(), "model.pt")  # expect
    """,
    """
    class Trainer:
        def __init__(self, net):
            self.net = net
            self.local_rank = int(os.environ["LOCAL_RANK"])

        def fit(self):
            for epoch in range(3):
                if self.local_rank == 0 and epoch % 2 == 0:
                    torch.save(self.net.module.state_dict(), f"model_{epoch}.pt")  # expect

    Trainer(model).fit()
    """,
    """
    # alone
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    accelerator.wait_for_everyone()
    if accelerator.is_local_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")  # expect
    """,
)
_OF_THE_NODE = ("/tmp", "/scratch", "/local", "/dev/shm", "/var/tmp", "/raid", "/mnt/local")


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such checkpoint."""
    if _is_of_one_node(program):
        return
    reported = set()
    for fact in program.facts(facts.Save):
        reach = fact.under_split
        if fact.who != "local-zero" or fact.role != "checkpoint" or reach in reported:
            continue
        if not _holds_state(fact) or not program.runs_on_many(fact) or fact.flags & {Flag.PROCESS_FIRST, Flag.LOCKED}:
            continue
        if _is_apart(fact) or LOCAL_PLACE.matches(program.text(fact.site)):
            continue
        reported.add(reach)
        guards = [guard.site for guard in fact.guards if guard.who == "local-zero"]
        inside = [] if reach is fact.site else [place(fact.site, "it is written here")]
        yield propose(
            program,
            fact.moved(reach),
            WARNING if program.several_nodes or _is_for_several_nodes(program, guards) else INFO,
            f"on several nodes the first rank of each writes this checkpoint (`{fact.name}`) to the same path; guard "
            "it with the global rank",
            evidence=[
                *(place(site, "passes once on each node") for site in guards),
                *inside,
                *([program.several_nodes] if program.several_nodes else []),
            ],
        )


def _is_for_several_nodes(program: Program, guards: list[Site]) -> bool:
    """Whether the script is meant for more than one node, and its guard does not choose one rank of each on purpose."""
    texts = [program.text(site) for site in guards]
    if not all(map(OF_NODE.matches, texts)):
        return False  # such as `rank % devices == 0`, or a function of the script's own: it may mean more than a node
    return any(map(LOCAL_MAIN.matches, texts)) or program.mentions(mentions.SEVERAL_NODES)


def _is_of_one_node(program: Program) -> bool:
    """Whether the script runs on one node only: its world is the devices of this one, or all that starts it says so."""
    if program.one_node:
        return True
    for fact in program.facts(facts.ProcessGroup):
        world = bare(fact.world_size)
        if any(isinstance(atom, WorldSize) and atom.local for atom in world):
            return True
        if any(isinstance(atom, Rank) and atom.scope in ("local", "spawn") for atom in bare(fact.rank)):
            return True
    return program.mentions(mentions.EACH_NODE)


def _holds_state(fact: facts.Save) -> bool:
    """Whether what is written is the state of a model or an optimizer, rather than arguments or a cache of features."""
    held = fact.object
    for part in (*bare(held), *reaching(held), *contents(held)):
        if isinstance(part, (Instance, State, Shell)):
            return True
        if isinstance(part, Opaque) and TRAINED_STATE.matches(part.name):
            return True
    return not held and fact.name != "save"


def _is_apart(fact: facts.Save) -> bool:
    """Whether the path differs between nodes, or lies on one of them."""
    path = fact.path
    if hangs_on_rank(path):
        return True
    if any(isinstance(atom, File) for atom in bare(path)):
        return True  # an open handle: opening it was the write
    for part in (*bare(path), *reaching(path)):
        if isinstance(part, (Buffer, Unique)):
            return True
        name = part.value if isinstance(part, Const) else part.name if isinstance(part, Opaque) else ""
        if isinstance(name, str) and (name.startswith(_OF_THE_NODE) or HOSTNAME.matches(name)):
            return True
    return False


def observe(run: Run) -> Seen:
    """With one rank a node this cannot be told from a save on every rank, which DDP502 reports."""
    if int(run.plan.get("nnodes", 1)) < 2:
        return
    yield from by_one(run)
    if int(run.plan.get("nproc_per_node", 1)) < 2:
        return
    for path, writes in writers(run).items():
        ranks = sorted({rank for rank, _ in writes})
        if len(ranks) > 1 and one_a_node(run, ranks) and is_of_script(writes[0][1]):
            message = f"ranks {', '.join(map(str, ranks))}, the first of each node, write `{path}`: nodes share a disk"
            yield Observation(WARNING, writes[0][1].site, message, (), tuple(ranks))
        else:
            yield Well()
