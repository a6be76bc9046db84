"""How far a run has got, by its checkpoints: `python -m reference_trainer.scripts.steps_left RUN` prints "120 600"."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def progress(run: Path) -> tuple[int, int]:
    """Steps of the latest checkpoint, and those planned by the start that wrote the last heartbeat; 0: none. Local."""
    # A folder gets its name when it is whole; what was set aside has another one.
    names = [path.parent.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*/manifest.json")]
    try:
        planned = int(json.loads((run / "status" / "rank00000.json").read_bytes())["total"])
    except FileNotFoundError:
        planned = 0
    return max((int(name) for name in names if name.isdecimal()), default=0), planned


def main(argv: Sequence[str]) -> int:
    """Prints both numbers; the exit code is 2 where it is not told one run. Local."""
    if len(argv) != 1:
        print("usage: python -m reference_trainer.scripts.steps_left RUN", file=sys.stderr)
        return 2
    print(*progress(Path(argv[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
