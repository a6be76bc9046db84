#!/usr/bin/env bash
# Usage: ci/test.sh [PYTEST ARGUMENTS]; all tests on all cores, in .venv, which it makes where needed.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv dev,runtime,trainer
# Stealing work keeps the tests of a file together, which share worlds and processes.
# Ranks on gloo share the cores: one thread each, or they fight.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Hundreds of processes import the same modules: without their bytecode each compiles them anew.
unset PYTHONDONTWRITEBYTECODE
exec .venv/bin/python -m pytest -n auto --dist worksteal "$@"
