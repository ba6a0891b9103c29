#!/usr/bin/env bash
# Clusters in XML, faults, noise, several jobs and goodput, as a user asks for them.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
experiments=$TSR_SOURCE_DIR/experiments
clusters=$experiments/clusters
flagship=$experiments/flagship/dgx-h100-8.yaml
two_jobs=$experiments/topologies/two-jobs.yaml
small='--strategy fsdp --set model.layers=2 --set seq=1024'

# step ARGUMENT...: the steady step of the small job, seconds.
step() {
    # shellcheck disable=SC2086
    works sim "$flagship" $small --format json "$@"
    sed -n 's/.*"step_time_s": \([0-9.e-]*\).*/\1/p' "$out" | head -n 1
}
# is NAME TEST: an awk expression over a and b.
is() {
    checks=$((checks + 1))
    awk -v a="$2" -v b="$3" "BEGIN { exit !($4) }" || complain "$1: a=$2 b=$3"
}

# ---- topologies ------------------------------------------------------------------------------

# NCCL's dump of a DGX A100 is the DGX A100 of the node file, but for the adapters' names.
if "$TESSERA" inspect "$flagship" --only fsdp --set cluster="$clusters/nccl-dgx-a100.xml" 2>&1 |
    grep -q "reads no XML"; then
    echo "this build has no expat: clusters in XML are not tested"
else
    seen=$(step --set cluster="$clusters/nccl-dgx-a100.xml" --set nodes=2)
    file=$(step --set cluster=dgx-a100-80g --set nodes=2)
    is "DGX A100 as NCCL saw it" "$seen" "$file" 'a > 0 && a == b'
    # (without latencies: a platform does not know those of the node file's adapters)
    seen=$(step --set cluster="$clusters/platform-leaf-spine.xml" --set gpu=h100-sxm5-80g \
        --set gpus_per_node=8 --set sim.latency_scale=0)
    file=$(step --set cluster=dgx-h100 --set nodes=8 --set sim.latency_scale=0)
    is "a platform that never hinders" "$seen" "$file" 'a > 0 && a >= b && a < b * 1.001'
    platform=$clusters/platform-leaf-spine.xml
    fails 2 "platform-leaf-spine.xml" "allowed: a key gpu" -- sim "$flagship" --strategy fsdp \
        --set cluster="$platform"
    fails 2 "found 8 hosts" "the 9 of nodes" -- sim "$flagship" --strategy fsdp \
        --set cluster="$platform" --set nodes=9 --set gpu=h100-sxm5-80g
    fails 2 "world: found 128" "allowed: 1 to 64" -- sim "$flagship" --strategy fsdp \
        --set cluster="$platform" --set gpus_per_node=8 --set gpu=h100-sxm5-80g --set world=128
    sed '/nvlink target="0000:c4:00.0"/d' "$clusters/nccl-dgx-a100.xml" >"$tmp/less.xml"
    works inspect "$flagship" --only fsdp --set cluster="$tmp/less.xml"
    has "$out" "250 GB/s per GPU"
    sed 's/<nvlink.*//;s/link_width="16"/link_width="0"/' "$clusters/nccl-dgx-a100.xml" \
        >"$tmp/unreachable.xml"
    fails 2 "unreachable.xml:5: <gpu>: dev 0" "nothing reaches it" -- sim "$flagship" \
        --strategy fsdp --set cluster="$tmp/unreachable.xml"
    sed 's/<cpu/<cpu numaid="9"/' "$clusters/nccl-dgx-a100.xml" >"$tmp/malformed.xml"
    fails 2 "malformed.xml:2: found duplicate attribute" -- sim "$flagship" --strategy fsdp \
        --set cluster="$tmp/malformed.xml"
    sed 's/800GBps/0GBps/' "$platform" >"$tmp/zero.xml"
    fails 2 "zero.xml: link up-1_UP: found bandwidth 0" -- sim "$flagship" --strategy fsdp \
        --set cluster="$tmp/zero.xml" --set gpus_per_node=8 --set gpu=h100-sxm5-80g
fi
fails 2 "gpus_per_node: found 4 beside cluster: dgx-h100-1" -- sim "$flagship" --strategy fsdp \
    --set gpus_per_node=4
fails 2 "nodes: found 19" "multiples of 18" -- sim "$flagship" --strategy fsdp \
    --set cluster=gb200-nvl72 --set nodes=19

# ---- faults, others, noise -------------------------------------------------------------------

two='--set cluster=dgx-h100-2'
# shellcheck disable=SC2086
{
    whole=$(step $two)
    is "a slow GPU" "$(step $two --set 'sim.faults=[{gpu: 3, slow: 1.5}, {gpu: 9, slow: 1.2}]')" \
        "$whole" 'a > 1.1 * b'
    half=$(step $two --set 'sim.faults=[{nic: 3, share: 0.5}]')
    is "half an adapter" "$half" "$whole" 'a > 1.05 * b'
    is "rerouted" "$(step $two --set 'sim.faults=[{nic: 3, share: 0}]' --set sim.reroute=true)" \
        "$half" 'a == b'
    is "others" "$(step $two --set sim.background_nic=0.5)" "$half" 'a == b'
    is "messages" "$(step $two --set 'sim.traffic=[{from: 0, to: 8, gb: 1, every_ms: 25}]')" \
        "$whole" 'a > 1.02 * b'
}
fails 2 "sim.faults" "nic 3 dead" "allowed: a share above 0, or sim.reroute: true" -- \
    sim "$flagship" --strategy fsdp --set cluster=dgx-h100-2 --set 'sim.faults=[{nic: 3, share: 0}]'
fails 2 "sim.faults: found {nic: 3, share: 2}" "{nic: N, share: S}" -- sim "$flagship" --strategy fsdp \
    --set 'sim.faults=[{nic: 3, share: 2}]'
