# shellcheck shell=bash
# Sourced by the scripts about faults: a small job, ranks that are started by hand, and what must be
# true after a failure. Brings tests/cli/_common.sh, whose words are used, too.
#
#   run ARGUMENT...           tessera run $job --on host --strategy fsdp ARGUMENT...
#   start ARGUMENT...         the same in the background; its process in $started
#   ended STATUS              waits for it, and checks its exit status
#   until_step DIR N          waits until the metrics of DIR have step N; false after a minute
#   losses DIR                step, loss and norm of every step, one a line
#   lines FILE N WORD...      FILE has exactly N lines, and each has every WORD
#   split WORD... -- ARGUMENT...  the WORDs in `words`, the rest in `arguments`
#   loads DIR [STEP]          DIR holds a checkpoint that a run goes on from
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
job=$tmp/job.yaml
cat >"$tmp/tiny.json" <<'J'
{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
 "initializer_range": 0.02, "tie_word_embeddings": false, "hidden_act": "silu"}
J
cat >"$job" <<'Y'
model: tiny.json
world: 2
batch: 1
seq: 16
clip: true
precision: {param: none, reduce: none}
optimizer: {name: adamw, variant: fused}
train: {steps: 8, lr: 0.003, warmup: 2}
checkpoints: {every: 2, keep: 3}
strategies:
  fsdp: {}
  ddp: {api: ddp}
  hsdp: {mesh: {replicate: 2, shard: 2}}
Y
# Ports that two scripts at once are unlikely to share: each may count up from its first one.
export TSR_PORT=$((10000 + $$ * 61 % 9973))

split() {
    words=()
    while [ "$1" != -- ]; do
        words+=("$1")
        shift
    done
    arguments=("${@:2}")
}

run() {
    "$TESSERA" run "$job" --on host --strategy fsdp "$@" </dev/null
}

start() {
    "$TESSERA" run "$job" --on host --strategy fsdp "$@" >"$out" 2>"$err" </dev/null &
    started=$!
}

ended() {
    checks=$((checks + 1))
    wait "$started"
    local got=$?
    [ "$got" = "$1" ] || complain "exit status $got, not $1"
}

until_step() {
    local i
    for ((i = 0; i < 1200; i++)); do
        grep -q "\"step\": $2," "$1/metrics.jsonl" 2>/dev/null && return 0
        sleep 0.05
    done
    complain "$1 never came to step $2"
    return 1
}

losses() {
    sed -nE 's/^\{"step": ([0-9]+), "loss": ([^,]+), "grad_norm": ([^,]+), .*/\1 \2 \3/p' \
        "$1/metrics.jsonl"
}

lines() {
    local file=$1 want=$2 word
    shift 2
    checks=$((checks + 1))
    [ "$(wc -l <"$file")" = "$want" ] || complain "$(wc -l <"$file") lines, not $want"
    for word; do
        [ "$(grep -cF -e "$word" "$file")" = "$want" ] || complain "not \"$word\" in every line"
    done
}

loads() {
    checks=$((checks + 1))
    rm -rf "$tmp/loads"
    run --ranks 1 --set batch=2 --set train.steps=1 --set train.warmup=0 --resume "$1" \
        --out "$tmp/loads" >"$tmp/loads.out" 2>&1 || complain "$1: $(head -n 1 "$tmp/loads.out")"
    [ -z "${2:-}" ] || has "$tmp/loads.out" "step_$(printf %08d "$2"): all 1 steps are done"
}

# flight DIR WORD RANK...: a flight record of each rank, with WORD, its steps' instructions and
# their state.
flight() {
    local dir=$1 word=$2 rank
    shift 2
    for rank; do
        has "$dir/flight-rank-$rank.json" "$word" "\"rank\": $rank" all_gather '"state": "done"' \
            model.layers.1
    done
}
