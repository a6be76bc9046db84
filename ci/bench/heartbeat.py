"""CPU time that heartbeats add to a step: the call that each step makes, and the thread that writes.

Usage: python ci/bench/heartbeat.py [--blocks 30] [--steps 400]; needs the `trainer` extra. Blocks of steps without
heartbeats, of the same again (A/A: what the measurement itself cannot tell apart), and with a heartbeat every 20 ms,
250 times as often as by default, take turns in one process; medians over blocks of the CPU time of one step, all
threads. The cost of one heartbeat follows from it, and from that the share of a core at the default of 5 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from reference_trainer.config import LogConfig  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.monitor.records import Heartbeat  # noqa: E402

OFTEN = 0.02
"""Seconds between heartbeats in the blocks that have them."""


def training() -> Callable[[], None]:
    """A step of a small model, about a millisecond."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.rand(64, 64), torch.randint(10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def block(step: Callable[[], None], steps: int, beat: Heartbeat | None) -> tuple[float, float]:
    """CPU microseconds of a step, and seconds of the block."""
    with ExitStack() as stack:
        if beat is not None:
            beat.start()
            stack.callback(beat.end, "finished")
        cpu, begun = time.process_time(), time.perf_counter()
        for _ in range(steps):
            step()
            if beat is not None:
                beat.advance()
        return (time.process_time() - cpu) / steps * 1e6, time.perf_counter() - begun


def call(count: int = 200_000) -> float:
    """CPU microseconds of the call that each step makes."""
    beat = Heartbeat(Path(), World(), interval=0, started=0.0, total=count)
    cpu = time.process_time()
    for _ in range(count):
        beat.advance()
    return (time.process_time() - cpu) / count * 1e6


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    step = training()
    names = ["without", "without again", "with"]
    costs: dict[str, list[float]] = {name: [] for name in names}
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for place in range(options.blocks + 2):
            for name in names[place % 3 :] + names[: place % 3]:
                beat = None
                if name == "with":
                    beat = Heartbeat(Path(folder), World(), interval=OFTEN, started=0.0, total=options.steps)
                cost, took = block(step, options.steps, beat)
                if place >= 2:
                    costs[name].append(cost)
                    seconds += [took] if beat else []
    without, again, beating = (costs[name] for name in names)
    noise = statistics.median(abs(a - b) for a, b in zip(without, again, strict=True))
    above = statistics.median(c - a for a, c in zip(without, beating, strict=True))
    a_beat = above * options.steps / (statistics.median(seconds) / OFTEN)
    default = LogConfig().heartbeat
    print(
        f"CPU microseconds a step   without {statistics.median(without):.0f}   again {statistics.median(again):.0f}   "
    )
    print(f"with, every {1000 * OFTEN:.0f} ms         {statistics.median(beating):.0f}: {above:+.1f} (A/A {noise:.1f})")
    print(f"the call of each step     {call():.2f} us")
    print(
        f"one heartbeat             {a_beat:.0f} us: {100 * a_beat / 1e6 / default:.4f} % of a core every {default:g} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
