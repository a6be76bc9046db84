"""Every rank is seeded alike and then draws the same noise, time steps or augmentations.

## What it does
Looks for a PyTorch seed that is the same on every rank, in a script whose training step draws random tensors, or whose
samples are augmented at random, from the generators that were seeded so. Where the data set is out of sight, its name
or two of its parameters must say that it augments (`flip=`, `random_crop=`); on one parameter alone, this is advice.
Also looks for workers of a DataLoader that seed themselves with their own number and no rank, and for a generator of
the script's own that has one seed on all ranks and draws noise for batches, or gives a loader's workers their seeds.

## Why is this bad?
The ranks hold different samples but the same random numbers: with eight ranks, a diffusion model sees an eighth of the
noise and time steps that the batch size promises, and eight samples are cropped and flipped alike. Workers of a
DataLoader are seeded from the main process's generator, so they repeat each other too. Nothing fails; the
gradient's noise is larger than the batch size says.

To seed alike before the model is built is right. What is missing is a second seed, with the rank, before training.
Where the seed hangs on an option which is off by default, this is advice.

## Example
```python
torch.manual_seed(seed)
model = DDP(build_model())
for x in loader:
    noise = torch.randn_like(x)
```

## Use instead
```python
torch.manual_seed(seed)
model = DDP(build_model())
torch.manual_seed(seed + dist.get_rank())
for x in loader:
    noise = torch.randn_like(x)
```
With Accelerate: `set_seed(seed, device_specific=True)`.

## References
- [Reproducibility: DataLoader](https://docs.pytorch.org/docs/stable/notes/randomness.html#dataloader)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Place, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import RNG
from validate_ddp.interpreter.values import bare, reaching
from validate_ddp.record.draws import drawn_by_all, same_batches, seed_before
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Note, Observation, Seen, Well
from validate_ddp.rules import augmenting, together
from validate_ddp.rules.proposing import place, propose
from validate_ddp.rules.seeding import (
    asked_for,
    draws_in_steps,
    is_default,
    is_of_all,
    is_of_ranks,
    surely_runs,
)

TRIGGER = facts.Seed
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"

HEAD = """
    import random

    class Data(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.ones(1)

    class Cropped(Data):
        def __getitem__(self, index):
            shift = random.randint(0, 4)
            return torch.ones(8)[shift : shift + 1]

    def loader_of(data):
        return DataLoader(data, sampler=DistributedSampler(data, shuffle=False))

    def train(loader):
        model = DDP(torch.nn.Linear(1, 1))
        for batch in loader:
            model(batch).sum().backward()

    def train_with_noise(loader, generator=None):
        model = DDP(torch.nn.Linear(1, 1))
        for batch in loader:
            noise = torch.randn(batch.shape, generator=generator)
            model(batch + noise).sum().backward()

    dist.init_process_group("gloo")
"""
VALID = (
    """
    torch.manual_seed(0)
    train(loader_of(Data()))
    """,
    """
    torch.manual_seed(0 + dist.get_rank())
    train_with_noise(loader_of(Data()))
    """,
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    torch.manual_seed(1000 + dist.get_rank())
    train_with_noise(loader_of(Cropped()))
    """,
    """
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(dist.get_rank())
    train_with_noise(loader_of(Data()), generator)
    """,
    """
    def seed_worker(worker):
        random.seed(1000 * dist.get_rank() + worker)

    torch.manual_seed(0)
    data = Cropped()
    train(DataLoader(data, sampler=DistributedSampler(data, shuffle=False), worker_init_fn=seed_worker, num_workers=2))
    """,
    """
    from accelerate.utils import set_seed

    set_seed(0, device_specific=True)
    train_with_noise(loader_of(Data()))
    """,
    """
    # What is put together is a number to be logged: the ranks train models of their own.
    def train_apart(model, loader):
        for batch in loader:
            loss = model(batch).sum()
            loss.backward()
            dist.all_reduce(loss.data)

    torch.manual_seed(0)
    train_apart(nn.Linear(1, 1), loader_of(Cropped()))
    """,
    """
    torch.manual_seed(0)
    order = torch.randperm(8)
    model = DDP(torch.nn.Linear(1, 1))
    for step in range(8):
        if torch.rand(1) < 0.5:
            model(torch.ones(1, 1)).sum().backward()
    with torch.no_grad():
        for step in range(2):
            model(torch.randn(4, 1))
    """,
    """
    # alone
    import lightning
    import random

    class Cropped(Dataset):
        def __getitem__(self, index):
            return torch.ones(1) * random.random()

    class Net(lightning.LightningModule):
        def training_step(self, batch, index):
            return batch.sum()

    lightning.seed_everything(7, workers=True)
    lightning.Trainer(strategy="ddp", devices=4).fit(Net(), DataLoader(Cropped()))
    """,
)
INVALID = (
    """
    torch.manual_seed(0)  # expect
    train_with_noise(loader_of(Data()))
    """,
    """
    def show(model):
        torch.manual_seed(7)
        return model(torch.randn(1, 1))

    torch.manual_seed(0)  # expect
    model = DDP(torch.nn.Linear(1, 1))
    for batch in loader_of(Data()):
        model(batch + torch.randn(batch.shape)).sum().backward()
        if dist.get_rank() == 0:
            show(model.module)
    """,
    """
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    torch.manual_seed(0)  # expect
    model = DDP(Noisy())
    for batch in loader_of(Data()):
        model(batch).sum().backward()
    """,
    """
    torch.manual_seed(dist.get_rank())
    model, loader = DDP(torch.nn.Linear(1, 1)), loader_of(Cropped())
    for epoch in range(2):
        torch.manual_seed(42 + epoch)  # expect
        for batch in loader:
            model(batch).sum().backward()
    """,
    """
    import numpy

    def fix_random_seeds(seed=31):
        torch.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)
        numpy.random.seed(seed)

    def main(args):
        fix_random_seeds(args.seed)  # expect
        train(loader_of(Cropped()))

    if __name__ == "__main__":
        main(argparse.ArgumentParser().parse_args())
    """,
    """
    from torchvision import transforms

    class Pictures(Data):
        def __init__(self, transform):
            self.transform = transform

    torch.manual_seed(42)  # expect
    train(loader_of(Pictures(transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()]))))
    """,
    """
    from pictures import Pictures

    torch.manual_seed(0)  # expect
    train(loader_of(Pictures("train", random_crop=224, flip=True)))
    """,
    """
    def seed_worker(worker):
        random.seed(1234 + worker)  # expect

    torch.manual_seed(dist.get_rank())
    data = Cropped()
    train(DataLoader(data, sampler=DistributedSampler(data, shuffle=False), worker_init_fn=seed_worker, num_workers=2))
    """,
    """
    # alone
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    accelerator = Accelerator()
    set_seed(7)  # expect
    model = accelerator.prepare(torch.nn.Linear(4, 4))
    for step in range(10):
        steps = torch.randint(0, 1000, (16,))
        accelerator.backward(model(torch.ones(16, 4) * steps[:, None]).sum())
    """,
    """
    # alone
    from accelerate import Accelerator

    def train(accelerator, model, log):
        for step in range(10):
            noise = torch.randn(16, 4)
            accelerator.backward(model(noise).sum())

    torch.manual_seed(7)  # expect
    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(4, 4))
    if accelerator.is_main_process:
        train(accelerator, model, open("log.txt", "w"))
    else:
        train(accelerator, model, None)
    """,
    """
    # alone
    import lightning

    class Denoiser(lightning.LightningModule):
        def training_step(self, batch, index):
            return (batch - torch.randn_like(batch)).sum()

    lightning.seed_everything(7)  # expect
    lightning.Trainer(strategy="ddp", devices=4).fit(Denoiser(), DataLoader(Data()))
    """,
    """
    def train_by_hand(model, loader):
        for batch in loader:
            model(batch).sum().backward()
            for parameter in model.parameters():
                grads = [torch.zeros_like(parameter.grad) for _ in range(dist.get_world_size())]
                dist.all_gather(grads, parameter.grad)

    torch.manual_seed(0)  # expect
    train_by_hand(nn.Linear(1, 1), loader_of(Cropped()))
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding, at a seed that all ranks share; another at that of a loader, whose workers no other seed reaches."""
    if not _trains_on_many(program):
        return
    found = [find(program) for find in (_of_processes, _of_generators, _of_workers)]
    first = next((row for row in found if row[0] is not None), _NOTHING)
    for fact, evidence, severity, what in (first, (*augmenting.seed_of_loader(program), WARNING, _GIVEN)):
        if fact is not None:
            yield propose(
                program,
                fact,
                severity,
                f"every rank has this seed, so the {what} are the same on all of them; {_CURES[what]}",
                evidence=evidence,
            )


_NOISE, _CHANGES = "random tensors of a training step", "random augmentations"
_OWN, _WORKERS = "random tensors drawn from this generator", "random numbers of its workers"
_GIVEN = "random numbers of the workers that a loader seeds from this generator"
_CURES = dict.fromkeys((_NOISE, _CHANGES), "seed again with the rank before training")
_CURES |= dict.fromkeys((_OWN, _WORKERS, _GIVEN), "add the rank to it")
_Found = tuple[Fact | None, list[Place], str, str]
_NOTHING: _Found = (None, [], INFO, _NOISE)


def _of_processes(program: Program) -> _Found:
    """The last seed of the ranks before they draw, what they draw after it, a severity, and what to call it."""
    seeds = [
        fact
        for fact in program.facts(facts.Seed)
        if fact.library not in ("random", "numpy", "generator") and Flag.WORKER not in fact.flags
    ]
    backwards = program.facts(facts.Backward)
    steps = {fact.loops[-1].serial for fact in backwards if fact.loops}
    drawn = draws_in_steps(program)
    end = drawn[0].order if drawn else backwards[-1].order
    seeds = seeds[max((at for at, fact in enumerate(seeds) if fact.order < end and surely_runs(fact)), default=0) :]
    if not seeds or not all(is_of_all(fact) for fact in seeds):
        return _NOTHING
    running = [
        fact for fact in seeds if fact.who == "all" and is_of_ranks(program, fact) and fact.library != "torch.cuda"
    ]
    if any(loop.serial in steps for fact in running for loop in fact.loops):
        return _NOTHING  # a step that seeds itself means to be repeated
    apart = any(map(augmenting.sets_workers_apart, seeds))
    augmented = augmenting.Augmentation([]) if drawn or apart else augmenting.augmentations(program)
    before = [fact for fact in running if fact.order < end]
    evidence = [place(fact.site, "drawn here") for fact in drawn] or augmented.places
    if not before or not evidence:
        return _NOTHING
    usual = [fact for fact in before if not fact.hangs_on_unknown or is_default(program, fact)]
    severity = WARNING if augmented.sure and usual else INFO
    return asked_for((usual or before)[-1]), evidence[:2], severity, _NOISE if drawn else _CHANGES


def _of_generators(program: Program) -> _Found:
    """A generator of the script's own with one seed on all ranks, from which a step draws noise for its batch.

    What is not of a batch's size may be meant to be equal: a resolution for this step, a random projection.
    """
    for fact in draws_in_steps(program, own=True):
        made = [part for part in reaching(fact.generator) if isinstance(part, RNG)]
        if len(made) == 1 and fact.sized and augmenting.is_alike(made[0].seed):
            site = bare(made[0].at)[0].site
            optional = fact.hangs_on_unknown
            return fact.moved(site), [place(fact.site, "drawn here")], INFO if optional else WARNING, _OWN
    return _NOTHING


def _of_workers(program: Program) -> _Found:
    """The first seed of a loader's workers, where it hangs on the worker's number alone: never right on two ranks."""
    seeds = augmenting.seeds_of_workers(program)
    if not seeds:
        return _NOTHING
    return seeds[0], [place(seeds[0].chain[-1], "the workers of this loader start with it")], WARNING, _WORKERS


def _trains_on_many(program: Program) -> bool:
    if not program.complete or not program.is_distributed or not program.facts(facts.Backward):
        return False
    return together.is_training(program)


def observe(run: Run) -> Seen:
    """Compares the first draws of each place, among draws from the generator that all share."""
    yield from same_batches(run)
    drawn = drawn_by_all(run)
    equal = [draws[0] for draws in drawn if len({draw.digest for draw in draws}) == 1]
    if not equal:
        yield from (Well() for _ in drawn)
        return
    draw, seed = equal[0], seed_before(run, equal[0])
    message = f"every rank draws the same numbers in `{draw.function}` while it trains" + (
        f": all are seeded with {seed.value} here, so the noise is not new on each rank" if seed else ""
    )
    site = seed.site if seed else draw.site
    notes = (Note(draw.site, f"the draw, equal on {len(run.replicas)} ranks"),) if seed else ()
    yield Observation(WARNING, site, message, notes, tuple(run.replicas))
