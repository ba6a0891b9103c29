#!/usr/bin/env bash
# Optimizer steps of each parameter: one that never gets a gradient is saved without states, as
# PyTorch does, and one that gets none in some steps counts its own. Runs that go on from a
# checkpoint end as an undisturbed one, byte for byte; foreach, fused and loop compute the same.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
cat >"$tmp/tree.yaml" <<'Y'
tokens: 50
loss: ce
modules:
  - {name: embed, type: embedding, num: 50, dim: 8}
  - name: body
    type: seq
    children:
      - {name: a, type: linear, in: 8, out: 8}
      - {name: late, type: linear, in: 8, out: 8}
      - {name: spare, type: linear, in: 8, out: 8}
    run: [a, late]
    run_at: {"0": [a], "1": [a], "3": [a], "4": [a], "7": [a]}
  - {name: head, type: linear, in: 8, out: 50}
Y
cat >"$job" <<'Y'
model: {tree: tree.yaml}
world: 2
batch: 2
seq: 8
precision: {param: none, reduce: none}
train: {steps: 10, lr: 0.01, schedule: constant}
checkpoints: {every: 5}
wrap: root
optimizer: {name: adamw}
strategies:
  foreach: {}
  replicate: {api: replicate}
  fused: {optimizer: {variant: fused}}
  loop: {optimizer: {variant: loop}}
  momentum: {optimizer: {name: sgd}}
  sgd: {optimizer: {name: sgd, momentum: false}}
Y

# train STRATEGY DIR ARGUMENT...
train() {
    works run "$job" --on host --ranks 2 --strategy "$1" --out "$2" "${@:3}"
}

# steps FILE: "NAME STEPS" of every parameter; "-": it has no states
steps() {
    tr -d ' \n' <"$1" | grep -oE '"fqn":"[^"]*"[^}]*' |
        sed -E 's/^"fqn":"([^"]*)".*"optimizer_step":([0-9]+).*/\1 \2/;
                s/^"fqn":"([^"]*)".*"stateless":true.*/\1 -/'
}

cat >"$tmp/steps" <<'S'
embed.weight 10
body.a.weight 10
body.a.bias 10
body.late.weight 5
body.late.bias 5
body.spare.weight -
body.spare.bias -
head.weight 10
head.bias 10
S
for strategy in foreach replicate fused loop momentum sgd; do
    whole=$tmp/$strategy
    train "$strategy" "$whole"
    steps "$whole/checkpoints/step_00000010/meta.json" >"$tmp/got"
    same "$tmp/steps" "$tmp/got"
    train "$strategy" "$tmp/parts" --set train.steps=5
    works run "$job" --on host --ranks 2 --strategy "$strategy" --resume "$tmp/parts"
    checks=$((checks + 1))
    diff -r "$whole/checkpoints/step_00000010" "$tmp/parts/checkpoints/step_00000010" >"$tmp/diff" ||
        complain "$strategy: resumed: $(head -n 1 "$tmp/diff")"
    rm -r "$tmp/parts"
done
losses "$tmp/foreach" >"$tmp/want"
for strategy in fused loop; do
    losses "$tmp/$strategy" >"$tmp/got"
    same "$tmp/want" "$tmp/got"
done
finish
