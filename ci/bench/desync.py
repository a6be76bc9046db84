"""The desync matrix: thirteen ways in which ranks call collectives that do not match, and what a rehearsal says.

    python -m ci.bench.desync [--part K/N] [CASE ...]

Each case is a script of two ranks. Printed are the codes and lines found, how the run ended, and for runs that hung
the seconds from the last call of a rank to the verdict; beside it what the same script does under plain gloo, and with
TORCH_DISTRIBUTED_DEBUG=DETAIL. After them come right scripts in which rank 0 is slow, which must be left alone. Needs
torch. Exit code 1: a case was not flagged, a line that it marks is not named, or a right script is accused.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.log import read

from ci.bench.rehearsals import rehearse

HEAD = """import sys, time
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.ones(4)
dist.all_reduce(torch.ones(1))
"""
TAIL = "\ndist.barrier()\ndist.destroy_process_group()\n"
UNEVEN = """model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.ones(8 + 4 * rank, 4), batch_size=4)
for batch in loader:
    model(batch).sum().backward()  # here
    optimizer.step()
"""
IF = "if rank == 0:\n    {}  # here\nelse:\n    {}  # here\n"
CASES = {
    "op: all_reduce, barrier": IF.format("dist.all_reduce(x)", "dist.barrier()"),
    "op: all_reduce, broadcast": IF.format("dist.all_reduce(x)", "dist.broadcast(x, src=0)"),
    "op: all_gather, all_reduce": IF.format("dist.all_gather([x, x.clone()], x)", "dist.all_reduce(x)"),
    "shape: all_reduce 4, 6": IF.format("dist.all_reduce(x)", "dist.all_reduce(torch.ones(6))"),
    "shape: all_reduce 4, 400000": IF.format("dist.all_reduce(x)", "dist.all_reduce(torch.ones(400000))"),
    "shape: broadcast 4, 6": IF.format("dist.broadcast(x, src=0)", "dist.broadcast(torch.ones(6), src=0)"),
    "dtype: float32, int32": IF.format("dist.all_reduce(x)", "dist.all_reduce(x.int())"),
    "ReduceOp: SUM, MAX": IF.format("dist.all_reduce(x)", "dist.all_reduce(x, op=dist.ReduceOp.MAX)"),
    "order: swapped": (
        "def first(t):\n    dist.all_reduce(t)  # here\ndef second(t):\n    dist.all_reduce(t)  # here\n"
        "for call in (first, second) if rank == 0 else (second, first):\n    call(x)\n"
    ),
    "root: 0, 1": IF.format("dist.broadcast(x, src=0)", "dist.broadcast(x, src=1)"),
    "extra call, peer exited": "if rank == 0:\n    dist.all_reduce(x)  # here\nelse:\n    sys.exit(0)\n",
    "extra call, peer busy": "if rank == 0:\n    dist.all_reduce(x)  # here\nelse:\n    time.sleep(600)  # here\n",
    "uneven DDP batches": UNEVEN,
}


SLOW = {
    "rank 0 evaluates": "model = nn.Linear(300, 300)\nend = time.time() + 10\nif rank == 0:\n"
    "    while time.time() < end:\n        model(torch.ones(64, 300))\n",
    "rank 0 downloads": "if rank == 0:\n    for _ in range(100):\n        time.sleep(0.1)\n",
    "rank 0 compiles": "if rank == 0:\n    import subprocess\n"
    "    subprocess.run([sys.executable, '-c', 'import time; time.sleep(10)'])\n",
}
"""Right scripts: the others wait in the barrier at the end."""
PATIENCE = 10.0
"""Seconds after which a script without a rehearsal is taken to wait for ever."""


def seconds_to_verdict(events: list[protocol.Event]) -> float | None:
    """From the last call that a rank began to the verdict; None for a run that did not hang."""
    calls = [each.time for each in events if isinstance(each, protocol.GroupCall | protocol.Exit)]
    hang = [each.time for each in events if isinstance(each, protocol.Hang)]
    return hang[0] - max(calls) if hang and calls else None


def alone(script: Path, detail: bool) -> str:
    """What the script does without a rehearsal."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    if detail:
        settings["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)], cwd=script.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, **settings, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and any(rank.poll() is None for rank in ranks):
        time.sleep(0.05)
    hung = [rank.poll() is None for rank in ranks]
    for rank in ranks:
        rank.kill()
    output = "".join(rank.communicate()[0] for rank in ranks)
    codes = [rank.returncode for rank, waits in zip(ranks, hung, strict=True) if not waits]
    if any(code < 0 for code in codes):
        return f"crash, signal {-min(codes)}"
    if any(codes):
        named = script.name in output.partition("Error: ")[2].partition("\n")[0]
        return "error" + (" with a line" if named else ", no lines")
    return "waits" if any(hung) else "silent"


def case(name: str, body: str) -> bool:
    """Rehearses one case and prints what is said of it; whether it is flagged with all lines that it marks."""
    text = HEAD + body + TAIL
    marked = {number for number, line in enumerate(text.splitlines(), 1) if "# here" in line}
    with tempfile.TemporaryDirectory() as scratch:
        script, log = Path(scratch) / "train.py", Path(scratch) / "log.jsonl"
        script.write_text(text, encoding="utf-8")
        report, code, _ = rehearse(script, Path(scratch), "--hang", "5", "--log", str(log))
        verdict = seconds_to_verdict(read(str(log)))
        plain, detail = alone(script, detail=False), alone(script, detail=True)
    errors = [each for each in report["findings"] if each["severity"] == "error"]
    lines = {each["line"] for each in errors} | {place["line"] for each in errors for place in each["evidence"]}
    good = bool(errors) and code != 0 and lines >= marked
    took = "at once " if verdict is None else f"{verdict:4.1f} s  "
    codes = ", ".join(f"{each['code']}:{each['line']}" for each in errors) or "NOTHING"
    missed = "" if lines >= marked else f" NOT NAMED {sorted(marked - lines)}"
    print(
        f"{name:28} {codes:12} lines {sorted(lines)!s:9} {took} gloo: {plain:18} DETAIL: {detail}{missed}", flush=True
    )
    if not errors:
        print(json.dumps(report["failure"], indent=2)[:600])
    return good


def left_alone(name: str, body: str) -> bool:
    """Rehearses a right script with a slow rank 0; whether nothing is said of it."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "train.py"
        script.write_text(HEAD + body + TAIL, encoding="utf-8")
        report, code, seconds = rehearse(script, Path(scratch))
    accused = [each["code"] for each in report["findings"]]
    good = code == 0 and not accused and report["outcome"] == "finished"
    print(f"{name:28} {'left alone' if good else accused or report['outcome']} after {seconds:.1f} s", flush=True)
    return good


def main(arguments: list[str]) -> int:
    """Prints a line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args(arguments)
    first, every_nth = (int(number) for number in args.part.split("/"))
    every = [(name, body, name in SLOW) for name, body in {**CASES, **SLOW}.items()]
    chosen = [each for each in every if not args.names or each[0].startswith(tuple(args.names))][first - 1 :: every_nth]
    flagged = [case(name, body) for name, body, slow in chosen if not slow]
    right = [left_alone(name, body) for name, body, slow in chosen if slow]
    print(
        f"{sum(flagged)} of {len(flagged)} flagged with their lines, {sum(right)} of {len(right)} right ones left alone"
    )
    return int(not all(flagged + right))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
