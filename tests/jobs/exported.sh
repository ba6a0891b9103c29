#!/usr/bin/env bash
# Trained on 4 ranks, resumed on 2 with another strategy and exported: a run that begins with the
# exported weights has the held-out loss at which training ended, digit for digit. tests/oracle/export
# compares such models with transformers.
#
# Environment: TESSERA, TSR_SOURCE_DIR.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
recorded=$TSR_SOURCE_DIR/tests/oracle/train/recorded
failures=0

complain() {
    printf '%s\n' "$1"
    failures=$((failures + 1))
}

# experiment FILE MODEL-KEYS: the data and the ranks of the recorded runs
experiment() {
    cat >"$1" <<E
model: {$2}
world: 2
batch: 4
seq: 64
clip: true
precision: {param: none, reduce: none}
optimizer: {name: adamw}
data: {train: $recorded/train.bin, val: $recorded/val.bin}
eval: {every: 1000, batches: 64}
strategies:
  four: {world: 4, batch: 2}
  hsdp: {world: 4, batch: 2, mesh: {replicate: 2, shard: 2}}
  replicate: {api: replicate}
  ddp: {api: ddp}
  offload: {offload: cpu}
E
}

# loss ARGUMENT...: runs, and prints the held-out loss at the end
loss() {
    local out=${!#}
    "$TESSERA" run "$@" >"$tmp/log" 2>&1 || {
        cat "$tmp/log" >&2
        return 1
    }
    sed -n 's/.*"eval_loss": *\([0-9.e-]*\).*/\1/p' "$out/metrics.jsonl" | tail -n 1
}

# trip NAME CONFIG NAMES FIRST SECOND
trip() {
    local first second again
    experiment "$tmp/$1.yaml" "name: $recorded/$2/config.json, names: $3"
    experiment "$tmp/$1-again.yaml" \
        "name: $tmp/$1-model/config.json, weights: $tmp/$1-model, names: $3"
    first=$(loss "$tmp/$1.yaml" --strategy "$4" --on host --set train.steps=10 --out "$tmp/$1")
    second=$(loss "$tmp/$1.yaml" --strategy "$5" --on host --set train.steps=20 --resume "$tmp/$1")
    "$TESSERA" export "$tmp/$1" --out "$tmp/$1-model" >/dev/null
    again=$(loss "$tmp/$1-again.yaml" --strategy "$5" --on host --set train.steps=1 \
        --set train.lr=0 --out "$tmp/$1-again")
    echo "$1: $first, resumed $second, exported $again"
    [ "$first" != "$second" ] || complain "$1: nothing was learnt after the resume"
    [ -n "$again" ] || complain "$1: the exported model has no loss"
    [ "$second" = "$again" ] || complain "$1: another model was exported"
}

trip llama llama hf four ddp
trip llama-torchtitan llama torchtitan hsdp offload
trip gpt2 gpt2 hf four replicate
trip gpt2-plain gpt2 torchtitan four offload

[ "$failures" = 0 ]
