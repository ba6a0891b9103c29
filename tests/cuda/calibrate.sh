#!/usr/bin/env bash
# `tessera calibrate --on cuda` on the stand-in's GPUs, which are small, so that only the smallest training and
# collectives are timed: the files are whole, and compare, inspect and collectives take them.
#
# Environment: TESSERA_STANDIN, the program with the stand-ins.
TESSERA=${TESSERA_STANDIN:?the program with the stand-ins}
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
: "${tmp:?a folder of our own}" "${out:?}" "${err:?}"
export XDG_CACHE_HOME=$tmp/cache
export TSR_STANDIN=gpus=2,memory=201326592
study=$TSR_SOURCE_DIR/experiments/small/llama.yaml

# files DIR: what it holds is right, for two ranks.
files() {
    checks=$((checks + 1))
    python3 "$TSR_SOURCE_DIR/tests/cli/calibrated.py" "$1" stand-in 0.1 mm flash_attention rms_norm layer_norm fused_adamw \
        nll_loss embedding chunk_cat split_with_sizes_copy || complain "$1: the files are wrong"
}

# used DIR: the commands that take a cluster take it.
used() {
    works compare "$study" --only fsdp --set "cluster=$1/cluster-stand-in.json" --set world=2 --format json
    checks=$((checks + 1))
    python3 -c 'import json, sys; sys.exit(not json.load(open(sys.argv[1]))["rows"][0]["step_time_s"] > 0)' "$out" ||
        complain "$1: no time of a step"
    works collectives "$1/cluster-stand-in.json" --sizes 65536
    has "$out" all_gather
}

works calibrate --on cuda --out "$tmp/nccl"
has "$err" "wrote $tmp/nccl/cluster-stand-in.json"
files "$tmp/nccl"
used "$tmp/nccl"
export TSR_STANDIN=gpus=2,memory=419430400 # two ranks share one
works calibrate --on cuda --out "$tmp/loopback" --ranks 2 --comm loopback
files "$tmp/loopback"
used "$tmp/loopback"

# Mistakes.
fails 2 "--ranks: found 3; allowed: up to 2, a GPU for each" -- calibrate --on cuda --out "$tmp/x" --ranks 3
fails 2 "--comm: found ib; allowed: nccl, loopback" -- calibrate --on cuda --out "$tmp/x" --comm ib
fails 2 "--on: found no --out" -- calibrate --on cuda
fails 2 "GPU: found 2" "allowed: 0 to 1" -- calibrate --on cuda --out "$tmp/x" --gpu 2
: >"$tmp/file"
fails 2 "--out" "$tmp/file" -- calibrate --on cuda --out "$tmp/file"
fails 2 "--out" "$tmp/file/x" -- calibrate --on cuda --out "$tmp/file/x"
export TSR_STANDIN=gpus=0
fails 1 "no GPU" -- calibrate --on cuda --out "$tmp/x"
finish
