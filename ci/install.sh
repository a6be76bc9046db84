#!/usr/bin/env bash
# Usage: ci/install.sh [VENV] [EXTRAS]; makes VENV (default .venv) with this project, editable, and EXTRAS (such as
# "dev,runtime"; default none). Does nothing where the environment already has them; extras add up over calls.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
extras=${2:-}
stamp="$venv/.validate-ddp-stamp" # line 1: what it was made from; line 2: the extras it has

python=$(ci/python.sh)
made_from=$({ cat pyproject.toml ci/constraints.txt ci/install.sh; "$python" -VV; pwd; } | cksum)

have=""
if [ -f "$stamp" ] && [ -x "$venv/bin/validate-ddp" ] && [ "$(sed -n 1p "$stamp")" = "$made_from" ]; then
  have=$(sed -n 2p "$stamp")
  missing=""
  for extra in ${extras//,/ }; do
    case ",$have," in *",$extra,"*) ;; *) missing="$missing $extra" ;; esac
  done
  [ -n "$missing" ] || exit 0
elif [ -e "$venv" ]; then
  if [ ! -f "$venv/pyvenv.cfg" ]; then
    echo "error: $venv exists and is no virtual environment; give another path: ci/install.sh PATH" >&2
    exit 2
  fi
  rm -rf "$venv"
fi

wanted=$(printf '%s\n' ${have//,/ } ${extras//,/ } | sort -u | paste -sd, -)
echo "installing validate-ddp${wanted:+[$wanted]} into $venv ($("$python" -V))"
# The stamp goes first: an interrupted installation starts again from nothing.
rm -f "$stamp"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint ci/constraints.txt \
  --editable ".${wanted:+[$wanted]}"
printf '%s\n%s\n' "$made_from" "$wanted" >"$stamp"
