#!/usr/bin/env bash
# The pytest plugin as a user meets it: the built wheel in an environment of its own, a small project in a folder of its
# own (ci/user_view/), pytest in its usual ways, and each kind of failure. Says what was not as a user should see it.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=$root/build/user-view
rm -rf "$out/dist"
mkdir -p "$out/dist"

python=$(ci/python.sh)
[ -x "$out/venv/bin/python" ] || "$python" -m venv "$out/venv"
pip() { "$out/venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
pip wheel --no-deps --wheel-dir "$out/dist" .
wheel=$(echo "$out"/dist/*.whl)
pip install --constraint ci/constraints.txt "${wheel}[runtime]" numpy pytest pytest-cov pytest-timeout pytest-xdist
pip install --force-reinstall --no-deps "$wheel"

project=$(mktemp -d)
trap 'rm -rf "$project"' EXIT
cp "$root"/ci/user_view/*.py "$project"
cd "$project"
unset PYTHONPATH
export COLUMNS=120
failed=0

# expect STATUS "PYTEST ARGUMENTS" TEXT...: its exit code, and every text somewhere in what it prints.
expect() {
  local wanted=$1 arguments=$2 status=0 text
  shift 2
  # shellcheck disable=SC2086 # the arguments are words
  "$out/venv/bin/python" -m pytest $arguments >"$out/output.txt" 2>&1 || status=$?
  printf '$ pytest %s\n    %s\n' "$arguments" "$(tail -1 "$out/output.txt")"
  if [ "$status" != "$wanted" ]; then
    echo "    FAILED: exit code $status, expected $wanted; $(cat "$out/output.txt")"
    failed=1
  fi
  for text in "$@"; do
    if ! grep -qF -- "$text" "$out/output.txt"; then
      printf '    FAILED: does not say "%s"\n' "$text"
      cp "$out/output.txt" "$out/failed-$(date +%s%N).txt"
      failed=1
    fi
  done
}

expect 0 "test_trainer.py" "5 passed"
expect 0 "test_trainer.py -n 2" "5 passed"
expect 0 "test_trainer.py --cov trainer --cov-report term" "trainer.py" "100%"
expect 0 "test_trainer.py -k gradient" "3 passed, 2 deselected"
expect 1 "-x test_broken.py" "1 failed" "stopping after 1 failures"
expect 1 "" "4 failed, 5 passed" \
  "test_broken.py:24: AssertionError" "assert 2.0 == 3" \
  "rank 0 waited in all_reduce at test_broken.py:33; rank 1 waited in all_gather_object at test_broken.py:34" \
  "rank 1 was killed by SIGKILL" \
  "rank 1 loads its data" "validation begins on rank 1"
expect 1 "--lf" "4 failed"
expect 1 "--lf -k killed" "1 failed, 3 deselected"
expect 1 "-n 2 --tb short" "4 failed, 5 passed" "rank 1 was killed by SIGKILL" "rank 1 loads its data"

if [ "$failed" != 0 ]; then
  echo "user's view FAILED; what was printed is in build/user-view/" >&2
  exit 1
fi
echo "user's view passed"
