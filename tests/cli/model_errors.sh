#!/usr/bin/env bash
# Mistakes in model, cluster and device files.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
models=$TSR_SOURCE_DIR/experiments/models
clusters=$TSR_SOURCE_DIR/experiments/clusters

# change NAME FROM TO: a changed copy of llama-3.2-1b.
change() {
    sed "s/$2/$3/" "$models/llama-3.2-1b.json" >"$tmp/$1.json"
}

change type '"llama"' '"mamba"'
fails 2 type.json:5 model_type mamba "llama, mistral, qwen2, qwen3, gpt2" -- inspect "$tmp/type.json"
change missing '"num_attention_heads"' '"heads"'
fails 2 missing.json 'no key "num_attention_heads"' llama -- inspect "$tmp/missing.json"
change zero '"hidden_size": 2048' '"hidden_size": 0'
fails 2 zero.json:6 hidden_size: "found 0" "from 1" -- inspect "$tmp/zero.json"
change negative '"vocab_size": 128256' '"vocab_size": -1'
fails 2 negative.json vocab_size: "found -1" -- inspect "$tmp/negative.json"
change huge '"hidden_size": 2048' '"hidden_size": 99999999999999999999'
fails 2 huge.json hidden_size: 99999999999999999999 -- inspect "$tmp/huge.json"
change large '"num_hidden_layers": 16' '"num_hidden_layers": 1000000000'
sed -i -e 's/"hidden_size": 2048/"hidden_size": 1000000000/' -e 's/"head_dim": 64,//' "$tmp/large.json"
sed -i 's/"num_attention_heads": 32/"num_attention_heads": 8/' "$tmp/large.json"
fails 2 large.json overflow allowed -- inspect "$tmp/large.json"
change heads '"num_key_value_heads": 8' '"num_key_value_heads": 5'
fails 2 heads.json num_attention_heads 32 num_key_value_heads 5 -- inspect "$tmp/heads.json"
change act '"silu"' '"mish"'
fails 2 act.json hidden_act mish silu -- inspect "$tmp/act.json"
change comma '"llama",' '"llama"'
fails 2 comma.json: malformed -- inspect "$tmp/comma.json"
printf '[1, 2]\n' >"$tmp/list.json"
printf 'model: list.json\ncluster: dgx-h100-1\n' >"$tmp/list.yaml"
fails 2 list.json "a JSON object" -- compare "$tmp/list.yaml"

# Mixture of experts: counted, and refused by sim and compare in one line.
for name in mixtral-8x7b qwen3-30b-a3b deepseek-v2-lite deepseek-v3; do
    printf 'model: %s\ncluster: dgx-h100-1\n' "$name" >"$tmp/moe.yaml"
    fails 2 "$name.json" "not modelled" allowed -- compare "$tmp/moe.yaml"
    fails 2 "$name.json" "not modelled" allowed -- sim "$tmp/moe.yaml" --strategy default
    works inspect "$tmp/moe.yaml"
    has "$out" "active per token" "not modelled"
    # Keys of a stack are not what is wrong with it.
    fails 2 "$name.json" "not modelled" allowed -- compare "$tmp/moe.yaml" --set stack=torchtitan-2026
done

# Trees
printf 'model: {tree: t.yaml}\ncluster: dgx-h100-1\n' >"$tmp/tree.yaml"
fails 2 tree.yaml:1 model.tree t.yaml "not there" -- compare "$tmp/tree.yaml"
printf 'tokens: 10\nmodules:\n  - {name: a, type: liner, in: 2, out: 2}\n' >"$tmp/t.yaml"
fails 2 t.yaml:3 a.type liner linear -- compare "$tmp/tree.yaml"
printf 'tokens: 10\nmodules:\n  - {name: a, type: linear, in: 2, outt: 2}\n' >"$tmp/t.yaml"
fails 2 t.yaml:3 '"outt"' '"out"' -- compare "$tmp/tree.yaml"
printf 'tokens: -1\nmodules:\n  - {name: a, type: linear, in: 2, out: 2}\n' >"$tmp/t.yaml"
fails 2 t.yaml:1 tokens -1 -- compare "$tmp/tree.yaml"
printf 'in_dim: 2\nmodules:\n  - {name: a, type: linear, in: 2, out: 2}\n' >"$tmp/t.yaml"
fails 2 tree.yaml:1 model.blocks "pattern of module names" -- compare "$tmp/tree.yaml"

# Device files: a value that the simulation needs and that is unknown.
cp "$clusters"/cluster-dgx-h100-1.json "$clusters"/node-dgx-h100.json "$tmp"
# The device file without its tables, which lie beside it.
fresh() {
    sed '/"kernels": \[/,/\]/d' "$clusters/gpu-h100-sxm5-80g.json" >"$tmp/gpu-h100-sxm5-80g.json"
}
fresh
printf 'model: llama-3.2-1b\ncluster: ./cluster-dgx-h100-1.json\nseq: 128\n' >"$tmp/null.yaml"
gpu=$tmp/gpu-h100-sxm5-80g.json
works compare "$tmp/null.yaml"
sed -i 's/"bandwidth_bytes_per_s": 3350000000000/"bandwidth_bytes_per_s": null/' "$gpu"
fails 2 gpu-h100-sxm5-80g.json bandwidth null -- compare "$tmp/null.yaml"
works inspect "$tmp/null.yaml"
has "$out" '79.20 GiB visible, ?'
fresh
sed -i 's/"visible_bytes": 85040352460/"visible_bytes": null/' "$gpu"
works compare "$tmp/null.yaml"
has "$out" '?'
fails 2 allocator.limit card "null" -- compare "$tmp/null.yaml" --set allocator.limit=card
fresh
sed -i 's/"bf16": 989000000000000/"bf16": -1/' "$gpu"
fails 2 gpu-h100-sxm5-80g.json bf16 -- compare "$tmp/null.yaml"
# What is not beside a file is taken from what is shipped, if it is there.
rm "$gpu"
works compare "$tmp/null.yaml"
sed -i 's/"gpu": "h100-sxm5-80g"/"gpu": "h100-nobody"/' "$tmp/node-dgx-h100.json"
fails 2 node-dgx-h100.json '"gpu"' h100-nobody gpu-NAME.json 'comes with tessera' -- compare "$tmp/null.yaml"
finish
