#!/usr/bin/env bash
# Usage: ci/soak.sh [PYTEST ARGUMENTS]; the tests that take minutes of random kills and faults. Each prints its figures.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv dev,runtime
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest -m soak -s "$@"
