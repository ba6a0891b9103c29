#!/usr/bin/env bash
# Both dialects train to the same losses: f32 to 1e-6 of each other, whatever is sharded, recomputed
# or accumulated; in bf16 to what bf16 resolves; 20 steps to 1e-4. Every step is checked as it is
# issued, and the fused one holds less memory.
: "${TSR_SOURCE_DIR:?the source tree}"
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh" || exit 1
: "${tmp:?a folder of our own}"

# json NAME FIELDS: a model's config.json.
json() {
    printf '{%s, "vocab_size": 96, "initializer_range": 0.05}\n' "$2" >"$tmp/$1.json"
}
llama='"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu"'
json llama "\"model_type\": \"llama\", \"tie_word_embeddings\": false, $llama"
json qwen2 "\"model_type\": \"qwen2\", \"tie_word_embeddings\": true, $llama"
json qwen3 "\"model_type\": \"qwen3\", \"tie_word_embeddings\": true, \"head_dim\": 8, $llama"
json gpt2 '"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64,
    "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": true'

# experiment MODEL: a file with every strategy, of that model.
experiment() {
    cat >"$tmp/$1.yaml" <<END
title: both dialects
model: $1.json
world: 2
batch: 2
seq: 16
clip: true
precision: {param: none, reduce: none}
optimizer: {name: adamw, variant: fused}
train: {steps: 3, lr: 0.003, warmup: 0}
strategies:
  fsdp: {}
  hsdp: {world: 4, mesh: {replicate: 2, shard: 2}, reshard_after_forward: true}
  ddp: {api: ddp}
  offload: {offload: cpu_pinned, checkpoint: 2}
  checkpoint: {checkpoint: full}
  outside: {checkpoint: {every: 1, hooks: outside}}
  no-early-stop: {checkpoint: {every: 1, early_stop: false}}
  selective: {checkpoint: selective_op}
  accumulation: {accumulation: {steps: 3, mode: no_reduce}}
  chunks: {loss: {chunks: 5}, accumulation: {steps: 2}}
  norms: {wrap: [{modules: ["**norm*", "**ln_*"]}, {modules: ["**.layers.*", "**.h.*"]}, {modules: [""]}]}
  math: {attention: math, gqa_repeat: true}
  hand: {model: {name: $1.json, norm: hand}}
  names: {model: {name: $1.json, names: torchtitan}}
  tp: {world: 4, tp: 2, sequence_parallel: false}
  sequence: {world: 4, tp: 2}
  sgd: {optimizer: {name: sgd}}
  bf16: {precision: {param: bf16, reduce: f32}}
  long: {train: {steps: 20, lr: 0.003, warmup: 0}}
END
}

runs=0
# train MODEL STRATEGY DIALECT: leaves step, loss, norm and bytes of every step in $tmp/DIALECT.
train() {
    ranks=2
    grep -q "^  $2: {world: 4" "$tmp/$1.yaml" && ranks=4
    runs=$((runs + 1))
    works run "$tmp/$1.yaml" --strategy "$2" --on host --ranks $ranks --check --set "dialect=$3" \
        --out "$tmp/run-$runs"
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\), "grad_norm": \([^,]*\),.*"memory_allocated_bytes": \([0-9]*\).*/\1 \2 \3 \4/p' \
        "$tmp/run-$runs/metrics.jsonl" >"$tmp/$3"
}

# compare MODEL STRATEGY TOLERANCE STEPS
compare() {
    train "$1" "$2" eager
    train "$1" "$2" fused
    checks=$((checks + 1))
    paste -d ' ' "$tmp/eager" "$tmp/fused" | awk -v room="$3" -v steps="$4" '
        function off(a, b) { return a > b ? (a - b) / a : (b - a) / b }
        $1 != NR || $5 != NR { bad = 1 }
        off($2, $6) > room || ($3 != "null" && off($3, $7) > 10 * room) { bad = 1 }
        $8 > $4 { bad = 1 }
        END { exit bad || NR != steps }' ||
        complain "$1 $2: eager $(tail -n 1 "$tmp/eager"), fused $(tail -n 1 "$tmp/fused")"
}

for model in llama qwen2 qwen3 gpt2; do
    experiment $model
done
for strategy in fsdp hsdp ddp offload checkpoint outside no-early-stop selective accumulation chunks \
    norms math hand names tp sequence sgd; do
    compare llama $strategy 1e-6 3
done
compare llama bf16 1e-3 3
compare llama long 1e-4 20
for strategy in fsdp selective; do
    compare qwen2 $strategy 1e-6 3
    compare qwen3 $strategy 1e-6 3
done
for strategy in fsdp checkpoint selective chunks norms names; do
    compare gpt2 $strategy 1e-6 3
done
compare gpt2 long 1e-4 20

# Kernels touch what they declare.
works run "$tmp/llama.yaml" --strategy selective --on host --ranks 2 --serial --verify-operands \
    --set dialect=fused --set train.steps=2
works run "$tmp/gpt2.yaml" --strategy chunks --on host --ranks 2 --serial --verify-operands \
    --set seq=32 --set dialect=fused --set train.steps=2

# Attention leaves the gradients of q, k and v side by side; nothing joins them.
for dialect in eager fused; do
    works program "$tmp/gpt2.yaml" --strategy fsdp --set "dialect=$dialect"
    checks=$((checks + 1))
    joins=$(grep -c cat_gradients "$out" || true)
    [ "$((joins > 0))" = "$([ $dialect = eager ] && echo 1 || echo 0)" ] ||
        complain "$dialect: $joins kernels join the gradients of q, k and v"
done

fails 2 'dialect' 'fused' 'transformers' 'eager' -- run "$tmp/llama.yaml" --strategy fsdp --on sim \
    --set dialect=fused --set model.implementation=transformers
fails 2 'dialect' 'fussed' 'eager, fused or compile' -- sim "$tmp/llama.yaml" --strategy fsdp \
    --set dialect=fussed
finish
