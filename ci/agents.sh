#!/usr/bin/env bash
# Usage: ci/agents.sh; one run under torchrun in several ways: one agent, two on loopback, two in network namespaces, a
# rank killed, an agent killed. Each must come to the weights of the first, bit by bit (on one rank less: to the last
# step). What this machine cannot do is said and left out. Leaves logs in build/agents/. About three minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/install.sh .venv trainer
export OMP_NUM_THREADS=1
python=$PWD/.venv/bin/python
out=$PWD/build/agents
rm -rf "$out"
mkdir -p "$out"
failed=0
train=(-m reference_trainer train --device cpu --steps 240 --global-batch 64 --log-every 20 --checkpoint.save-every 40)

torchrun=("$python" -m torch.distributed.run) # no function: in the background that would be a shell more

# port: one that is free now.
port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# weights NAME: what the run has come to, of all ranks; one line where they are equal.
weights() { grep -ho '"event": "weights", "sha256": "[0-9a-f]*"' "$out/$1"/metrics/*.jsonl | grep -o '[0-9a-f]\{64\}' | sort -u; }

# compare NAME WHAT: the weights of a run with those of the first.
compare() {
  if [ "$(weights "$1")" = "$(weights one)" ]; then
    echo "  equal: $2"
  else
    echo "  DIFFERENT: $2: see $out/$1.*" >&2
    failed=1
  fi
}

# reached NAME: rank zero has logged this many steps, or the time is over.
reached() {
  for _ in $(seq 600); do
    if grep -q "\"step\": $2, \"kind\": \"interval\"" "$out/$1/metrics/rank00000.jsonl" 2>/dev/null; then return 0; fi
    sleep 0.1
  done
  echo "  $1 did not reach step $2: see $out/$1.*" >&2
  return 1
}

# rank_of AGENT: the process of the rank that this agent has started.
rank_of() { pgrep -P "$1" | head -1; }

echo "one agent, two ranks"
"${torchrun[@]}" --standalone --nproc-per-node 2 "${train[@]}" --run-dir "$out/one" >"$out/one.log" 2>&1
echo "  $(weights one)"

echo "two agents on loopback, a rank each"
address=127.0.0.1:$(port)
agents=()
for agent in 0 1; do
  "${torchrun[@]}" --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint "$address" --rdzv-id two \
    "${train[@]}" --run-dir "$out/two" >"$out/two.$agent.log" 2>&1 &
  agents+=($!)
done
wait "${agents[@]}" || true
compare two "two agents on loopback"

echo "two agents on loopback, without a rendezvous: --node-rank, --master-addr"
port=$(port)
agents=()
for agent in 0 1; do
  "${torchrun[@]}" --nnodes 2 --nproc-per-node 1 --node-rank "$agent" --master-addr 127.0.0.1 --master-port "$port" \
    "${train[@]}" --run-dir "$out/static" >"$out/static.$agent.log" 2>&1 &
  agents+=($!)
done
wait "${agents[@]}" || true
compare static "two agents with a static address"

echo "two agents in network namespaces"
spaces=(vddp-a-$$ vddp-b-$$)
remove_spaces() { for space in "${spaces[@]}"; do ip netns del "$space" 2>/dev/null || true; done; }
make_spaces() {
  ip netns add "${spaces[0]}" && ip netns add "${spaces[1]}" &&
    ip link add veth-a netns "${spaces[0]}" type veth peer name veth-b netns "${spaces[1]}" &&
    ip -n "${spaces[0]}" addr add 10.77.0.1/24 dev veth-a && ip -n "${spaces[1]}" addr add 10.77.0.2/24 dev veth-b &&
    ip -n "${spaces[0]}" link set veth-a up && ip -n "${spaces[1]}" link set veth-b up &&
    ip -n "${spaces[0]}" link set lo up && ip -n "${spaces[1]}" link set lo up
}
trap remove_spaces EXIT
if ! command -v ip >/dev/null || ! make_spaces 2>"$out/spaces.log"; then
  echo "  skipped: network namespaces cannot be made here ($(tail -n 1 "$out/spaces.log" 2>/dev/null || echo "no ip"))"
else
  # in_space 0|1 NAME OPTIONS...: an agent on its own machine, as far as the network goes.
  in_space() {
    local number=$1 name=$2 letter=a
    shift 2
    if [ "$number" = 1 ]; then letter=b; fi
    ip netns exec "${spaces[$number]}" env GLOO_SOCKET_IFNAME="veth-$letter" "${torchrun[@]}" --nnodes 2 \
      --nproc-per-node 1 "$@" "${train[@]}" --run-dir "$out/$name" >"$out/$name.$number.log" 2>&1 &
    agents+=($!)
  }
  agents=()
  rendezvous=(--rdzv-backend c10d --rdzv-endpoint 10.77.0.1:29611 --rdzv-id spaces)
  in_space 0 spaces "${rendezvous[@]}" --rdzv-conf is_host=true --local-addr 10.77.0.1
  in_space 1 spaces "${rendezvous[@]}" --rdzv-conf is_host=false --local-addr 10.77.0.2
  wait "${agents[@]}" || true
  compare spaces "two agents in network namespaces, c10d"
  agents=()
  in_space 0 spaces-static --node-rank 0 --master-addr 10.77.0.1 --master-port 29612
  in_space 1 spaces-static --node-rank 1 --master-addr 10.77.0.1 --master-port 29612
  wait "${agents[@]}" || true
  compare spaces-static "two agents in network namespaces, static"
fi

echo "a rank is killed under --max-restarts 1"
"${torchrun[@]}" --standalone --nproc-per-node 2 --max-restarts 1 "${train[@]}" --run-dir "$out/killed" >"$out/killed.log" 2>&1 &
agent=$!
if reached killed 100; then kill -KILL "$(rank_of $agent)"; else failed=1; fi
wait "$agent" || true
grep -h "resumed from" "$out/killed.log" | sed 's/^/  /' || true
compare killed "killed and resumed"

echo "an agent and its rank are killed under --nnodes 1:2: the other goes on alone, at the same global batch"
address=127.0.0.1:$(port)
agents=()
for agent in 0 1; do
  "${torchrun[@]}" --nnodes 1:2 --nproc-per-node 1 --max-restarts 2 --rdzv-backend c10d --rdzv-endpoint "$address" \
    --rdzv-id lost --rdzv-conf last_call_timeout=5 "${train[@]}" --run-dir "$out/lost" >"$out/lost.$agent.log" 2>&1 &
  agents+=($!)
  sleep 1 # the first has the rendezvous
done
if reached lost 100; then
  rank=$(rank_of "${agents[1]}")
  kill -KILL "${agents[1]}" "$rank"
else
  failed=1
fi
wait "${agents[0]}" || true
grep -h "resumed from\|goes on with" "$out/lost.0.log" | sed 's/^/  /' || true
if [ -d "$out/lost/checkpoints/step-00000240" ]; then
  echo "  reached the last step alone"
else
  echo "  DID NOT reach the last step: see $out/lost.0.log" >&2
  failed=1
fi

if [ "$failed" != 0 ]; then
  echo "agents FAILED" >&2
  exit 1
fi
echo "agents passed"
