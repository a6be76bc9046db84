#!/usr/bin/env bash
# Usage: ci/bench.sh CORPUS [ARGUMENTS of ci/bench/lint.py]; speed beside TorchFix and ruff on a folder of Python files.
set -euo pipefail
# What pip installs is compiled to bytecode; where this is set, our editable install would be compiled at every start.
unset PYTHONDONTWRITEBYTECODE
corpus=${1:-}
if [ ! -d "$corpus" ]; then
  echo "error: '$corpus' is no folder; give one of at least 400 Python files: make bench CORPUS=path/to/repositories" >&2
  exit 2
fi
corpus=$(cd "$corpus" && pwd)
shift
cd "$(dirname "$0")/.."
# An environment of its own, with what users install: the packages for development make every start slower.
ci/install.sh build/bench/ours ""
exec build/bench/ours/bin/python ci/bench/lint.py "$corpus" "$@"
