#!/usr/bin/env bash
# Usage: ci/soak.sh [TESTS]; so many tests (default 1000) on warm worlds under -n 2, 5 % of them with a hang, a killed
# rank, an exception or an early return: no verdict may be wrong, nothing may be left behind. Minutes, not seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv dev,runtime
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} VALIDATE_DDP_SOAK=${1:-1000}
exec .venv/bin/python -m pytest -m soak -s tests/testing/test_soak.py
