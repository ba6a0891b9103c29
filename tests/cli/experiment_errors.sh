#!/usr/bin/env bash
# Mistakes in an experiment file: exit status 2 and one line that names the place, the key, what was
# found and what is allowed.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

base=$tmp/base.yaml
cat >"$base" <<'Y'
title: base
model: llama-3.2-1b
cluster: dgx-h100-1
seq: 128
strategies:
  fsdp: {}
  int: {reshard_after_forward: 4}
Y

# with NAME 'LINES': a copy of the base with lines added at the top.
with() {
    printf '%s\n' "$2" >"$tmp/$1.yaml"
    cat "$base" >>"$tmp/$1.yaml"
}

# Files
fails 2 nofile.yaml "No such file" -- compare "$tmp/nofile.yaml"
fails 2 "Is a directory" -- compare "$tmp"
fails 2 "allowed: a mapping" -- compare /dev/null
printf 'model: [1, 2\nseq: 3\n' >"$tmp/open.yaml"
fails 2 open.yaml: malformed -- compare "$tmp/open.yaml"
printf 'model: x\nmodel: y\n' >"$tmp/twice.yaml"
fails 2 twice.yaml:2 key -- compare "$tmp/twice.yaml"
printf 'a: 1\n---\nb: 2\n' >"$tmp/two.yaml"
fails 2 two.yaml "more than one" -- compare "$tmp/two.yaml"
head -c 300 /dev/zero >"$tmp/zero.yaml"
fails 2 zero.yaml "binary" -- compare "$tmp/zero.yaml"
printf '{"model": "llama-3.2-1b", }x' >"$tmp/bad.json"
fails 2 bad.json:1 malformed -- compare "$tmp/bad.json"

# Unknown keys
with key 'bacth: 2'
fails 2 key.yaml:1 '"bacth"' 'nearest: "batch"' -- compare "$tmp/key.yaml"
with nested 'precision: {parm: bf16}'
fails 2 nested.yaml:1 precision.parm precision.param "allowed: master, param" -- compare "$tmp/nested.yaml"
with bare 'reduce: bf16'
fails 2 bare.yaml:1 '"reduce"' precision.reduce -- compare "$tmp/bare.yaml"
sed 's/fsdp: {}/fsdp: {warp: root}/' "$base" >"$tmp/strategy.yaml"
fails 2 strategy.yaml:6 strategies.fsdp.warp 'nearest: "wrap"' -- compare "$tmp/strategy.yaml"
with sweep 'sweeps: {bath: [1, 2]}'
fails 2 sweep.yaml:1 '"bath"' batch -- compare "$tmp/sweep.yaml"

with again 'sweeps: {batch: [1, 2, 1]}'
fails 2 again.yaml:1 "sweeps: found two strategies called fsdp@batch=1" "allowed: values that differ" -- compare "$tmp/again.yaml"

# Values: zero, negative, fraction, text, overflow, null, wrong kind
for value in 0 -3 1.5 1e3 many 99999999999999999999 null '[1]' '"2"'; do
    with value "batch: $value"
    fails 2 value.yaml:1 batch: "allowed: an integer from 1 to" -- compare "$tmp/value.yaml"
