"""What is seen of a run beside its steps: exact evaluation, pictures, a profile of some steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import profile

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
    epoch: int = 0,
    step: int = 0,
    interrupted: Callable[[], bool] = lambda: False,
    together: bool = False,
) -> dict[str, float]:
    """Means of the objective's metrics over ``source``, the same on all ranks, each sample once. Collective.

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
            batch = Batch(index, epoch, step, source.fetch(index, epoch)).to(world.device, precision.weights)
            for name, value in objective.evaluate(forward, batch).items():
                sums[name] = sums[name] + value if name in sums else value
            seen += len(index)
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
    return f"picture: {path}" if path else ""


def grid(images: Tensor, *, columns: int, scale: int = 6) -> Tensor:
    """Images (n, h, w), row by row, as one (H, W) with a margin between them; each pixel ``scale`` times as large."""
    large = images.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
    padded = F.pad(large, (scale, 0, scale, 0), value=0.5)
    rows = [torch.cat(list(row), dim=1) for row in padded.split(columns)]
    return F.pad(torch.cat(rows, dim=0), (0, scale, 0, scale), value=0.5)


def write_png(image: Tensor, path: Path) -> Path:
    """Writes a gray image, (h, w) in [0, 1], at once: who looks finds a whole file. ``OSError``. Rank zero only."""
    from PIL import Image

    levels = (image.detach().float().clamp(0, 1) * 255).round().to("cpu", torch.uint8)
    replace(path, lambda beside: Image.fromarray(levels.numpy()).save(beside, format="PNG"))
    return path


class ProfileWindow:
    """Profiles steps ``start`` to ``start + steps`` of a run, to FOLDER/rank00000.json (ui.perfetto.dev). Local.

    tell: gets the table, on rank zero. done: optimizer steps that the run has behind it when it begins here.
    """

    def __init__(
        self, config: ProfileConfig, folder: Path, world: World, *, tell: Callable[[str], None], done: int = 0
    ) -> None:
        self.window = range(config.start, config.start + config.steps)
        self.path, self.world, self.tell, self.done = folder / f"rank{world.rank:05}.json", world, tell, done
        self._profile: profile | None = None

    def __enter__(self) -> ProfileWindow:
        self.after(self.done)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:  # a run that ends within the window has a trace all the same, if it ends well
            self.after(self.window.stop)

    def after(self, step: int) -> None:
        """To be told how many optimizer steps are done, after each. Local."""
        if self._profile is None and step in self.window:
            self._profile = profile()  # of the GPU too, where there is one
            self._profile.start()
        elif self._profile is not None and step not in self.window:
            self._close(self._profile)

    def _close(self, running: profile) -> None:
        self._profile, device = None, self.world.device.type
        if device == "cuda":
            torch.cuda.synchronize(self.world.device)  # what was queued within the window belongs to it
        running.stop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        running.export_chrome_trace(str(self.path))
        if self.world.is_main:
            dearest = running.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=10)
            self.tell(f"profile of rank 0, all of it in {self.path}:\n{dearest}")
