"""What checkpoints cost: a save beside writing the same bytes; training with a save every 50 steps beside none; and how
long training stands still for a save, waited for or in the background (`--stands 400`: of 400 MB, that alone).

Usage: python ci/bench/checkpoint.py [--folder DIR] [--megabytes 64] [--rounds 7] [--steps 300]; needs the `trainer`
extra. The saves and the plain writes take turns on the same file system; so do blocks of training. Medians, with the
quartiles of the ratio in each round. A save serialises, hashes, writes, syncs each file and the folder, and renames;
the plain write gives the same bytes to one file and syncs it. On a busy machine the least of each tells
more than the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "checks")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

from reference_trainer.checkpoint import RunCheckpoints  # noqa: E402
from reference_trainer.checkpoint.directory import latest  # noqa: E402
from reference_trainer.config import CheckpointConfig, Config, EmaConfig  # noqa: E402
from reference_trainer.core.objective import Batch, Forward, Loss, Objective  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

SAVE_EVERY = 50


class Large(Objective):
    """One layer of a given size, to have something to save."""

    def __init__(self, megabytes: float) -> None:
        self.module = nn.Linear(1024, max(1, int(megabytes * 1e6 / 4096)), bias=False)

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        return Loss(forward(torch.ones(1, 1024)).sum() * len(batch), {}, {})


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plain_write(path: Path, content: bytes) -> None:
    """The same bytes, as plainly as it can be done durably."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def saves(folder: Path, megabytes: float, rounds: int) -> tuple[int, list[float], list[float]]:
    """Bytes of a checkpoint, seconds of each save and of each plain write of as many bytes."""
    config = Config(steps=rounds + 2, global_batch=1, checkpoint=CheckpointConfig(keep=1))
    trainer = Trainer(config, World(), objective=Large(megabytes))
    ours, plain, content = [], [], b""
    with RunCheckpoints(folder / "run", config, trainer.plan, World()) as checkpoints:
        for _ in trainer.steps():
            took = seconds(lambda: checkpoints.save(trainer.state))
            path = latest(folder / "run")
            assert path is not None
            content = content or b"".join(file.read_bytes() for file in sorted(path.iterdir()))
            wrote = seconds(partial(plain_write, folder / "plain", content))
            if trainer.state.step > 2:  # the first ones also grow the process
                ours.append(took)
                plain.append(wrote)
    return len(content), ours, plain


def standing(folder: Path, megabytes: float, rounds: int) -> dict[str, list[float]]:
    """Seconds for which training stands still for a checkpoint of that size, Adam's two thirds included."""
    config = Config(steps=2 * rounds + 3, global_batch=1, checkpoint=CheckpointConfig(keep=1))
    trainer, found = Trainer(config, World(), objective=Large(megabytes / 3)), dict[str, list[float]]()
    with RunCheckpoints(folder / "run", config, trainer.plan, World()) as checkpoints:
        for _ in trainer.steps():
            wait, save = bool(trainer.state.step % 2), partial(checkpoints.save, trainer.state)
            took = seconds(partial(save, wait=wait))
            # What a small computation loses while the files are written: the GIL, the cores.
            pieces, usual = [], statistics.median(small() for _ in range(200))
            while checkpoints._writing is not None and not checkpoints._writing.done():
                pieces.append(small())
            if trainer.state.step > 2:
                found.setdefault("waited for" if wait else "in the background: copied in", []).append(took)
                if not wait:
                    stalls = [each - usual for each in pieces if each > 10 * usual]
                    found.setdefault("in the background: stalls, in sum", []).append(sum(stalls))
                    found.setdefault("in the background: longest stall", []).append(max(stalls, default=0.0))
                    found.setdefault("in the background: written in", []).append(sum(pieces))
    return found


def small() -> float:
    """Seconds of a computation of well under a millisecond."""
    x = torch.ones(64, 64)
    return seconds(lambda: x @ x)


def training(folder: Path, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of ``steps`` steps on the digits with a save every 50, and without any; one of each a round."""
    config = Config(steps=2 * steps * (rounds + 1), ema=EmaConfig(decay=0.99), checkpoint=CheckpointConfig(keep=2))
    trainer = Trainer(config, World())
    stream, with_, without = trainer.steps(), [], []
    with RunCheckpoints(folder / "digits", config, trainer.plan, World()) as checkpoints:

        def block(saving: bool) -> None:
            for done in range(1, steps + 1):
                next(stream)
                if saving and done % SAVE_EVERY == 0:
                    checkpoints.save(trainer.state)

        for number in range(rounds + 1):
            order = (True, False) if number % 2 else (False, True)
            times = {saving: seconds(partial(block, saving)) for saving in order}
            if number:
                with_.append(times[True])
                without.append(times[False])
    return with_, without


def told(name: str, ours: Sequence[float], other: Sequence[float], unit: str) -> str:
    """A line of the table."""
    ratios = [a / b for a, b in zip(ours, other, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (
        f"{name:<34}{statistics.median(ours) * 1e3:>10.1f}{statistics.median(other) * 1e3:>10.1f}  {unit:<4}"
        f"{middle:>8.2f}  ({low:.2f} to {high:.2f})  {min(ours) * 1e3:.1f} | {min(other) * 1e3:.1f}"
    )


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="on the file system to measure; default: temporary")
    parser.add_argument("--megabytes", type=float, nargs="*", default=[0.2, 16, 64], help="of weights; Adam adds two")
    parser.add_argument("--stands", type=float, help="megabytes of a checkpoint: only how long training stands still")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    if options.stands:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for name, took in standing(Path(folder), options.stands, options.rounds).items():
                print(f"{options.stands:g} MB, {name:<36}{statistics.median(took):>7.3f} s  (least {min(took):.3f})")
        return 0
    print(f"{'':<34}{'with':>10}{'plain':>10}  {'':<4}{'ratio':>8}  (quartiles)  least of each")
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            size, ours, plain = saves(Path(folder), megabytes, options.rounds)
        print(told(f"a save of {size / 1e6:.1f} MB | same bytes", ours, plain, "ms"), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        with_, without = training(Path(folder), options.rounds, options.steps)
    print(told(f"{options.steps} steps, a save every {SAVE_EVERY} | none", with_, without, "ms"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
