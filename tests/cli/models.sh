#!/bin/sh
# Every model of experiments/models: the counts of `inspect` are those of counts.tsv. Dense models
# are built by the engine, which must come to the same number.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
models=$TSR_SOURCE_DIR/experiments/models

# number KEY: the integer of a key in the JSON on stdout.
number() {
    sed -n "s/^ *\"$1\": *\([0-9][0-9]*\),*\$/\1/p" "$out" | head -n 1
}

# shellcheck disable=SC2034 # columns that are not compared
while IFS='	' read -r name type hidden layers heads kv dim ffn vocab tied embed layer dense head norm total active; do
    [ "$name" = model ] && continue
    works inspect "$models/$name.json" --format json
    has "$out" "\"model_type\": \"$type\""
    [ "$dense" = - ] && dense=0
    for pair in "total $total" "active_per_token $active" "layer $layer" "dense_layer $dense" \
        "embedding $embed" "head $head" "final_norm $norm"; do
        key=${pair% *}
        checks=$((checks + 1))
        [ "$(number "$key")" = "${pair#* }" ] || complain "$name: $key is $(number "$key"), not ${pair#* }"
    done
done <"$models/counts.tsv"
[ "$checks" -gt 250 ] || complain "only $checks checks: is counts.tsv there?"

works inspect "$models/llama-3.1-8b.json"
has "$out" 8,030,261,248 "embed_tokens"
works inspect "$TSR_SOURCE_DIR/experiments/clusters/cluster-gb200-nvl72.json"
has "$out" "72 GPUs" "memory ? visible"
finish