done
with big 'batch: 1048576
accumulation: {steps: 64}'
sed 's/seq: 128/seq: 16777216/' "$tmp/big.yaml" >"$tmp/big2.yaml"
fails 2 big2.yaml: overflow 1048576 16777216 allowed -- compare "$tmp/big2.yaml"
with world 'world: -8'
fails 2 world.yaml:1 world: -8 allowed -- compare "$tmp/world.yaml"
with bool 'clip: yes'
fails 2 bool.yaml:1 clip: yes "true or false" -- compare "$tmp/bool.yaml"
with dtype 'precision: {param: fp9}'
fails 2 dtype.yaml:1 precision.param fp9 "none, f32, bf16 or f16" -- compare "$tmp/dtype.yaml"
with scalar 'precision: bf16'
fails 2 scalar.yaml:1 precision bf16 "allowed: a mapping with keys" -- compare "$tmp/scalar.yaml"
with number 'sim: {link_efficiency: 2}'
fails 2 number.yaml:1 sim.link_efficiency 2 "0 to 1" -- compare "$tmp/number.yaml"
with reshard 'reshard_after_forward: 0'
fails 2 reshard.yaml:1 reshard_after_forward 0 "null, true, false" -- compare "$tmp/reshard.yaml"
with wrap 'wrap: [{module: x}]'
fails 2 wrap.yaml:1 module modules -- compare "$tmp/wrap.yaml"
# A group of several modules, as Accelerate and torchtitan make it, needs a wrapped module around it.
with tail 'wrap: [{modules: ["model.layers.*"]}, {modules: [model.norm, lm_head], group: true, reshard_after_forward: false}]'
fails 2 tail.yaml:1 "a group of 2 modules, model.norm and others" "{modules: [\"\"]}" -- compare "$tmp/tail.yaml"
with tailed 'wrap: [{modules: ["model.layers.*"]}, {modules: [model.norm, lm_head], group: true, reshard_after_forward: false}, {modules: [""]}]'
works compare "$tmp/tailed.yaml"
with pattern 'wrap: [{modules: ["nothing.*"]}]'
fails 2 pattern.yaml:1 "nothing.*" "matches no module" -- compare "$tmp/pattern.yaml"

# Every key that takes patterns, with one that names nothing: KEY, a line of the tree, keys of the
# experiment, what is found, the nearest name. A pattern with * may lack its modules beside others of
# its entry: such a list is for several models.
cat >"$tmp/dead.tree" <<'Y'
tokens: 10
modules:
  - {name: emb, type: embedding, num: 10, dim: 4}
  - {name: blocks, type: list, children: [{name: "0", type: linear, in: 4, out: 4}, {name: "1", type: linear, in: 4, out: 4}]}
  - {name: out, type: linear, in: 4, out: 10}
Y
pattern_in() { # TREE EXPERIMENT
    (cat "$tmp/dead.tree" && printf '%s\n' "$1") >"$tmp/dead_tree.yaml"
    printf 'model: {tree: dead_tree.yaml%b\ncluster: dgx-h100-1\nworld: 8\nseq: 4\n' "$2" >"$tmp/dead.yaml"
}
while IFS='|' read -r key tree keys found near; do
    pattern_in "$tree" "$keys"
    if [ "$found" ]; then
        fails 2 "dead" ".yaml:" "$key: found $found, which matches no" "$near" allowed -- check "$tmp/dead.yaml"
    else
        works check "$tmp/dead.yaml"
    fi
done <<'TABLE'
frozen|frozen: ["embb.**"]|}|embb.**|nearest: emb.weight
frozen|frozen: ["emb.**", "block.0.weight"]|}|block.0.weight|nearest: blocks.0.weight
frozen|frozen: ["emb.**", "blocks.*.weight"]|, blocks: "blocks.*"}||
param_dtypes|param_dtypes: [["out.**", bf16], [outt, bf16]]|}|outt|nearest: out.bias
param_dtypes|param_dtypes: [["blocks.**", bf16]]|, blocks: "blocks.*"}||
model.blocks||, blocks: "layers.*"}|layers.*|like
wrap.modules||}\nwrap: [{modules: ["layers.*"]}, {modules: [""]}]|layers.*|nearest: blocks.0
wrap.modules||}\nwrap: [{modules: [embb, "blocks.*"]}, {modules: [""]}]|embb|nearest: emb
wrap.modules||}\nwrap: [{modules: ["layers.*", "blocks.*"]}, {modules: [""]}]||
TABLE
with empty 'sweeps: {batch: []}'
fails 2 empty.yaml:1 sweeps.batch "allowed: a list" -- compare "$tmp/empty.yaml"

# Mesh and world
with mesh 'world: 8
mesh: [3, 4]'
fails 2 mesh.yaml:2 mesh 12 "product of 8" -- compare "$tmp/mesh.yaml"
with parts 'world: 8
mesh: {replicate: 3}'
fails 2 parts.yaml:2 mesh 3 8 -- compare "$tmp/parts.yaml"
with both 'mesh: {shape: [8], shard: 8}'
fails 2 both.yaml:1 mesh -- compare "$tmp/both.yaml"
with many 'world: 16'
fails 2 many.yaml:1 world 16 "1 to 8" dgx-h100-1 -- compare "$tmp/many.yaml"
sed 's/forward: 4/forward: 3/' "$base" >"$tmp/int.yaml"
fails 2 int.yaml:7 reshard_after_forward "found 3" "divisor of 8" int -- compare "$tmp/int.yaml"

