"""`python -m reference_trainer`, and so `torchrun -m reference_trainer train`."""

from __future__ import annotations

from .cli import run

if __name__ == "__main__":
    run()
