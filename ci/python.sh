#!/usr/bin/env bash
# Prints the path of a Python that can build the environment: $PYTHON, else the first good one of 3.11, 3.12, 3.13, 3.10, 3.
# 3.11 comes first because the pinned torch has wheels for it everywhere.
set -euo pipefail

# A name on PATH proves nothing: pyenv's shims fail when run, Debian's python3 may lack venv.
usable() {
  "$1" -c 'import sys, ensurepip, venv; sys.exit(not (3, 10) <= sys.version_info[:2])' >/dev/null 2>&1
}

for name in ${PYTHON:-python3.11 python3.12 python3.13 python3.10 python3}; do
  if usable "$name"; then
    exec "$name" -c 'import sys; print(sys.executable)'
  fi
done
echo "error: no usable Python among: ${PYTHON:-python3.11 python3.12 python3.13 python3.10 python3};" \
  "install Python 3.10 or newer with its venv module, or set PYTHON=/path/to/python" >&2
exit 2
