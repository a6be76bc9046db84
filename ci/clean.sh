#!/usr/bin/env bash
# Removes environments, builds, caches and what runs left behind; never a file under version control.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf .venv build dist runs htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
