#!/usr/bin/env bash
# A misspelt key is an error that names the nearest one, whoever reads the file: every format of ours,
# each of its objects.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
experiments=$TSR_SOURCE_DIR/experiments
mkdir "$tmp/c"
cp "$experiments"/clusters/gpu-*.json "$experiments"/clusters/kernels-*.json "$experiments"/clusters/node-*.json "$tmp/c"

# spoilt FILE PATH WORD [NEAREST]: FILE with the key at PATH ("a.b", "a[0].b") called WORD; the line names the
# old word, or NEAREST. The experiment of the file is in $command.
spoilt() {
    word=${2##*.}
    python3 - "$1" "$tmp/c/$(basename "$1")" "$2" "$3" <<'P' || complain "$1 has no $2"
import json, re, sys
source, target, path, word = sys.argv[1:]
tree = at = json.load(open(source))
steps = re.findall(r"[^.\[\]]+", path)
for step in steps[:-1]:
    at = at[int(step)] if isinstance(at, list) else at[step]
pairs = list(at.items())
assert steps[-1] in at, steps
at.clear()
at.update((word if k == steps[-1] else k, v) for k, v in pairs)
json.dump(tree, open(target, "w"))
P
    # shellcheck disable=SC2086
    fails 2 "$3" "nearest: \"${4:-$word}\"" -- $command
    cp "$1" "$tmp/c/$(basename "$1")"
}

# ---- clusters, nodes, cards, kernel tables -------------------------------------------------------

cp "$experiments/clusters/cluster-racks-of-two.json" "$experiments/clusters/cluster-dgx-h100-128.json" "$tmp/c"
command="inspect $tmp/c/cluster-racks-of-two.json"
spoilt "$experiments/clusters/cluster-racks-of-two.json" topology.tiers[0].oversubscription oversubscribtion
spoilt "$experiments/clusters/cluster-racks-of-two.json" description descripton
command="inspect $tmp/c/cluster-dgx-h100-128.json"
spoilt "$experiments/clusters/cluster-dgx-h100-128.json" topology.oversubscription oversubscribtion
spoilt "$experiments/clusters/cluster-dgx-h100-128.json" topology.rails rials
node=$experiments/clusters/node-dgx-h100.json
spoilt "$node" nics.latency_s latency
spoilt "$node" host.memory_bytes memory_byte
spoilt "$node" intra_node.generation genration
spoilt "$node" pcie_generation pci_generation
card=$experiments/clusters/gpu-h100-sxm5-80g.json
spoilt "$card" reference_node refrence_node
spoilt "$card" compute_clock_hz compute_clock
spoilt "$card" memory.context_bytes context_byte
spoilt "$card" calibration.matmul_sustained matmul_sustaned
table=$experiments/clusters/kernels-sm90.json
spoilt "$table" matmul[0].peak_share peak_shares
spoilt "$table" attention[0].source sorce
spoilt "$experiments/clusters/kernels-h200.json" norms[0].source sorce
printf '{"kind": "cluster", "name": "k", "nodes": 2, "gpus": 8, "gpu": "h200-sxm", "nic_gbit": 200, "leaf_nodes": 2}\n' >"$tmp/k.json"
cp "$tmp/k.json" "$tmp/c/k.json"
command="inspect $tmp/c/k.json"
spoilt "$tmp/k.json" nic_gbit nic_gbits
spoilt "$tmp/k.json" leaf_nodes leaf_node
# A key of another object.
python3 - "$experiments/clusters/cluster-dgx-h100-128.json" "$tmp/c/cluster-x.json" <<'P'
import json, sys
tree = json.load(open(sys.argv[1]))
tree["oversubscription"] = tree["topology"].pop("oversubscription")
json.dump(tree, open(sys.argv[2], "w"))
P
fails 2 'nearest: "topology.oversubscription"' -- inspect "$tmp/c/cluster-x.json"

# ---- models --------------------------------------------------------------------------------------

for model in llama-3.1-8b=rms_norm_eps=rms_norm_esp gpt2=layer_norm_epsilon=layer_norm_epsilom qwen2.5-7b=rope_theta=rope_teta \
    mpt-7b=expansion_ratio=expansion_ration; do
    file=$experiments/models/${model%%=*}.json
    rest=${model#*=}
    command="inspect $tmp/c/${model%%=*}.json"
    spoilt "$file" "${rest%=*}" "${rest#*=}"
done
# tree LINE WORD NEAREST: the tree with its line changed.
tree() {
    sed "$1" "$experiments/own-model/vit-l.yaml" >"$tmp/tree.yaml"
    fails 2 "unknown key \"$2\"; nearest: \"$3\"" -- inspect "$tmp/tree.yaml"
}
tree 's/^in_dim:/in_dmi:/' in_dmi in_dim
tree 's/causal:/casual:/' casual causal
tree 's/repeat:/repaet:/' repaet repeat
tree 's/residual:/residaul:/' residaul residual
tree 's/flops:/flop:/' flop flops
tree 's/saves_input:/save_input:/' save_input saves_input
tree 's/dim: 1024, eps/dmi: 1024, eps/' dmi dim

# ---- experiments and their parts -----------------------------------------------------------------

# study TEXT WORD NEAREST COMMAND
study() {
    printf 'model: llama-3.2-1b\nworld: 2\nseq: 64\n%b\n' "$1" >"$tmp/e.yaml"
    # shellcheck disable=SC2086
    fails 2 "$2" "$3" -- ${4:-compare} "$tmp/e.yaml"
}
study 'bacth: 2' 'unknown key "bacth"' 'nearest: "batch"'
study 'cluster: {nodes: 2, gpsu: 8, gpu: h200-sxm}' 'unknown key "cluster.gpsu"' 'nearest: "cluster.gpus"'
study 'strategies: {a: {chekpoint: full}}' 'unknown key "strategies.a.chekpoint"' 'nearest: "checkpoint"'
study 'sweeps: {bacth: [1]}' 'unknown key "bacth"' 'nearest: batch'
study 'cluster: dgx-h100-1\nplan: {budget_gb: 3}' 'budget_gb' 'nearest: "budget_gib"' plan
study 'cluster: dgx-h100-1\nplan: {space: {bacth: [1]}}' 'bacth' 'nearest: batch' plan
study 'cluster: dgx-h100-2\njobs: [{strategy: default, node: [0]}]' 'node' 'nearest: "nodes"' jobs
study 'cluster: dgx-h100-1\nsim: {faults: [{gpu: 0, solw: 2}]}' 'solw' 'nearest: "slow"'
study 'cluster: dgx-h100-1\nsim: {traffic: [{from: 0, too: 1, gb: 1, every_ms: 5}]}' 'too' 'nearest: "to"'
study 'wrap: [{modules: [a], gruop: true}]' 'gruop' 'nearest: "group"'
sed 's/- when:/- wehn:/' "$experiments/validation/conditions.yaml" >"$tmp/conditions.yaml"
fails 2 'wehn' 'nearest: "when"' -- validate "$experiments/validation/torchtitan.csv" --conditions "$tmp/conditions.yaml"

# ---- recorded scenarios --------------------------------------------------------------------------

sed 's/"optimizer":/"optimzer":/' "$TSR_SOURCE_DIR/tests/golden-memory/tiny-base.json" >"$tmp/memory.json"
fails 2 'key "optimzer"' 'nearest: "optimizer"' -- memory "$tmp/memory.json"
sed 's/"mesh":/"mehs":/' "$TSR_SOURCE_DIR/tests/golden/scenarios/ac-inside-w2.json" >"$tmp/trace.json"
fails 2 'unknown key "mehs"; nearest: "mesh"' -- trace "$tmp/trace.json"
finish
