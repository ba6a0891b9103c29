#!/usr/bin/env bash
# `tessera run --on cuda` on the stand-in's GPUs: what is refused, in one line, and what runs.
#
# Environment: TESSERA_STANDIN, the program with the stand-ins; TESSERA, the one without GPUs.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
without=$TESSERA
TESSERA=${TESSERA_STANDIN:?the program with stand-ins}
unset XDG_CACHE_HOME HOME # no plans of products are kept; --deterministic: none are timed
cp "$TSR_SOURCE_DIR/experiments/small/llama-tiny.json" "$tmp/"
job=$tmp/job.yaml
cat >"$job" <<END
title: two ranks
model: llama-tiny.json
world: 2
batch: 1
seq: 16
clip: true
precision: {param: bf16, reduce: f32}
train: {steps: 2, lr: 0.003}
strategies:
  fsdp: {}
END

# gpus WORDS: what the machine has (tests/standin/standin.h).
gpus() {
    TSR_STANDIN=$1
    export TSR_STANDIN
}

gpus gpus=1
fails 2 "found 2 ranks and 1 GPU" "--comm loopback" -- run "$job" --on cuda
fails 2 "--comm: found ib" nccl loopback -- run "$job" --on cuda --comm ib
fails 2 "--graphs: found maybe" -- run "$job" --on cuda --graphs maybe
fails 2 "--verify-operands" "--on host" -- run "$job" --on cuda --serial --verify-operands
fails 2 "precision.master: found f64 with --on cuda; allowed: f32, bf16 or f16, or --on host" -- \
    run "$TSR_SOURCE_DIR/tests/exec/strategies.yaml" --strategy f64 --on cuda --ranks 1
fails 2 "--force-nccl" -- run "$job" --on cuda --comm loopback --force-nccl
fails 2 "GPU: found 1" "allowed: 0" -- run "$job" --on cuda --ranks 1 --gpu 1
fails 2 "--gpu" "--on cuda" -- run "$job" --on host --gpu 0
fails 2 "--comm" "--on cuda" -- run "$job" --comm loopback
fails 2 "--allow-slow" "--on cuda" -- run "$job" --on host --allow-slow graph
fails 2 "--allow-slow: found graphs" "product, attention, graph, copy, scratch" -- run "$job" --on cuda --allow-slow graphs
TESSERA_ATTENTION=flash fails 2 "TESSERA_ATTENTION: found flash; allowed: plain" -- run "$job" --on cuda --ranks 1
gpus driver=0
fails 1 "found no driver" -- run "$job" --on cuda --ranks 1
gpus driver=12040
fails 1 "found a driver for CUDA 12.4" -- run "$job" --on cuda --ranks 1
gpus gpus=0
fails 1 "no GPU" -- run "$job" --on cuda --ranks 1
gpus major=7
fails 2 "compute capability 7.0" -- run "$job" --on cuda --ranks 1
gpus memory=33554432
fails 3 "GPU 0" -- run "$job" --on cuda --ranks 1

# The same losses with ranks that share a GPU and ranks with a GPU each; those of the host as far as
# bf16 goes: its products are libraries', which round as the processor has it.
close_to_host() { # FILE
    paste "$tmp/host" "$1" | awk 'NF != 2 || ($1 - $2) ^ 2 > 0.01 ^ 2 { bad = 1 } END { exit bad || !NR }'
}
losses() {
    sed -n 's/.*loss: *\([0-9.]*\).*/\1/p' "$out" | cut -c 1-5
}
gpus gpus=2
works run "$job" --on host
losses >"$tmp/host"
works run "$job" --on cuda --comm loopback --deterministic --check
losses >"$tmp/loopback"
TESSERA_ATTENTION=plain works run "$job" --on cuda --graphs off --deterministic
has "$err" 'TESSERA_ATTENTION is plain'
losses >"$tmp/nccl"
[ -s "$tmp/host" ] || complain "no losses"
close_to_host "$tmp/loopback" || complain "loopback: other losses than the host's"
cmp -s "$tmp/loopback" "$tmp/nccl" || complain "NCCL: other losses"

# A product for which cuBLASLt has no algorithm: a job of 16 bits is refused, or told at its end; a scenario, whose times
# nobody looks at, is traced.
gpus gpus=1,fail=cublasLtMatmulAlgoGetHeuristic:1:15
checks=$((checks + 1))
"$TESSERA" run "$job" --on cuda --ranks 1 --deterministic >"$out" 2>"$err" </dev/null
[ $? = 2 ] || complain "a slow product in 16 bits is not refused"
has "$err" "cuBLASLt has no algorithm" "allowed: with --allow-slow product"
works run "$job" --on cuda --ranks 1 --deterministic --allow-slow product,graph --out "$tmp/slow"
has "$err" ' products in a plain kernel (first: kernel mm: product (16, 128) x (128, 128) in bf16'
grep -q '"slow_paths": [1-9]' "$tmp/slow/metrics.jsonl" || complain "metrics.jsonl has no slow_paths"
works trace "$TSR_SOURCE_DIR/tests/golden-found/scenarios/m-scale-f16.json" --executor cuda -o "$tmp/scenario"
gpus gpus=2

# Graphs hold NCCL's calls, change no loss, and let the run end.
works run "$job" --on cuda --deterministic --set train.steps=5
losses >"$tmp/graphs"
works run "$job" --on cuda --deterministic --set train.steps=5 --graphs off
losses >"$tmp/direct"
cmp -s "$tmp/graphs" "$tmp/direct" || complain "graphs with NCCL: other losses"

# A machine that gives fewer addresses, and no memory that can be shared.
gpus gpus=2,addresses=274877906944,no_handles=1
works run "$job" --on cuda --graphs off --deterministic
losses >"$tmp/narrow"
cmp -s "$tmp/nccl" "$tmp/narrow" || complain "few addresses: other losses"
gpus gpus=2

# Norms of offloaded gradients are on the host, where NCCL is not.
offloads=(run "$TSR_SOURCE_DIR/tests/exec/strategies.yaml" --strategy offload --on cuda --ranks 2)
fails 2 "clip: found true beside offload, --on cuda with NCCL; allowed: false, --comm loopback" -- "${offloads[@]}" --set clip=true
works "${offloads[@]}" --set clip=true --comm loopback
works "${offloads[@]}" --set clip=false

# The program without GPUs starts the one beside it.
mkdir "$tmp/bin"
cp "$without" "$tmp/bin/tessera"
TESSERA=$tmp/bin/tessera
fails 2 "tessera-cuda" "--on host" -- run "$job" --on cuda --ranks 1
ln -s "$TESSERA_STANDIN" "$tmp/bin/tessera-cuda"
works run "$job" --on cuda --ranks 1 --deterministic
finish
