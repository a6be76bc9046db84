"""A look at some steps with torch.profiler: where their time goes, a trace a rank, a table of the ten dearest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile

from .config import ProfileConfig
from .launch import World

__all__ = ["ProfileWindow"]

_ROWS = 10


class ProfileWindow:
    """Profiles steps ``start`` to ``start + steps`` of a run, and what happens between them; a context around it.

    Local: each rank writes FOLDER/rank00000.json, to be opened in ui.perfetto.dev or chrome://tracing. tell: gets the
    table, on rank zero. done: optimizer steps that the run has behind it when it begins here.
    """

    def __init__(
        self, config: ProfileConfig, folder: Path, world: World, *, tell: Callable[[str], None], done: int = 0
    ) -> None:
        self.window = range(config.start, config.start + config.steps)
        self.path = folder / f"rank{world.rank:05}.json"
        self.world, self.tell, self.done = world, tell, done
        self._profile: profile | None = None

    def __enter__(self) -> ProfileWindow:
        self.after(self.done)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A run that ends within the window has a trace all the same, if it ends well."""
        if self._profile is not None and kind is None:
            self._close(self._profile)

    def after(self, step: int) -> None:
        """To be told how many optimizer steps are done, after each. Local."""
        if self._profile is None and step in self.window:
            activities = [ProfilerActivity.CPU]
            if self.world.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities)
            self._profile.start()
        elif self._profile is not None and step not in self.window:
            self._close(self._profile)

    def _close(self, running: profile) -> None:
        self._profile = None
        device = self.world.device.type
        if device == "cuda":
            torch.cuda.synchronize(self.world.device)  # what was queued within the window belongs to it
        running.stop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        running.export_chrome_trace(str(self.path))
        if self.world.is_main:
            dearest = running.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=_ROWS)
            self.tell(f"profile of rank 0, all of it in {self.path}:\n{dearest}")
