"""Stopping when asked: SIGTERM, SIGUSR1 or Ctrl-C ends the run at a step that all ranks agree on, after a checkpoint.

The handler notes the signal, no more; each step begins an all-reduce of it on the CPU and reads it at its end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import types

import torch
import torch.distributed as dist
from torch import Tensor

from .launch import World, set_timeout
from .rendezvous import apart

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
AGAIN = 1.0  # Seconds after which a signal is another one: a launcher may pass on what the terminal has sent to all.


class Stop:
    """Context manager around training; within it the signals do not end the process. Making one is collective."""

    def __init__(self, world: World, *, timeout: float) -> None:
        self.world = world
        self.received: signal.Signals | None = None
        """What this rank was sent. Others may not know of it yet: nothing collective may depend on it."""
        self._since = 0.0
        self._before: dict[signal.Signals, object] = {}
        self._answer: Tensor | None = None
        """The greatest number of a signal that any rank was sent; on its way until ``_work`` is done."""
        self._work: dist.Work | None = None
        self._apart = apart(world, timeout)

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # elsewhere no handler can be set
            # A job that was started to ignore Ctrl-C, in the background of a script, goes on to.
            deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            self._before = {each: signal.signal(each, self._note) for each in STOP_SIGNALS[: 2 if deaf else 3]}
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """The signals end processes again: on all ranks at once, for one may still be saving. Collective."""
        if kind is None:
            self.agree()
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
        self._before.clear()

    def begin_step(self) -> None:
        """Starts asking all ranks. Collective: every rank, before each step; does not wait."""
        self._answer = torch.tensor([self.received or 0])
        if self._apart.group is not None:
            self._work = dist.all_reduce(self._answer, dist.ReduceOp.MAX, self._apart.group, async_op=True)

    def end_step(self) -> signal.Signals | None:
        """What all ranks stop for, if any was sent a signal before ``begin_step``. Collective: every rank."""
        assert self._answer is not None, "end_step without begin_step"
        if self._work is not None:
            self._work.wait()
        number, self._answer, self._work = int(self._answer), None, None
        return signal.Signals(number) if number else None

    def agree(self) -> signal.Signals | None:
        """The same, now: after something longer than a step, such as an evaluation. Collective: every rank."""
        self.begin_step()
        return self.end_step()

    def set_timeout(self, seconds: float) -> None:
        """Seconds for which a rank waits for the others' answer from now on. Local, but for all ranks."""
        set_timeout(self._apart, seconds)

    def _note(self, number: int, _: types.FrameType | None) -> None:
        now, known = time.monotonic(), self.received or number
        again, self.received = self.received is not None, signal.Signals(known)
        self._since = self._since if again else now
        # A second Ctrl-C; torchrun makes SIGTERM of it.
        at_once = number != signal.SIGUSR1 and signal.SIGINT in (number, known) and now - self._since > AGAIN
        text = "will stop after a checkpoint, when all ranks have agreed on a step"
        text += "; once more ends at once" * (number == signal.SIGINT)
        text = "ends at once, unsaved" if at_once else "is stopping already" if again else text
        # Past the lock of sys.stderr: the handler may have interrupted who has it.
        os.write(2, f"rank {self.world.rank}: {signal.Signals(number).name}: {text}\n".encode())
        if at_once:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def ignore(*_: object) -> None:
    """From here on the signals do nothing: in a program that ends because of one of them, and in loader workers, which
    outlive what a launcher sends to all processes. Local."""
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
