#!/usr/bin/env bash
# dialects: compiled blocks and fp8 are simulated, checked, and refused where they do not run.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

cat >"$tmp/a.yaml" <<'YAML'
title: dialects
model: {name: llama-3.2-1b, names: torchtitan}
cluster: dgx-h100-1
world: 2
seq: 512
checkpoint: selective_op
strategies:
  eager: {}
  compiled: {dialect: compile}
  fp8: {dialect: compile, precision: {linear: fp8_tensorwise}}
  fp8-gather: {dialect: compile, precision: {linear: fp8_tensorwise, fp8_gather: true}}
  delayed: {precision: {linear: fp8_delayed}}
  flat: {dialect: compile, api: fsdp1}
YAML

# Every one is simulated, and the checker finds nothing in its program.
works compare "$tmp/a.yaml"
has "$out" compiled fp8-gather delayed
works check "$tmp/a.yaml"
checks=$((checks + 1))
[ "$(grep -c 'nothing found' "$out")" = 6 ] || complain "check found something"

# Gradients of all weights, also where parameters are views of a flat one.
for strategy in eager compiled fp8 delayed flat; do
    works program "$tmp/a.yaml" --strategy $strategy
    checks=$((checks + 1))
    [ "$(grep -c 'mm_weight_grad' "$out")" = $((16 * 7 + 1)) ] || complain "$strategy: products"
done

# Fewer launches, and a host that is the limit is done earlier.
works program "$tmp/a.yaml" --strategy compiled
has "$out" "norm:add+rms_norm" "pointwise:silu+mul+silu_backward"
step() { awk -F'|' -v name="$1" '{ gsub(/[ *+]/, "", $2) } $2 == name && !seen++ { print $3 + 0 }' "$out"; }
works compare "$tmp/a.yaml" --set sim.host_launch_us=100 --set sim.host_compiled_us=10 --out "$tmp/b" --pictures none
checks=$((checks + 1))
awk "BEGIN { exit !($(step compiled b) < 0.6 * $(step eager b)) }" ||
    complain "compiled: $(step compiled b) ms, eager $(step eager b) ms"

# The host has no such kernels.
# Norms of heads: so many rows that eager PyTorch sums them in two kernels, and Inductor in its own way.
cat >"$tmp/heads.yaml" <<'Y'
model: {name: qwen3-0.6b, layers: 1}
cluster: dgx-h100-1
seq: 8192
strategies: {eager: {}, compiled: {dialect: compile}, full: {dialect: compile, checkpoint: full}}
Y
works compare "$tmp/heads.yaml"
has "$out" "| compiled" "| full"
works check "$tmp/heads.yaml"
has "$out" "nothing found"

fails 2 "--format: found json with --on host" -- run "$tmp/a.yaml" --strategy compiled --on host --format json
fails 2 dialect compile "eager or fused" -- run "$tmp/a.yaml" --strategy compiled --on host --out "$tmp/r"
fails 2 precision.linear fp8_delayed plain -- run "$tmp/a.yaml" --strategy delayed --on host --out "$tmp/r"

# What does not go together is refused by its key.
fails 2 precision.linear fp8_tensorwise "dialect: compile" -- \
    sim "$tmp/a.yaml" --strategy eager --set precision.linear=fp8_tensorwise
fails 2 precision.linear fp8_delayed "dialect: compile" -- \
    sim "$tmp/a.yaml" --strategy delayed --set dialect=compile --set strategies.delayed.dialect=compile
fails 2 precision.fp8_gather fp8_tensorwise -- \
    sim "$tmp/a.yaml" --strategy compiled --set precision.fp8_gather=true
fails 2 precision.linear "fp8_tensorwise beside tp: 2" plain -- sim "$tmp/a.yaml" --strategy fp8 --set tp=2 --set world=4

# What is compiled: blocks, the loss, or both, by the list or by the stack of a compiled strategy.
works program "$tmp/a.yaml" --strategy compiled --set 'compile.components=[model, loss]'
has "$out" "norm:add+rms_norm" "loss:compiled_log_sum_exp" "loss:compiled_cross_entropy_backward"
works program "$tmp/a.yaml" --strategy compiled --set 'compile.components=[loss]'
has "$out" "loss:compiled_nll" "pointwise:silu "
works program "$tmp/a.yaml" --strategy compiled --set stack=torchtitan-2026
has "$out" "norm:add+rms_norm" "loss:compiled_nll"
works program "$tmp/a.yaml" --strategy eager --set stack=torchtitan-2026
has "$out" "loss:nll_loss"
works compare "$tmp/a.yaml" --only eager --set stack=torchtitan-2026 --print-config
has "$out" "components: [model]"
works compare "$tmp/a.yaml" --only eager --set stack=torchtitan-2026 --set 'model={name: llama-3.1-8b, layers: 1}'
[ ! -s "$err" ] || complain "a remark on what a stack compiles, of a strategy that compiles nothing"
peak() { sed -n 's/.*"peak_allocated_bytes": \([0-9]*\).*/\1/p' "$out" | head -1; }
works compare "$tmp/a.yaml" --only compiled --set seq=8192 --format json
eager_loss=$(peak)
works compare "$tmp/a.yaml" --only compiled --set seq=8192 --set 'compile.components=[model, loss]' --format json
checks=$((checks + 1))
[ $((1000 * (eager_loss - $(peak)) / (8 * 8192 * 128256))) = 999 ] || # but for what each token keeps
    complain "peaks of $eager_loss and $(peak) do not differ by 8 bytes a logit"
fails 2 compile.components "found null" "a list of model or loss" -- \
    sim "$tmp/a.yaml" --strategy compiled --set compile.components=null
fails 2 compile.components "found [loss, model]" "in this order" -- \
    sim "$tmp/a.yaml" --strategy compiled --set 'compile.components=[loss, model]'
fails 2 "compile.components: found [model, loss] beside loss.kernel: flash_attn" "loss.kernel: eager" -- \
    sim "$tmp/a.yaml" --strategy compiled --set 'compile.components=[model, loss]' --set loss.kernel=flash_attn
fails 2 "fp8_tensorwise beside compile.components: [loss]" "with model" -- \
    sim "$tmp/a.yaml" --strategy fp8 --set 'compile.components=[loss]'
printf 'cluster: dgx-h100-1\nmodel: {tree: {in_dim: 8, loss: mse, modules: [{name: a, type: linear, in: 8, out: 8}]}}\n' \
    >"$tmp/mse.yaml"
fails 2 "compile.components: found [model, loss] beside model.tree" "cross_entropy" -- \
    compare "$tmp/mse.yaml" --set dialect=compile --set 'compile.components=[model, loss]'

untied="--set model.name=llama-3.1-8b --set model.layers=2"
# Compiled blocks beside tensor parallelism run neither the fused kernels nor those of eager PyTorch.
for dialect in eager fused compile; do
    # shellcheck disable=SC2086
    works sim "$tmp/a.yaml" --strategy eager --set dialect=$dialect $untied --set tp=2 --set world=4 --format csv
    [ -s "$err" ] && complain "a remark on dialect: $dialect beside tp: $(cat "$err")"
    cp "$out" "$tmp/$dialect"
done
cmp -s "$tmp/compile" "$tmp/eager" && complain "tp: compiled blocks are eager ones"
cmp -s "$tmp/compile" "$tmp/fused" && complain "tp: compiled blocks are fused ones"
fails 2 dialect eagre eager fused compile -- sim "$tmp/a.yaml" --strategy eager --set dialect=eagre
finish
