#!/usr/bin/env bash
# From nothing to findings and to a trained model: installs, checks a buggy training script and its fixed twin, rehearses
# both on two ranks, trains the reference trainer on real digits on two ranks; leaves reports in build/demo/ and the run in
# build/demo/digits/. Exit code 0 only if the buggy script had findings, the fixed one had none, and the trainer trained.
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

# What only reads needs no torch; what runs a script does.
ci/install.sh .venv trainer

# rehearse NAME SCRIPT: runs the script, unmodified, on two CPU ranks; leaves rehearsed_NAME.html; sets $status.
rehearse() {
  echo
  echo "\$ validate-ddp run --nproc-per-node 2 --report $out/rehearsed_$1.html $2 --output-dir $out/rehearsed_$1"
  status=0
  .venv/bin/validate-ddp run --nproc-per-node 2 --report "$out/rehearsed_$1.html" "$2" \
    --output-dir "$out/rehearsed_$1" || status=$?
}

rehearse buggy fixtures/showcase/train_buggy.py
rehearsed_buggy=$status
rehearse fixed fixtures/showcase/train_fixed.py
rehearsed_fixed=$status

echo
echo "Reports:"
for name in buggy fixed; do
  echo "  train_$name.py  text       $out/$name.txt"
  echo "  train_$name.py  json       $out/$name.json"
  echo "  train_$name.py  rehearsal  $out/rehearsed_$name.html"
done
run=$out/digits
train=(-m torch.distributed.run --standalone --nproc-per-node 2 -m reference_trainer train --run-dir "$run")
echo
echo "\$ torchrun --standalone --nproc-per-node 2 -m reference_trainer train --run-dir $run"
trained=0
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} .venv/bin/python "${train[@]}" || trained=$?
echo
echo "Run directory $run:"
for name in config.json checkpoints/step-00000600/training.pt metrics/rank00000.jsonl metrics/rank00001.jsonl; do
  [ -s "$run/$name" ] || { echo "  $name is missing" >&2; trained=1; continue; }
  echo "  $run/$name"
done

echo
if [ "$buggy$fixed$rehearsed_buggy$rehearsed_fixed$trained" = 10100 ]; then
  echo "demo passed: findings on the buggy script, none on its fixed twin, read and rehearsed; the trainer trained on two" \
    "ranks"
else
  echo "demo FAILED: exit codes on the buggy script $buggy (expected 1), on its fixed twin $fixed (0), rehearsed" \
    "$rehearsed_buggy (1) and $rehearsed_fixed (0), of training $trained (0)" >&2
  exit 1
fi
