#!/usr/bin/env bash
# Usage: ci/mutants.sh [ARGUMENTS of ci/mutants]; plants defects in correct scripts, prints how many the checker finds.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv dev
exec .venv/bin/python -m ci.mutants "$@"
