"""The desync matrix: thirteen ways in which ranks call collectives that do not match, and what a rehearsal says.

    python -m ci.bench.desync [CASE ...]

Each case is a script of two ranks. Printed are the codes and lines found, how the run ended, and for runs that hung
the seconds from the last call of a rank to the verdict. Needs torch. Exit code 1: a case was not flagged.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

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
    model(batch).sum().backward()
    optimizer.step()
"""
IF = "if rank == 0:\n    {}\nelse:\n    {}\n"
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
        "def first(t):\n    dist.all_reduce(t)\ndef second(t):\n    dist.all_reduce(t)\n"
        "for call in (first, second) if rank == 0 else (second, first):\n    call(x)\n"
    ),
    "root: 0, 1": IF.format("dist.broadcast(x, src=0)", "dist.broadcast(x, src=1)"),
    "extra call, peer exited": "if rank == 0:\n    dist.all_reduce(x)\nelse:\n    sys.exit(0)\n",
    "extra call, peer busy": "if rank == 0:\n    dist.all_reduce(x)\nelse:\n    time.sleep(600)\n",
    "uneven DDP batches": UNEVEN,
}


def seconds_to_verdict(events: list[dict[str, Any]]) -> float | None:
    """From the last call that a rank began to the verdict; None for a run that did not hang."""
    calls = [each["time"] for each in events if each["event"] in ("collective", "forward", "backward", "exit")]
    hang = [each["time"] for each in events if each["event"] == "hang"]
    return hang[0] - max(calls) if hang and calls else None


def main(names: list[str]) -> int:
    """Prints a line a case."""
    flagged = 0
    chosen = {name: body for name, body in CASES.items() if not names or any(name.startswith(each) for each in names)}
    for name, body in chosen.items():
        with tempfile.TemporaryDirectory() as scratch:
            script, log = Path(scratch) / "train.py", Path(scratch) / "log.jsonl"
            script.write_text(HEAD + body + TAIL, encoding="utf-8")
            report, code, _ = rehearse(script, Path(scratch), "--hang", "5", "--log", str(log))
            verdict = seconds_to_verdict(read(str(log)))
        errors = [each for each in report["findings"] if each["severity"] == "error"]
        lines = {each["line"] for each in errors} | {place["line"] for each in errors for place in each["evidence"]}
        good = bool(errors) and code != 0
        flagged += good
        took = "" if verdict is None else f"verdict after {verdict:4.1f} s"
        codes = ", ".join(f"{each['code']}:{each['line']}" for each in errors) or "NOTHING"
        print(f"{name:30} exit {code} {report['outcome']:9} {codes:24} lines {sorted(lines)} {took}", flush=True)
        for row in report["positions"]:
            if row.startswith("rank"):
                print(f"    {row}")
        if not errors:
            print(json.dumps(report["failure"], indent=2)[:600])
    print(f"{flagged} of {len(chosen)} flagged")
    return int(flagged < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