fails 2 "sim.faults" "found gpu 8, allowed 0 to 7" -- sim "$flagship" --strategy fsdp \
    --set 'sim.faults=[{gpu: 8, slow: 2}]'
fails 2 "sim.samples: found 8 without noise" -- sim "$flagship" --strategy fsdp --samples 8
fails 2 "jitter_gpu: found 0.1 with 16384 ranks" -- sim "$flagship" --strategy fsdp \
    --set cluster=meta-24k-ib --set world=16384 --set model.layers=1 --set sim.jitter_gpu=0.1

# What --print-config prints reads back as the same machine.
works sim "$flagship" --strategy fsdp --print-config --set 'sim.faults=[{gpu: 3, slow: 1.5}]' \
    --set 'sim.traffic=[{from: 0, to: 4, gb: 0.1, every_ms: 25, start_ms: 3}]'
cp "$out" "$tmp/printed.yaml"
has "$out" "faults: [{gpu: 3, slow: 1.5}]" "every_ms: 25, start_ms: 3}]"
works sim "$tmp/printed.yaml" --strategy fsdp --print-config
same "$tmp/printed.yaml" "$out"

works compare "$flagship" --only fsdp,fsdp-checkpoint --set model.layers=2 --set seq=1024 \
    --samples 12 --set sim.jitter_gpu=0.05 --set description=x --format csv
awk -F, '/^#/ { next } !n++ { for (i = 1; i <= NF; i++) at[$i] = i; next }
    { rows++; p5 = $at["step_time_p5_s"]; p50 = $at["step_time_p50_s"]; p95 = $at["step_time_p95_s"]
      if ($at["samples"] != 12 || !(p5 < p50 && p50 < p95)) bad = 1 }
    END { exit bad || rows != 2 }' "$out" || complain "percentiles"
works compare "$flagship" --only fsdp --set model.layers=2 --set seq=1024 --samples 3 \
    --set sim.jitter_kernel=0.05
has "$out" "step ms with noise" " p95 |"

# ---- several jobs ----------------------------------------------------------------------------

works jobs "$two_jobs" --format csv --set seq=512 --set model.layers=2
slowdown() { # the column before the error that is claimed, a text in quotes
    awk -F, '{ sub(/,("[^"]*"|[^,"]*)$/, "") } '"$1" "$out"
}
slowdown 'NR > 1 && !($NF > 1.2) { bad = 1 } END { exit bad || NR != 3 }' ||
    complain "interleaved jobs do not slow each other down"
works jobs "$two_jobs" --format csv --set seq=512 --set model.layers=2 --set \
    'jobs=[{strategy: hsdp, nodes: [0, 1, 2, 3]}, {strategy: fsdp}]'
slowdown 'NR > 1 && $NF != 1 { bad = 1 } END { exit bad || NR != 3 }' ||
    complain "jobs apart slow each other down"
works jobs "$two_jobs" --set seq=512 --set model.layers=2 --set strategies.fsdp.world=24 \
    --set 'jobs=[{strategy: fsdp}, {strategy: hsdp}]'
has "$out" "| fsdp " "| 0-2 " "| 3-6 "
fails 2 "jobs: nodes: found 8" "allowed: 0 to 7" -- jobs "$two_jobs" \
    --set 'jobs=[{strategy: hsdp, nodes: [0, 1, 2, 8]}]'
fails 2 "jobs: nodes: found 2 twice" -- jobs "$two_jobs" \
    --set 'jobs=[{strategy: hsdp, nodes: [0, 1, 2, 3]}, {strategy: fsdp, nodes: [2, 4, 5, 6]}]'
fails 2 "0 of the 8 of cluster racks-of-two are free" -- jobs "$two_jobs" \
    --set 'jobs=[{strategy: hsdp}, {strategy: fsdp}, {strategy: fsdp}]'
fails 2 'has no key "jobs"' -- jobs "$flagship"
fails 2 "found 12 GPUs of a job; allowed: whole nodes of 8" -- jobs "$two_jobs" --set world=12 \
    --set 'jobs=[{strategy: fsdp}]' --set strategies.hsdp.mesh=null

# ---- goodput ---------------------------------------------------------------------------------

# shellcheck disable=SC2086
works goodput "$flagship" $small --mtbf-hours 50 --checkpoint-minutes 60 --format csv
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    { sum = $at["goodput"] + $at["lost_work"] + $at["checkpoint"] + $at["restart"]
      if (sum < 0.999999 || sum > 1.000001) bad = 1; goodput[$at["which"]] = $at["goodput"] }
    $at["which"] == "best" { from = $at["flat_from_s"]; to = $at["flat_to_s"]; best = $at["interval_s"] }
    END { exit bad || !(goodput["best"] > goodput["asked"] && from > 0 && from < best && best < to) }' "$out" || complain "goodput"
works goodput "$flagship" --strategy fsdp --set model.layers=2 --checkpoint-minutes 30 \
    --set goodput.runs=20 --out "$tmp/month"
[ "$(grep -vc '^#' "$tmp/month/goodput.csv")" = 49 ] || complain "goodput.csv has not 48 intervals"
has "$out" "goodput %" "best: every" "A failure every 262.50 days (each node: every 262.50 days)" \
    "| as good within 0.1 %  |"
fails 2 "goodput.node_mtbf_hours: found 0" -- goodput "$flagship" --strategy fsdp --mtbf-hours 0
fails 2 "--mtbf-hours: found 2; allowed: a number, once" -- goodput "$flagship" --mtbf-hours 1 --mtbf-hours 2
fails 2 "the job fails before a step" -- goodput "$flagship" --strategy fsdp --mtbf-hours 0.001 \
    --set goodput.storage_gb_per_s=0.01
finish