# Names
with model 'x: 1'
sed -e 1d -e 's/llama-3.2-1b/llama-3-1b/' "$tmp/model.yaml" >"$tmp/name.yaml"
fails 2 name.yaml:2 model: llama-3-1b "nearest: llama-3.2-1b" -- compare "$tmp/name.yaml"
sed 's/dgx-h100-1/dgx-h10/' "$base" >"$tmp/cluster.yaml"
fails 2 cluster.yaml:3 cluster: dgx-h10 "nearest: dgx-h100" -- compare "$tmp/cluster.yaml"
sed '/^model/d' "$base" >"$tmp/nomodel.yaml"
fails 2 nomodel.yaml 'no key "model"' allowed -- compare "$tmp/nomodel.yaml"
sed '/^cluster/d' "$base" >"$tmp/nocluster.yaml"
fails 2 nocluster.yaml 'no key "cluster"' allowed -- compare "$tmp/nocluster.yaml"
sed 's/fsdp:/"a b":/' "$base" >"$tmp/blank.yaml"
fails 2 blank.yaml:6 '"a b"' allowed -- compare "$tmp/blank.yaml"
fails 2 base.yaml --only nothing "allowed: fsdp, int" -- compare "$base" --only nothing
fails 2 base.yaml --strategy fsd 'nearest strategy: "fsdp"' -- sim "$base" --strategy fsd
fails 2 base.yaml --strategy "none given" fsdp -- sim "$base"

# --set
fails 2 "--set batch=0" batch allowed -- compare "$base" --set batch=0
# A list or a mapping in the wrong place is shown, abbreviated where it is long, and never inside a letter.
fails 2 "batch: found [1, {a: [2, x y], b: ''}, null]; allowed" -- compare "$base" --set 'batch=[1, {a: [2, "x y"], b: ""}, null]'
fails 2 'batch: found []; allowed' -- compare "$base" --set 'batch=[]'
fails 2 'batch: found [1, 2, 3, ' ' 21, ...; allowed' -- compare "$base" --set "batch=[$(seq -s, 1 60)]"
for first in '' a; do
    fails 2 "batch: found [${first}ééé" 'é...' -- compare "$base" --set "batch=[$first$(printf 'é%.0s' $(seq 60))]"
    iconv -f utf8 -t utf16 "$err" >"$out" 2>&1 || complain "a letter is cut"
done
fails 2 "--set batch" KEY=VALUE -- compare "$base" --set batch
fails 2 "--set bath=2" batch -- compare "$base" --set bath=2
fails 2 "--set strategies.fdsp.batch=2" "allowed: fsdp or int" -- compare "$base" --set strategies.fdsp.batch=2
fails 2 "--set batch=[1" malformed -- compare "$base" --set 'batch=[1'

# Layers without a module that contains them: the first prefetches what has not been set up
fails 2 base.yaml model.layers.1 "before its own first forward" "wrap a module that contains both" -- \
    compare "$base" --only fsdp --set seq=64 --set forward_prefetch=1 --set 'wrap=[{modules: ["model.layers.*"]}]'
