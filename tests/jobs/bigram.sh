#!/usr/bin/env bash
# A model that learns beats a bigram model on held-out text of licences; where the order of the bytes
# says nothing, it does not do better than their frequencies allow.
#
# The short form has batches of 8 instead of 16, two ranks instead of four, and where there is nothing to learn, which shows
# at once, fewer steps.
# Environment: TESSERA, TSR_THOROUGH. Exit status 77: this machine has no licences.
set -euo pipefail
licences=/usr/share/common-licenses
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0
samples=8 lr=0.015 few=60 ranks=2
[ -z "${TSR_THOROUGH:-}" ] || samples=16 lr=0.01 few=200 ranks=4

[ -f "$licences/GPL-3" ] || {
    echo "skipped: no $licences"
    exit 77
}

complain() {
    printf '%s\n' "$1"
    failures=$((failures + 1))
}

# entropy KIND FILE: a line of `tessera corpus`
entropy() {
    sed -n "s/^$1 entropy  *\([0-9.]*\).*/\1/p" "$2"
}

# train NAME RANKS STEPS: prints the held-out loss at the end
train() {
    cat >"$tmp/$1.yaml" <<E
model: model.json
world: $2
batch: $((samples / $2))
seq: 64
clip: true
precision: {param: none, reduce: none}
optimizer: {name: adamw}
train: {steps: $3, lr: $lr, warmup: 20, log_every: 50}
data: {train: $1/train.bin, val: $1/val.bin}
eval: {every: 1000000, batches: 1000}
strategies:
  fsdp: {}
E
    "$TESSERA" run "$tmp/$1.yaml" --strategy fsdp --on host >"$tmp/$1.log" || {
        cat "$tmp/$1.log" >&2
        return 1
    }
    sed -n 's/.*validate step:.*loss:  *\([0-9.]*\).*/\1/p' "$tmp/$1.log"
}

below() { # A B
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && a < b) }'
}

cat >"$tmp/model.json" <<'E'
{"model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": false}
E
"$TESSERA" corpus "$licences" --out "$tmp/plain" >"$tmp/plain.txt" 2>/dev/null
"$TESSERA" corpus "$licences" --out "$tmp/shuffled" --shuffle >"$tmp/shuffled.txt" 2>/dev/null

bigram=$(entropy bigram "$tmp/plain.txt")
loss=$(train plain $ranks 200)
echo "plain: held-out loss $loss, bigram model $bigram"
below "$loss" "$bigram" || complain "the model is not better than a bigram model"

own=$(entropy own "$tmp/shuffled.txt")
loss=$(train shuffled 2 $few)
echo "shuffled: held-out loss $loss, entropy of its own bytes $own"
below "$own" "$loss" || complain "the model knows more of shuffled bytes than there is to know"
below "$loss" 3.5 || complain "the model has not even learnt how often each byte occurs"

[ "$failures" = 0 ]
