#!/usr/bin/env bash
# Memory of a node's host: the sum over its ranks and phases, and its verdict in every command.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
python=$(command -v python3) || exit 77
cp "$TSR_SOURCE_DIR/tests/studies/hosts.yaml" "$tmp/study.yaml"
study=$tmp/study.yaml
cat >"$tmp/tiny.json" <<'J'
{"model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1, "num_attention_heads": 3,
 "num_key_value_heads": 3, "vocab_size": 101, "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
 "tie_word_embeddings": false}
J
cat >"$tmp/cluster.json" <<'J'
{"kind": "cluster", "name": "made", "description": "two nodes", "node": "made", "nodes": 2, "topology": {"type": "fat_tree"}}
J

host() { # host BYTES|null: what the node file states
    cat >"$tmp/node-made.json" <<J
{"kind": "node", "name": "made", "description": "four GPUs", "gpu": "rtx-4090", "gpus_per_node": 4,
 "intra_node": {"type": "pcie", "bandwidth_bytes_per_s_per_gpu_per_direction": 31500000000, "all_to_all": false, "peer_to_peer": false},
 "nics": {"count": 1, "rate_bit_per_s": 100000000000, "bandwidth_bytes_per_s_per_direction": 12500000000, "nics_per_gpu": 0.25},
 "host": {"memory_bytes": $1}}
J
}

# The node's bytes are those of an own replay of every rank's programs, whatever the strategy and the number of ranks.
host null
for each in 1:cpu 5:full 7:none; do
    works compare "$study" --set world="${each%:*}" --only "${each#*:}" --format json
    cp "$out" "$tmp/rows-${each%:*}.json"
done
checks=$((checks + 1))
"$python" "$TSR_SOURCE_DIR/tests/studies/hosts.py" "$TESSERA" "$study" "$tmp" >"$tmp/said" 2>&1 || complain "$(cat "$tmp/said")"

# Exactly enough is enough; a byte less is not. Without a figure there is no verdict.
need=$("$python" -c 'import json, sys
print(next(r["host_required_bytes_per_node"] for r in json.load(open(sys.argv[1]))["rows"] if r["strategy"] == "full"))' "$tmp/rows-5.json")
sim() {
    "$TESSERA" sim "$study" --set world=5 --strategy full "$@" >"$out" 2>"$err" </dev/null
    echo $?
}
[ "$(sim --wide)" = 0 ] || complain "a host of unknown size is a verdict"
has "$out" '| host of a node, GiB |' '|      ? | ?    |'
host "$need"
[ "$(sim --format json)" = 0 ] || complain "a host that is large enough does not fit"
has "$out" '"host_verdict": "yes"' '"fits": true' '"host_shortfall_bytes_per_node": 0'
host $((need - 1))
[ "$(sim --format json)" = 3 ] || complain "sim: exit status of a host that is too small"
has "$out" '"host_verdict": "no"' '"gpu_verdict": "yes"' '"verdict": "no"' '"host_shortfall_bytes_per_node": 1' '"host_peak_phase": "save"' '"host_peak_node": 0'
# What the dataset holds on each node is in the sum, once per node.
host $((need + 1073741824))
[ "$(sim --set data.host_gib=1 --format json)" = 0 ] || complain "a host with room for the dataset does not fit"
has "$out" '"host_verdict": "yes"' '"host_dataset_bytes_per_node": 1073741824' "\"host_required_bytes_per_node\": $((need + 1073741824))"
[ "$(sim --set data.host_gib=1.001)" = 3 ] || complain "the dataset has no share of the host"
host $((need - 1))
rm -rf "$tmp/out"
works compare "$study" --set world=5 --pictures none --out "$tmp/out"
has "$out" '| NO (host) |' '`NO (host)`: the ranks of a node need more memory than its host has' 'in save (node 0: 4 ranks, rank 0 alone' 'Fastest that fits'
grep -q '^| full \*' "$out" && complain "a strategy wins whose host is too small"
has "$tmp/out/summary.csv" host_required_bytes_per_node,host_steady_bytes_per_node,host_memory_bytes_per_node ",yes,no,$need,"
has "$tmp/out/report.html" host_required_bytes_per_node
# explain names the owners on the host, plan counts it out.
works explain "$study" --set world=5 --strategy full --no-what-if --notes
has "$out" 'node: its 4 ranks need' 'does NOT fit' 'On the host of rank 0 at its peak there (save)' 'Sharded Param'
works explain "$study" --set world=5 --strategy pinned --no-what-if --format json
cp "$out" "$tmp/explained.json"
checks=$((checks + 1))
"$python" - "$tmp/explained.json" <<'P' || complain "owners on the host do not add up"
import json, sys
host = json.load(open(sys.argv[1]))["host"]
alive = host["alive"]["bytes"]
assert sum(c["bytes"] for c in host["alive"]["by_category"]) == sum(o["bytes"] for o in host["alive"]["owners"]) == alive > 0
assert alive + host["cached_bytes"] == host["node"]["rank_bytes"], host
P
host 100000
works explain "$study" --set world=5 --strategy none --notes
has "$out" 'the host is too small'
fails 3 'plan: nothing fits' 'more memory than its host has' 'in save' -- plan "$study" --set world=5 --strategy full --set 'plan.space={batch: [1]}'
fails 3 'plan: no batch fits' 'more memory than its host has' -- plan "$study" --set world=5 --strategy full --max batch
host 500000
works plan "$study" --set world=5 --strategy none --set 'plan.space={offload: [none, cpu_pinned]}' --set 'phases=[step1,save]' --set save=full_rank0 --out "$tmp/plan"
has "$tmp/plan/plan.csv" host_verdict,host_required_bytes_per_node ,yes, ,no,

# Ranks without GPUs have their device memory in the host, too.
cat >"$tmp/node-cores.json" <<'J'
{"kind": "node", "name": "cores", "description": "no GPUs", "gpu": "rtx-4090", "gpus_per_node": 2,
 "intra_node": {"type": "shared_memory", "bandwidth_bytes_per_s_per_gpu_per_direction": 1e10}, "nics": null,
 "host": {"memory_bytes": 100000000, "cores": 2}}
J
works compare "$study" --set cluster=node-cores.json --only none --format json
has "$out" '"host_verdict": "no"' '"host_memory_bytes_per_node": 100000000'
cp "$out" "$tmp/cores.json"
checks=$((checks + 1))
"$python" - "$tmp/cores.json" <<'P' || complain "device memory of ranks without GPUs is not in the host"
import json, sys
row = json.load(open(sys.argv[1]))["rows"][0]
own = row["host_bytes"] + row["pinned_bytes"]
assert 2 * row["most_reserved_bytes"] <= row["host_required_bytes_per_node"] <= 2 * (row["most_reserved_bytes"] + own), row
P

# Another number of GPUs is another host: nothing is known of it.
works compare "$study" --set world=3 --set cluster.gpus=3 --only full --format json
has "$out" '"host_memory_bytes_per_node": null' '"host_verdict": "unknown"'
finish
