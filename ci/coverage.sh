#!/usr/bin/env bash
# Usage: ci/coverage.sh [PYTEST ARGUMENTS]; the tests, the slow ones too, with every branch counted that they take, in
# ranks, in processes that these start, and in the observers inside rehearsed scripts. Prints the figure by file, and
# fails below the least that [tool.coverage.report] allows.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv dev,runtime,trainer
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset PYTHONDONTWRITEBYTECODE

kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
export COVERAGE_FILE=$kept/data
export COVERAGE_RCFILE=$PWD/pyproject.toml
# These hold what a process of ours imports, or hand os._exit to ranks: with coverage in it, both are another's.
unmeasured=(
  tests/test_cli.py::test_a_clean_run_of_the_plain_kind_imports_nothing_heavy
  tests/test_hostile_folder.py::test_nothing_of_the_working_directory_is_imported
  tests/testing/test_worlds_faults.py::test_a_dead_rank_is_told_and_the_next_job_has_another_world
)
# By absolute path: ranks and rehearsed scripts run in folders of their own.
.venv/bin/python -m coverage run --source="$PWD/checks/validate_ddp,$PWD/reference_trainer" \
  -m pytest -q -n auto --dist worksteal -m "slow or not slow" "${unmeasured[@]/#/--deselect=}" "$@" || failed=$?
.venv/bin/python -m coverage combine --quiet "$kept"
.venv/bin/python -m coverage report
exit "${failed:-0}"
