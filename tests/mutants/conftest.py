"""Makes ``ci.mutants`` importable: the checkout is not on the path of tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
