#!/usr/bin/env bash
# Usage: ci/search.sh [ROUNDS] [PYTEST ARGUMENTS]; the tests of hypothesis with other examples in each of ROUNDS rounds
# (default 10). `make test` has the same ones each time. Ends at the first round that finds something, with its example.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=10
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  rounds=$1
  shift
fi
for ((round = 1; round <= rounds; round++)); do
  echo "== round $round of $rounds =="
  ci/test.sh -q -m hypothesis --hypothesis-profile search "$@"
done
