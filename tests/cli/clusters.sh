#!/usr/bin/env bash
# A cluster of one's own: in a few keys of the experiment, in a file of the same keys, over a shipped one;
# and how `inspect` draws it.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
clusters=$TSR_SOURCE_DIR/experiments/clusters
cat >"$tmp/model.json" <<'Y'
{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8,
 "num_key_value_heads": 8, "vocab_size": 4096, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": false}
Y

# experiment FILE CLUSTER [LINE]
experiment() {
    printf 'model: model.json\ncluster: %s\nseq: 1024\n%s\n' "$2" "$3" >"$tmp/$1"
}

# rows FILE NAME [option...]: times and sizes of all strategies, without names and wall times.
rows() {
    file=$tmp/$1
    name=$2
    shift 2
    works compare "$file" --format csv "$@"
    python3 - "$out" >"$tmp/$name" <<'P' || complain "no table of $file"
import csv, sys
for row in csv.DictReader(open(sys.argv[1])):
    print([row[k] for k in ("step_time_s", "exposed_communication_s", "program_hash", "needed_bytes", "sent_between_nodes_bytes_per_gpu")])
P
}

differ() {
    checks=$((checks + 1))
    cmp -s "$tmp/$1" "$tmp/$2" && complain "$1 and $2 are equal"
}

# ---- three keys are the shipped node -------------------------------------------------------------

for card in h100-sxm5-80g=dgx-h100=8 a100-sxm4-80g=dgx-a100-80g=8 l40s=pcie-l40s-8=8 gh200-96g=alps-gh200=4; do
    gpu=${card%%=*}
    rest=${card#*=}
    experiment own.yaml "{nodes: 2, gpus: ${rest#*=}, gpu: $gpu}"
    experiment file.yaml "${rest%=*}" 'nodes: 2'
    rows own.yaml own
    rows file.yaml file
    same "$tmp/own" "$tmp/file"
done

# ---- every key counts, by --set and in a sweep ---------------------------------------------------

experiment own.yaml '{nodes: 4, gpus: 8, gpu: h200-sxm, nvlink: nvswitch, nics: 8, nic_gbit: 400, oversubscription: 2}'
rows own.yaml all
experiment short.yaml '{nodes: 4, gpus: 8, gpu: h200-sxm}'
rows short.yaml two --set cluster.oversubscription=2
same "$tmp/all" "$tmp/two"
rows short.yaml plain
experiment halved.yaml '{nodes: 4, gpus: 8, gpu: h200-sxm, nic_gbit: 200}'
rows halved.yaml halved
rows short.yaml set --set cluster.nic_gbit=200
same "$tmp/halved" "$tmp/set"
# Half the rate of all adapters is a network that carries half of it.
same "$tmp/halved" "$tmp/all"
differ halved plain
for change in nvlink=none gpus=4 gpu=a100-sxm4-80g nodes=2 nics=2; do
    rows short.yaml changed --set "cluster.$change"
    differ changed plain
done
experiment sweep.yaml '{nodes: 4, gpus: 8, gpu: h200-sxm}' 'sweeps: {cluster.nic_gbit: [400, 200]}'
rows sweep.yaml swept
cat "$tmp/plain" "$tmp/halved" >"$tmp/both"
same "$tmp/swept" "$tmp/both"
# Over a shipped cluster the same keys are what-ifs; a mapping without a machine keeps the machine.
experiment file.yaml dgx-h200-128 'nodes: 4'
rows file.yaml file --set cluster.nic_gbit=200
same "$tmp/file" "$tmp/halved"
experiment strategies.yaml '{nodes: 4, gpus: 8, gpu: h200-sxm}' \
    'strategies: {a: {}, b: {cluster: {nic_gbit: 200}}, c: {cluster.nic_gbit: 200}, d: {cluster: dgx-h200-128, nodes: 4}}'
rows strategies.yaml four
cat "$tmp/plain" "$tmp/halved" "$tmp/halved" "$tmp/plain" >"$tmp/want"
same "$tmp/four" "$tmp/want"
# Leaves of two nodes: what stays below one is not hindered.
rows own.yaml leaves --set cluster.leaf_nodes=2
differ leaves all

# A plan prices each machine: none is taken for another because their programs are alike.
for space in 'cluster.nic_gbit: [100, 400]' 'cluster.nvlink: [nvswitch, none]' 'gpu: [null, a100-sxm4-80g]'; do
    works plan "$tmp/short.yaml" --set "plan.space={$space}" --format csv
    checks=$((checks + 1))
    [ "$(wc -l <"$out")" = 3 ] || complain "plan: $space: not two rows"
done

# ---- a file of the same keys, in a folder of one's own -------------------------------------------

mkdir "$tmp/mine"
printf '{"kind": "cluster", "name": "mine", "nodes": 4, "gpus": 8, "gpu": "h200-sxm", "nic_gbit": 200}\n' \
    >"$tmp/mine/cluster-mine.json"
experiment mine.yaml mine/cluster-mine.json
rows mine.yaml keys
same "$tmp/keys" "$tmp/halved"
printf '{"kind": "cluster", "name": "c", "nodes": 4, "node": "dgx-h200", "topology": {"type": "fat_tree"}}\n' \
    >"$tmp/mine/cluster-c.json"
experiment c.yaml mine/cluster-c.json
rows c.yaml c
same "$tmp/c" "$tmp/plain"
sed 's/"name": "h200-sxm"/"name": "mine"/; s/4800000000000/2400000000000/' "$clusters/gpu-h200-sxm.json" >"$tmp/mine/gpu-mine.json"
experiment card.yaml '{nodes: 4, gpus: 8, gpu: mine/gpu-mine.json}'
rows card.yaml card
differ card plain

# ---- refused -------------------------------------------------------------------------------------

refused() {
    change=$1
    shift
    fails 2 "$@" -- compare "$tmp/short.yaml" --set "cluster.$change"
}
refused gpu=h200 'nearest: h200-sxm'
refused gpus=null 'cluster.gpus: found nothing' 'how many GPUs a node has'
refused nick=8 'unknown key "cluster.nick"; nearest: "cluster.nics"'
refused nvlink=nvlink 'found nvlink' 'default, nvswitch, direct or none'
refused oversubscription=0.5 'found 0.5' 'from 1 to 10000'
fails 2 'cluster.nvlink: found nvswitch' 'l40s has no NVLink' -- compare "$tmp/own.yaml" --set cluster.gpu=l40s
fails 2 'cluster.nics: found nothing' 'a100-pcie-40g' -- compare "$tmp/short.yaml" --set cluster.gpu=a100-pcie-40g
works compare "$tmp/short.yaml" --set cluster.gpu=a100-pcie-40g --set cluster.nics=2 --set cluster.nic_gbit=100
fails 2 'cluster.nic_gbit: found beside neither' -- compare "$tmp/short.yaml" --set cluster=null --set cluster.nic_gbit=3
fails 2 'cluster.nics: found beside cluster.name' '.json' -- \
    compare "$tmp/short.yaml" --set cluster="$clusters/nccl-dgx-a100.xml" --set cluster.nics=3

# ---- where the rest comes from -------------------------------------------------------------------

works compare "$tmp/short.yaml" --print-config
has "$out" '# nics: 8 for 8 GPUs (as node dgx-h200, the reference of h200-sxm: the same)' '# nic_gbit: 400 (as' \
    '# nvlink: nvswitch, 450 GB/s' '# oversubscription: 1 (default'
cp "$out" "$tmp/printed.yaml"
works compare "$tmp/printed.yaml" --print-config
same "$tmp/printed.yaml" "$out"
works inspect "$tmp/short.yaml" --set cluster.gpus=4
has "$out" 'nics: 4 for 4 GPUs (as node dgx-h200, the reference of h200-sxm: in proportion)'

# ---- the drawing ---------------------------------------------------------------------------------

# drawn FILE: the drawing of a cluster file, which fits 100 columns.
drawn() {
    works inspect "$1"
    sed -n '/^Topology/,/^  GPU/p' "$out" | sed '$d' >"$tmp/drawing"
    checks=$((checks + 1))
    [ "$(awk 'length > n {n = length} END {print n + 0}' "$tmp/drawing")" -le 100 ] || complain "$1: wider than 100 columns"
    grep -q 'GPU 0' "$tmp/drawing" || complain "$1: no GPU is drawn"
}
for file in "$clusters"/cluster-*.json "$clusters"/node-*.json; do
    drawn "$file"
done
drawn "$clusters/cluster-dgx-h100-1.json"
cat >"$tmp/want" <<'Y'
Topology (rates of one direction; alike where one of several is drawn)
  [node 0]                          8 x h100-sxm5-80g, NVSwitch, 450 GB/s per GPU
                                    8 NICs of 400 Gbit/s: 3200 Gbit/s

    NIC 0   NIC 1   NIC 2   NIC 3   NIC 4   NIC 5   NIC 6   NIC 7
      |       |       |       |       |       |       |       |
    GPU 0   GPU 1   GPU 2   GPU 3   GPU 4   GPU 5   GPU 6   GPU 7
      |       |       |       |       |       |       |       |
      +=======+=======+=======+=======+=======+=======+=======+

Y
same "$tmp/drawing" "$tmp/want"
printf '{"kind": "cluster", "name": "m", "nodes": 128, "gpus": 16, "gpu": "l40s", "nics": 4, "nic_gbit": 200,
 "oversubscription": 4, "leaf_nodes": 32, "nvlink": "none"}\n' >"$tmp/mine/cluster-m.json"
drawn "$tmp/mine/cluster-m.json"
cat >"$tmp/want" <<'Y'
Topology (rates of one direction; alike where one of several is drawn)
  [spine 0]                         128 nodes
  |
  +-- [leaf 0 ... leaf 3]           32 nodes each
                                    6400 Gbit/s up, of 25.6 Tbit/s below (4 : 1)
      |
      +-- [node 0 ... node 31]      16 x l40s, PCIe, 31.5 GB/s per GPU
                                    4 NICs of 200 Gbit/s: 800 Gbit/s

              NIC 0                           NIC 1           ...     NIC 3
                +-------+-------+-------+       +-------+               |
              GPU 0   GPU 1   GPU 2   GPU 3   GPU 4   GPU 5   ...     GPU 15
                |       |       |       |       |       |               |
                +-------+-------+-------+-------+-------+---------------+

Y
same "$tmp/drawing" "$tmp/want"
drawn "$clusters/node-pcie-l40s-8-switched.json"
has "$tmp/drawing" '    PCIe 0          PCIe 1          PCIe 2          PCIe 3' '    socket 0                        socket 1'
drawn "$clusters/cluster-gb200-nvl72.json"
has "$tmp/drawing" 'NVLink joins 72 GPUs of 18 nodes'

# ---- one file ------------------------------------------------------------------------------------

# A model and a cluster that are not shipped: at most 15 lines.
one=$TSR_SOURCE_DIR/experiments/own-model/one-file.yaml
[ "$(wc -l <"$one")" -le 15 ] || complain "$one has more than 15 lines"
works compare "$one"
has "$out" '4x8 h200-sxm' 'checkpointed'
works compare "$one" --print-config # the tree is part of the file that results
cp "$out" "$tmp/printed.yaml"
works compare "$tmp/printed.yaml" --print-config
same "$tmp/printed.yaml" "$out"
has "$out" 'repeat: 24' 'type: swiglu'
# ---- a folder above the experiment goes before the shipped files, which one line says --------------

mkdir -p "$tmp/above/clusters" "$tmp/above/studies"
sed 's/one DGX H100: 8 GPUs/a file of the user/' "$clusters/cluster-dgx-h100-1.json" >"$tmp/above/clusters/cluster-dgx-h100-1.json"
cp "$tmp/model.json" "$tmp/above/studies/"
printf 'model: model.json\ncluster: dgx-h100-1\nseq: 1024\nstrategies: {a: {}, b: {batch: 2}}\n' >"$tmp/above/studies/file.yaml"
works inspect "$tmp/above/studies/file.yaml"
has "$err" "note: cluster dgx-h100-1: $tmp/above/clusters/cluster-dgx-h100-1.json is read, and not $clusters/cluster-dgx-h100-1.json"
checks=$((checks + 1))
[ "$(grep -c 'is read, and not' "$err")" = 1 ] || complain "a shadowed file is told more than once"
cp "$clusters/cluster-dgx-h100-1.json" "$tmp/above/clusters/"
works inspect "$tmp/above/studies/file.yaml"
checks=$((checks + 1))
grep -q 'is read, and not' "$err" && complain "a copy of a shipped file is told"
finish
