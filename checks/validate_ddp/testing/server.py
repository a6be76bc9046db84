"""The parent's side of the forkserver: starts it, asks it for worlds, hears of deaths, and ends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from .capture import Files, make_files
from .transport import Channel, Closed, pair, wait_readable

START_LIMIT = 120.0
"""Seconds for the import of torch, on a cold disk."""

CLOSE_GRACE = 5.0
"""Seconds for ranks to end by themselves, with their coverage written. All of it passes only where one hangs."""


class ForkserverError(RuntimeError):
    """The forkserver could not start, or has died."""


class ForkserverLost(ForkserverError):
    """It ran, and has ended: another one can be started."""


class Forkserver:
    """A running forkserver. Starting returns at once; ``wait_until_ready`` waits for its import of torch."""

    def __init__(self, pytest_options: dict[str, Any] | None = None) -> None:
        self.channel, theirs = pair()
        self.rewritten_code = ""
        if pytest_options is not None and sys.dont_write_bytecode:
            self.rewritten_code = tempfile.mkdtemp(prefix="validate-ddp-")
            pytest_options = {**pytest_options, "rewritten_code": self.rewritten_code}
        # `-c` puts the working directory first, where a file may be named as one of ours or of Python's.
        ours = "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
        start = f"start({theirs.fileno()}, {self.rewritten_code!r})"
        code = f"{ours}from validate_ddp.testing.forkserver import start; {start}"
        environment = dict(os.environ)
        # The checkout or folder from which we were imported, whatever put it on our path.
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [here, environment.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code],  # type: ignore[attr-defined]
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        theirs.close()
        self.port = 0
        self.broken = ""
        """Why it could not start."""
        self.exit_codes: dict[int, int] = {}
        self.pids: dict[int, dict[int, int]] = {}
        """Of all worlds, by rank."""
        try:
            self.channel.send((sys.path, pytest_options))
        except Closed:
            pass  # told by wait_until_ready

    def wait_until_ready(self) -> None:
        """Raises ``ForkserverError`` where it cannot serve."""
        while not self.port:
            if self.broken:
                raise ForkserverError(self.broken)
            if not wait_readable([self.channel], START_LIMIT):
                raise ForkserverError(f"the forkserver did not start within {START_LIMIT:.0f} s")
            self.listen()

    def listen(self) -> None:
        """Takes in what the forkserver has said; call it when its channel is readable."""
        try:
            self.channel.pump()
        except Closed:
            lost = ForkserverLost if self.port else ForkserverError
            raise lost(f"the forkserver has died (exit code {self.process.poll()})") from None
        while self.channel.has_message():
            message = self.channel.pop()
            if message[0] == "broken":
                self.broken = _explained(message[1])
                raise ForkserverError(self.broken)
            if message[0] == "lost":
                raise ForkserverLost(message[1])
            if message[0] == "store":
                self.port = message[1]
            elif message[0] == "spawned":
                _, world, rank, pid = message
                self.pids.setdefault(world, {})[rank] = pid
            elif message[0] == "died":
                self.exit_codes[message[1]] = message[2]

    def spawn(self, world: int, size: int) -> tuple[list[Channel], list[Channel], list[Files]]:
        """Asks for a world; channels for jobs and for probes, and files, by rank. The pids come with ``listen``."""
        jobs: list[Channel] = []
        probes: list[Channel] = []
        files: list[Files] = []
        for rank in range(size):
            job, job_end = pair()
            probe, probe_end = pair()
            jobs.append(job)
            probes.append(probe)
            files.append(make_files())
            # A message for each rank: the number of descriptors in one is limited.
            descriptors = [job_end.fileno(), probe_end.fileno(), *files[-1].all()]
            try:
                self.channel.send(("spawn", world, rank, size), descriptors)
            except Closed:
                raise ForkserverLost("the forkserver has died") from None
            finally:
                job_end.close()
                probe_end.close()
        return jobs, probes, files

    def kill(self, world: int) -> None:
        """Kills the ranks of a world with all that they have started; does not wait."""
        try:
            self.channel.send(("kill", world))
        except Closed:
            pass

    def close(self, grace: float = CLOSE_GRACE) -> None:
        """Waits up to ``grace`` seconds for ranks that were told to end, then ends everything."""
        try:
            self.channel.send(("close", grace))
        except Closed:
            pass
        try:
            self.process.wait(grace + 5)
        except subprocess.TimeoutExpired:
            pass
        self.channel.close()  # reads as our death: it kills its ranks
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()  # and the kernel kills the ranks
            self.process.wait()
        if self.rewritten_code:
            shutil.rmtree(self.rewritten_code, ignore_errors=True)


def _explained(text: str) -> str:
    last = text.strip().splitlines()[-1]
    if "No module named 'torch'" in last:
        return "tests on ranks need torch: pip install 'validate-ddp[runtime]'"
    return f"the forkserver could not start: {last}\n{text}"