works compare "$base" --only fsdp --set seq=64 --set precision.param=none --set backward_prefetch=1 --set 'wrap=[{modules: ["model.layers.*"]}]'
# Only the layers compute in bf16: the head gets bf16 from a norm that keeps it, and has weights in f32.
fails 2 base.yaml "same dtype" "bf16 != f32" -- compare "$base" --only fsdp --set seq=64 --set 'wrap=[{modules: ["model.layers.*"]}]'
# Variants of a model, and what does not go together
with impl 'model.implementation: huggingface'
fails 2 impl.yaml:1 model.implementation huggingface "plain or transformers" -- compare "$tmp/impl.yaml"
with names 'model.names: torch'
fails 2 names.yaml:1 model.names "hf or torchtitan" -- compare "$tmp/names.yaml"
with norm 'model.norm: rms'
fails 2 norm.yaml:1 model.norm "kernel or hand" -- compare "$tmp/norm.yaml"
with packed 'model.packed: 3'
fails 2 packed.yaml:1 model.packed "true or false" -- compare "$tmp/packed.yaml"
fails 2 model.packed plain "allowed: false" -- compare "$base" --set model.packed=true
fails 2 model.names transformers "allowed: hf" -- compare "$base" --set model.names=torchtitan \
    --set model.implementation=transformers
fails 2 model.norm "model gpt2" "Llama family" -- compare "$base" --set model=gpt2 --set model.norm=hand
for value in implementation=transformers names=torchtitan norm=hand packed=true; do
    fails 2 "model.$value" "model.${value%=*}: found ${value#*=}" "allowed: " -- \
        compare "$TSR_SOURCE_DIR/experiments/own-model/compare.yaml" --set "model.$value"
    fails 2 "model.${value%=*}: found ${value#*=}" "allowed: " -- \
        inspect "$base" --only fsdp --set model=mixtral-8x7b --set "model.$value"
done
fails 2 "tp: found 2" llama-3.2-1b "its embedding" "allowed: 1" -- compare "$base" --only fsdp --set tp=2 --set model=llama-3.2-1b
fails 2 "tp: found 2" transformers "allowed: 1" -- compare "$base" --only fsdp --set tp=2 \
    --set model.implementation=transformers
for value in 0 -1 1.5 many null; do
    fails 2 loss.chunks "allowed: an integer from 1 to" -- compare "$base" --set loss.chunks=$value
done
fails 2 "loss.chunks: found 129" "1 to 128" -- compare "$base" --set loss.chunks=129
fails 2 "loss.chunks: found 2" "tp: 2" "allowed: 1" -- compare "$base" --only fsdp --set tp=2 --set loss.chunks=2 --set model=llama-3.1-8b
fails 2 "loss.chunks: found 2" "allowed: 1" -- \
    compare "$TSR_SOURCE_DIR/experiments/own-model/compare.yaml" --set loss.chunks=2
fails 2 optimizer.state f16 "master, f32 or bf16" -- compare "$base" --set optimizer.state=f16
fails 2 checkpoint selective "none, full or selective_op" -- compare "$base" --set checkpoint=selective
fails 2 checkpoint.first "from 1" null -- compare "$base" --set checkpoint.first=0
fails 2 "checkpoint.hooks: found outside" selective_op "allowed: inside" -- \
    compare "$base" --set checkpoint=selective_op --set checkpoint.hooks=outside
fails 2 "checkpoint.early_stop: found false" selective_op "allowed: true" -- \
    compare "$base" --set checkpoint=selective_op --set checkpoint.early_stop=false
fails 2 loss.chunk 'nearest: "loss.chunks"' -- compare "$base" --set loss.chunk=2

# Positions of a learned table
fails 2 seq 4096 1024 gpt2 -- compare "$base" --set model=gpt2 --set seq=4096
fails 2 /nowhere "cannot be read" -- corpus /nowhere --out "$tmp/corpus"

# A trace has the attention kernel that it was made with: another one is a mistake in the strategy, a remark above it.
trace=$TSR_SOURCE_DIR/tests/golden-bridge/bert-tiny-8ranks-reshard2.trace
printf 'model: {trace: %s}\ncluster: dgx-h100-1\nworld: 2\nattention: math\nstrategies: {head: {}, own: {attention: efficient}, same: {attention: flash}}\n' \
    "$trace" >"$tmp/traced.yaml"
fails 2 traced.yaml:5 "attention: found efficient" "does not read; allowed: flash" -- compare "$tmp/traced.yaml" --only own
works compare "$tmp/traced.yaml" --only same
[ -s "$err" ] && complain "a remark on the kernel of the trace"
works compare "$tmp/traced.yaml" --only head
has "$err" "note: model bert-tiny-8ranks-reshard2 does not read attention, but for flash"
finish
