#!/usr/bin/env bash
# From nothing to findings: installs, checks a buggy training script and its fixed twin, leaves reports in build/demo/.
# Exit code 0 only if the buggy script had findings and the fixed one had none.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv ""

out=build/demo
rm -rf "$out"
mkdir -p "$out"

# check NAME SCRIPT: prints the findings, leaves NAME.txt and NAME.json; sets $status to the exit code.
check() {
  echo
  echo "\$ validate-ddp --fail-on info $2"
  status=0
  .venv/bin/validate-ddp --fail-on info "$2" || status=$?
  # The same again as files; their exit codes are the one above.
  .venv/bin/validate-ddp --fail-on never --color never --output-file "$out/$1.txt" "$2"
  .venv/bin/validate-ddp --fail-on never --output-format json --output-file "$out/$1.json" "$2"
}

check buggy fixtures/showcase/train_buggy.py
buggy=$status
check fixed fixtures/showcase/train_fixed.py
fixed=$status

echo
echo "Reports:"
for name in buggy fixed; do
  echo "  train_$name.py  text  $out/$name.txt"
  echo "  train_$name.py  json  $out/$name.json"
done
echo
if [ "$buggy" = 1 ] && [ "$fixed" = 0 ]; then
  echo "demo passed: findings on the buggy script, none on its fixed twin"
else
  echo "demo FAILED: exit code on the buggy script $buggy (expected 1), on its fixed twin $fixed (expected 0)" >&2
  exit 1
fi
