#!/usr/bin/env bash
# Usage: ci/demonstration.sh [ARGUMENTS of ci/demonstration.py]; what CLUB does to leakage on real digits, some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv trainer
exec .venv/bin/python ci/demonstration.py "$@"
