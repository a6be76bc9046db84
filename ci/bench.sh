#!/usr/bin/env bash
# Usage: ci/bench.sh CORPUS [ARGUMENTS of ci/bench/lint.py]; speed beside TorchFix and ruff on a folder of Python files.
set -euo pipefail
cd "$(dirname "$0")/.."
corpus=${1:-}
if [ ! -d "$corpus" ]; then
  echo "error: '$corpus' is no folder; give one of at least 400 Python files: make bench CORPUS=path/to/repositories" >&2
  exit 2
fi
ci/install.sh .venv ""
exec .venv/bin/python ci/bench/lint.py "$@"
