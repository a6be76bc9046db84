"""What is seen of a run beside its steps: exact evaluation, pictures, a profile of some steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import profile, schedule

from .config import ProfileConfig
from .core.collectives import reduce_sum_count
from .core.data import Source
from .core.objective import Batch, Objective
from .core.save import replace
from .launch import World
from .precision import FLOAT32, Precision
from .randomness import rng_state, set_rng_state
from .state import Ema


@torch.no_grad()
def evaluate(
    objective: Objective,
    source: Source,
    *,
    world: World,
    batch_size: int,
    precision: Precision = FLOAT32,
    interrupted: Callable[[], object] = lambda: False,
    together: bool = False,
) -> dict[str, float]:
    """Means of the objective's metrics over what it counts, each sample of ``source`` once. Collective: every rank.

    interrupted: asked after each batch; a rank that is leaves out the rest of its share. together: all ranks make as
    many forward passes, some on no samples.
    """
    if not len(source):
        raise ValueError("nothing to evaluate on: the source has no samples")
    module, was_training = objective.module, objective.module.training
    forward = precision.forward(module)
    module.eval()
    try:
        mine = torch.arange(len(source))[world.rank :: world.size]
        sums: dict[str, Tensor] = {}
        seen = 0
        # A batch each at least: one of no samples gives the names of the metrics.
        for start in range(0, max(1, -(-len(source) // world.size) if together else len(mine)), batch_size):
            index = mine[start : start + batch_size]
            batch = Batch(index, 0, 0, source.fetch(index, 0)).to(world.device, precision.weights)
            for name, value in objective.evaluate(forward, batch).items():
                sums[name] = sums[name] + value if name in sums else value
            seen += objective.count(batch)
            if interrupted():
                break
    finally:
        module.train(was_training)
    names = sorted(sums)
    total, of = reduce_sum_count(torch.stack([sums[name].double() for name in names]), seen, world.group)
    return dict(zip(names, (total / of).tolist(), strict=True))


def draw(objective: Objective, ema: Ema | None, folder: Path, step: int, device: torch.device) -> str:
    """Has the objective draw, with the averaged weights; returns a line on what was drawn, or "". Rank zero only."""
    module, rng = objective.module, rng_state(device)
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad(), ema.swapped(module) if ema else nullcontext():
            path = objective.draw(module, folder, step)
    except OSError as error:
        return f"no picture of step {step}: {error.filename or folder}: {error.strerror or error}"
    finally:
        module.train(was_training)
        set_rng_state(rng, device)
    return f"drawn: {path}" if path else ""


def write_grid(images: Tensor, path: Path, *, columns: int, scale: int = 6) -> Path:
    """Writes gray images (n, h, w) in [0, 1], row by row with margins, as one PNG; each pixel ``scale`` times as large.
    At once: who looks finds a whole file. ``OSError``. Rank zero only."""
    from PIL import Image

    padded = F.pad(images, (1, 0, 1, 0), value=0.5)
    whole = F.pad(torch.cat([torch.cat(list(row), 1) for row in padded.split(columns)]), (0, 1, 0, 1), value=0.5)
    levels = (whole.detach().float().clamp(0, 1) * 255).round().to("cpu", torch.uint8)
    large = levels.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    replace(path, lambda beside: Image.fromarray(large.numpy()).save(beside, format="PNG"))
    return path


@contextmanager
def profiled(
    config: ProfileConfig, folder: Path, world: World, tell: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Within, with a call after each step: profiles the window of ``config``, from here on, to FOLDER/rank00000.json
    (ui.perfetto.dev). tell: gets the table, on rank zero. Local."""
    if not config.steps:
        yield lambda: None
        return

    def write(found: profile) -> None:
        path = folder / f"rank{world.rank:05}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(path))
        if world.is_main:
            dearest = found.key_averages().table(sort_by=f"self_{world.device.type}_time_total", row_limit=10)
            tell(f"profile of rank 0, all of it in {path}:\n{dearest}")

    warmup = min(1, config.start)
    window = schedule(wait=config.start - warmup, warmup=warmup, active=config.steps, repeat=1)
    with profile(schedule=window, on_trace_ready=write) as running:  # of the GPU too, where there is one
        yield running.step
