#!/usr/bin/env bash
# Usage: ci/lint.sh [--fix]; ruff (rules and format), the limits and arrows of the house, documents that are made, mypy, our own checks, shellcheck. --fix repairs what ruff can first.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv dev
if [ "${1:-}" = --fix ]; then
  .venv/bin/ruff check --quiet --fix . || true # what is left is reported below
  .venv/bin/ruff format .
fi
# All of them run, so that one look shows everything.
failed=""
.venv/bin/ruff check . || failed="$failed ruff-check"
.venv/bin/ruff format --check . || failed="$failed ruff-format(make format)"
.venv/bin/python ci/limits.py || failed="$failed limits"
.venv/bin/python ci/arrows.py || failed="$failed arrows"
.venv/bin/python ci/documents.py --check || failed="$failed documents"
.venv/bin/mypy checks/validate_ddp reference_trainer ci/limits.py ci/arrows.py ci/configuration.py ci/documents.py ci/golden.py ci/bench ci/mutants/*.py ci/demonstration.py || failed="$failed mypy"
# What we tell others we hold ourselves.
.venv/bin/validate-ddp --no-cache --fail-on warning reference_trainer ci checks || failed="$failed validate-ddp"
.venv/bin/shellcheck --severity warning ci/*.sh reference_trainer/scripts/*.s* || failed="$failed shellcheck"
if [ -n "$failed" ]; then
  echo "lint failed:$failed" >&2
  exit 1
fi
echo "lint passed"
