#!/usr/bin/env bash
# A simulated device that runs out of memory: one line on stderr, exit status 3, a row, files.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
cat >"$tmp/e.yaml" <<'Y'
model: llama-3.1-8b
cluster: dgx-h100-1
seq: 8192
optimizer: {variant: fused}
precision: {param: bf16, reduce: f32}
allocator: {limit: card}
strategies:
  fsdp: {}
  ddp: {api: ddp}
Y

full() { # full STRATEGY ARGUMENT...: runs out of memory
    strategy=$1
    shift
    checks=$((checks + 1))
    "$TESSERA" sim "$tmp/e.yaml" --strategy "$strategy" "$@" >"$out" 2>"$err"
    got=$?
    [ "$got" = 3 ] || complain "sim $strategy $*: exit status $got, not 3"
    [ "$(wc -l <"$err")" = 1 ] || complain "sim $strategy $*: $(wc -l <"$err") lines, not 1"
}

full fsdp --set batch=8 --out "$tmp/out"
has "$err" "fsdp: out of memory: rank 0, iteration 0, forward, model.layers." "for Activation do not fit" \
    "on the device" "cached (largest block" "on its stream" "the card less its context and NCCL 78.17 GiB; most: Activation" "batch 1 would fit"
has "$out" "| fsdp [1]" NO "[1] fsdp: out of memory"
json=$tmp/out/fsdp/oom.json
# What is visible of the card, less its context, and less NCCL: tables of 32 channels (three each, two more, NVLS one a channel
# and its credits) and rings of 24, in MiB (sim.nccl_memory).
card=$TSR_SOURCE_DIR/experiments/clusters/gpu-h100-sxm5-80g.json
bytes() {
    sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$card"
}
has "$json" "\"device_bytes\": $(($(bytes visible_bytes) - $(bytes context_bytes) - ((32 * 3 + 2 + 25) * 2 + 24 * 12) * 1048576))" \
    '"requested_bytes": 1879048192' '"device_free_bytes"' '"largest_free_block_bytes"' '"largest_usable_block_bytes"' '"by_category"' \
    '"owner": "model.layers.*.mlp"' '"remedy": "batch 1 would fit"' '"phase": "forward"'
[ -s "$tmp/out/fsdp/snapshot.pickle" ] || complain "no snapshot"
[ -e "$tmp/out/fsdp/memory.csv" ] && complain "a memory curve of a run that did not end"
left=$(find "$tmp/out" -name '*tmp*' | head -n 1)
[ -z "$left" ] || complain "left behind: $left"

# What it says would fit does, and the next larger does not.
works sim "$tmp/e.yaml" --strategy fsdp --set batch=1
full fsdp --set batch=2
has "$err" "batch 1 would fit"
full fsdp --set batch=1 --set seq=16384
seq=$(sed -n 's/.*batch 1 with seq \([0-9]*\) would fit.*/\1/p' "$err")
[ -n "$seq" ] || complain "no sequence is named"
works sim "$tmp/e.yaml" --strategy fsdp --set batch=1 --set seq="${seq:-1}"
checks=$((checks + 1)) # the allocator may still be served, but not what lies outside it
"$TESSERA" sim "$tmp/e.yaml" --strategy fsdp --set batch=1 --set seq=$((${seq:-1} + 64)) >"$out" 2>"$err"
[ $? = 3 ] || complain "seq $seq is not the largest that fits"
full ddp
has "$err" "ddp: out of memory" "no batch or sequence would fit" "Sharded Param 29.92 GiB"

# In a comparison it is a row; the others go on.
works compare "$tmp/e.yaml" --set batch=1 --out "$tmp/both" --pictures svg
has "$out" "| ddp [1]" "| fsdp" "[1] ddp: out of memory"
[ -s "$tmp/both/ddp/oom.json" ] || complain "no oom.json of ddp"
[ -s "$tmp/both/fsdp/memory.csv" ] || complain "no memory curve of fsdp"
[ -e "$tmp/both/fsdp/oom.json" ] && complain "fsdp did not run out of memory"

# Initialisation alone may be too much.
full ddp --set model=llama-3.1-70b
has "$err" "rank 0, init, model.layers." "Sharded Param do not fit"

# What a phase outside the step can do without is said before a smaller batch is looked for.
outside() { # outside STRATEGY SETTING FIT REMEDY...: runs out of memory in that phase
    strategy=$1
    wrong=$2
    right=$3
    phase=${3%%=*}
    shift 3
    full "$strategy" --set "$wrong" "$@"
    has "$err" "rank 0, $phase, " "; $right would fit"
    works sim "$tmp/e.yaml" --strategy "$strategy" --set "$right" "$@"
}
outside fsdp save=full_device save=sharded --set 'phases=[step1, save]' --set batch=1 --set seq=512
outside fsdp init=device init=meta --set model=llama-3.1-70b --set world=64 --set cluster=dgx-h100-superpod-su --set seq=512
finish
