"""Starts jobs of plain processes in a moment: forks their ranks from this process, which has imported torch.

Run as a script; reads requests and writes replies on its standard streams, JSON in a line:
    {"ranks": 2, "arguments": [...], "output": "file", "deadline": 60}  ->  {"pids": [...]}, and when all is over
    {"codes": [exit code or -signal, ...], "ended": time.monotonic(), "left": whether processes had to be killed}
A job is over when the last process has gone that any of its ranks has forked: all hold a pipe, which then ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time

import job  # beside this file
import rich.console
import rich.progress
import rich.table  # noqa: F401 - imported once here instead of once a job
import torch._dynamo  # noqa: F401 - DDP imports it when it is made


def main() -> None:
    """Serves until the requests end."""
    gc.disable()
    for line in sys.stdin:
        request = json.loads(line)
        read_end, write_end = os.pipe()
        os.set_inheritable(write_end, True)
        port = free_port()
        pids = [fork(rank, request, port, read_end) for rank in range(request["ranks"])]
        os.close(write_end)
        reply({"pids": pids})
        left = wait_for_end(read_end, request["deadline"], pids)
        ended = time.monotonic()
        reply(
            {"codes": [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], "ended": ended, "left": left}
        )


def fork(rank: int, request: dict, port: int, read_end: int) -> int:
    """A rank; returns in the server only."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        os.close(read_end)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, place in ((null, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, place)
        size = str(request["ranks"])
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        gc.enable()
        job.main(*request["arguments"])
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait_for_end(read_end: int, deadline: float, pids: list[int]) -> bool:
    """Whether some process outlived the deadline; then all are killed."""
    over, _, _ = select.select([read_end], [], [], deadline)
    os.close(read_end)
    if not over:
        for pid in pids:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    return not over


def free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return listener.getsockname()[1]


def reply(answer: dict) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
