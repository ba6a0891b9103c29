#!/usr/bin/env bash
# --print-config is complete and reads back as the same; --set reaches every key.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
experiments=$TSR_SOURCE_DIR/experiments

# round FILE [option...]: prints, prints the print, and compares.
round() {
    works compare "$@" --print-config
    cp "$out" "$tmp/first.yaml"
    works compare "$tmp/first.yaml" --print-config
    cp "$out" "$tmp/second.yaml"
    same "$tmp/first.yaml" "$tmp/second.yaml"
}

for file in "$experiments"/flagship/*.yaml "$experiments"/*/compare.yaml; do
    round "$file"
    lines=$(grep -c . "$tmp/first.yaml")
    [ "$lines" -gt 60 ] || complain "$file: only $lines lines: not complete"
done
cat >"$tmp/e.yaml" <<'Y'
title: 'quotes " and # and: colons'
model: {name: llama-3.2-1b, blocks: "model.layers.*"}
cluster: dgx-h100-superpod-su
world: 16
seq: 128
sim: {host_launch_us: 7.3, slow_factor: 1.2}
strategies:
  a: &a {description: "true"}
  b: {<<: *a, mesh: {replicate: 2}, reshard_after_forward: 4}
  own:
    wrap:
      - {modules: ["model.layers.*"], reshard_after_forward: false}
      - {modules: [model.norm, lm_head], group: true}
      - modules: ""
sweeps:
  batch: [1, 2]
  mesh: [null, [2, 8], {shard: 16}]
  precision.reduce: [bf16, float32]
Y
round "$tmp/e.yaml"
has "$tmp/first.yaml" 'a@batch=1@mesh=null@reduce=bf16:' 'own@batch=2@mesh=shard16@reduce=float32:' \
    'slow_factor: 1.2' 'host_launch_us: 7.3'

# The reference: f64 by any of its names, beside nothing that is rounded to less.
small=$TSR_SOURCE_DIR/tests/exec/strategies.yaml
round "$small" --only f64 --set strategies.f64.precision.master=float64
has "$tmp/first.yaml" 'master: f64'
fails 2 '--set' 'precision.param: found bf16 beside precision.master: f64; allowed: none' -- \
    compare "$small" --only f64 --set precision.param=bf16
fails 2 'dialect: found compile beside precision.master: f64; allowed: eager or fused' -- \
    compare "$small" --only f64 --set dialect=compile
works compare "$small" --only f64,fsdp
works check "$small" --strategy f64
has "$out" 'nothing found'
# A card whose rate in f64 nobody gave has no time for it.
fails 2 'peak_dense_flop_per_s.fp64' -- sim "$small" --strategy f64 --set cluster=pcie-l40s-8

# The table of the printed file is that of the file.
works compare "$experiments/gpt2-xl-a100/compare.yaml" --print-config --only fsdp,ddp
cp "$out" "$tmp/printed.yaml"
works compare "$tmp/printed.yaml"
grep '^|' "$out" >"$tmp/a.md"
works compare "$experiments/gpt2-xl-a100/compare.yaml" --only fsdp,ddp
grep '^|' "$out" >"$tmp/b.md"
same "$tmp/a.md" "$tmp/b.md"

# --set: plain keys, mappings, strategies, whole mappings, words, shorthands
f=$experiments/flagship/dgx-h100-8.yaml
works compare "$f" --print-config --set batch=3 --set precision.param=f16 --set model=gpt2 \
    --set 'mesh={replicate: 4}' --set strategies.fsdp.seq=77 --set 'strategies.ddp={api: replicate}' \
    --set checkpoint=full --set optimizer.name=sgd --set sim.fold=false --set 'title=a b'
has "$out" 'batch: 3' 'param: f16' 'name: gpt2' 'replicate: 4' 'seq: 77' 'api: replicate' \
    'every: full' 'name: sgd' 'fold: false' 'title: "a b"'
# A later one wins, and the last of a --set of a whole mapping too.
works compare "$f" --print-config --set batch=3 --set batch=4
has "$out" 'batch: 4'
works compare "$f" --print-config --set model.blocks=x.*
has "$out" 'name: llama-3.1-8b' 'blocks: "x.*"'
finish
