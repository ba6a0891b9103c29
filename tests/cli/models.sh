#!/usr/bin/env bash
# Every model of experiments/models: the counts of `inspect` are those of counts.tsv. Dense models
# are built by the engine, which must come to the same number.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
models=$TSR_SOURCE_DIR/experiments/models

# number KEY: $got is the integer of a key in the JSON on stdout, its first.
number() {
    got=
    [[ $(<"$out") =~ $newline\ *\"$1\":\ *([0-9]+),?$newline ]] && got=${BASH_REMATCH[1]}
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
        number "$key"
        [ "$got" = "${pair#* }" ] || complain "$name: $key is $got, not ${pair#* }"
    done
done <"$models/counts.tsv"
[ "$checks" -gt 250 ] || complain "only $checks checks: is counts.tsv there?"

works inspect "$models/llama-3.1-8b.json"
has "$out" 8,030,261,248 "embed_tokens"
works inspect "$TSR_SOURCE_DIR/experiments/clusters/cluster-gb200-nvl72.json"
has "$out" "72 GPUs" "memory ? visible"

# Of tensor-parallel ranks a tree is one's, and counts as the whole model does.
for change in tp=2 tp=8 "tp=4 --set model=qwen3-8b" "tp=2 --set model=qwen2.5-32b"; do
    # shellcheck disable=SC2086
    works inspect "$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml" --only fsdp --set $change
    has "$out" "of one of" "tensor-parallel ranks)" ": tensor-parallel)"
done

# A folder as Hugging Face lays it down is a model, by path and by name.
mkdir -p "$tmp/Own-1B"
cp "$models/llama-3.2-1b.json" "$tmp/Own-1B/config.json"
printf 'model: Own-1B\ncluster: dgx-h100-1\nseq: 128\n' >"$tmp/own.yaml"
works compare "$tmp/own.yaml"
has "$out" "Own-1B on dgx-h100-1"
works compare "$tmp/own.yaml" --set model="$tmp/Own-1B/"
has "$out" "Own-1B on dgx-h100-1"
works inspect "$tmp/Own-1B"
has "$out" "Model Own-1B (llama)"
mkdir "$tmp/empty"
fails 2 "$tmp/empty" directory -- compare "$tmp/own.yaml" --set model="$tmp/empty"
fails 2 "$tmp/empty/config.json" "No such file" -- inspect "$tmp/empty"
fails 2 Own-2B "which is in no folder models/" -- compare "$tmp/own.yaml" --set model=Own-2B
finish
