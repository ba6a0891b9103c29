#!/usr/bin/env bash
# Module trees of one's own: modules that do not fit each other, repetition, attention to all keys, SwiGLU,
# operations that are only priced. A ViT-L against sums worked by hand.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
own=$TSR_SOURCE_DIR/experiments/own-model

# tree FILE MODULE...: a tree of these modules behind an embedding 256 -> 32, and an experiment FILE.yaml.
tree() {
    name=$1
    shift
    {
        printf 'tokens: 256\nmodules:\n  - {name: embed, type: embedding, num: 256, dim: 32}\n'
        printf '  - %s\n' "$@"
    } >"$tmp/$name.tree"
    printf 'model: {tree: %s.tree}\ncluster: dgx-h100-1\nworld: 2\nseq: 16\ntrain: {steps: 3}\n' "$name" >"$tmp/$name.yaml"
}
head='{name: head, type: linear, in: 32, out: 256}'

# ---- every edge ----------------------------------------------------------------------------------

# unfit MODULE... -- WORD...
unfit() {
    n=0
    for word; do
        [ "$word" = -- ] && break
        n=$((n + 1))
    done
    modules=$(printf '%s\n' "$@" | head -n $n)
    shift $((n + 1))
    {
        printf 'tokens: 256\nmodules:\n  - {name: embed, type: embedding, num: 256, dim: 32}\n'
        printf '%s\n' "$modules" | sed 's/^/  - /'
    } >"$tmp/unfit.tree"
    printf 'model: {tree: unfit.tree}\ncluster: dgx-h100-1\nworld: 2\nseq: 16\n' >"$tmp/unfit.yaml"
    fails 2 "$@" -- compare "$tmp/unfit.yaml"
}
pair='{name: up, type: linear, in: 32, out: 1023}, {name: down, type: linear, in: 1024, out: 32}'
unfit "{name: mlp, type: seq, residual: true, children: [$pair]}" "$head" -- \
    "unfit.tree:4" "module 'mlp.down' takes a width of 1024, but 'mlp.up' gives 1023"
for command in inspect check explain overlap plan sim program goodput run 'run --on host'; do
    # shellcheck disable=SC2086
    fails 2 "'mlp.down' takes a width of 1024" "'mlp.up' gives 1023" -- $command "$tmp/unfit.yaml"
done
unfit '{name: a, type: linear, in: 31, out: 32}' "$head" -- "'a' takes a width of 31, but 'embed' gives 32"
unfit '{name: n, type: layernorm, dim: 33}' "$head" -- "'n' takes a width of 33, but 'embed' gives 32"
unfit '{name: a, type: attention, heads: 2, head_dim: 8}' "$head" -- "'a' takes a width of 48" "'embed' gives 32"
unfit '{name: b, type: seq, residual: true, children: [{name: u, type: linear, in: 32, out: 64}]}' "$head" -- \
    "'b' adds its result to its input, but 'embed' gives a width of 32 and 'b.u' 64"
unfit '{name: u, type: linear, in: 32, out: 33}' '{name: g, type: swiglu}' "$head" -- "'g' takes an even width, but 'u' gives 33"
unfit '{name: e, type: embedding, num: 4, dim: 4}' "$head" -- "'e' looks tokens up, but 'embed' gives numbers"
unfit '{name: l, type: list, repeat: 2, children: [{name: u, type: linear, in: 32, out: 64}]}' "$head" -- \
    "'l.1.u' takes a width of 32, but 'l.0.u' gives 64"
unfit '{name: a, type: linear, in: 32, out: 32}' '{name: b, ref: a}' '{name: c, type: linear, in: 32, out: 40}' '{name: d, ref: a}' \
    "$head" -- "'d' takes a width of 32, but 'c' gives 40"
unfit '{name: p, type: op, rows: sequences}' '{name: a, type: attention, heads: 1, kv_heads: 1, head_dim: 32}' "$head" -- \
    "'a' takes a width of 96"
unfit '{name: u, type: linear, in: 32, out: 96}' '{name: p, type: op, rows: sequences}' \
    '{name: a, type: attention, heads: 4, head_dim: 8}' "$head" -- "'a' takes a row for each token, but 'p' gives one for each sequence"
unfit '{name: r, type: relu, repeat: 300000}' "$head" -- 'r.repeat: found 300000' '250000'
unfit '{name: a, type: seq, repeat: 1000, children: [{name: r, type: relu, repeat: 1000}]}' "$head" -- 'more than 250000'
unfit '{name: o, type: op, flops: -1}' "$head" -- 'o.flops: found -1' 'a number from 0'

# ---- repeat --------------------------------------------------------------------------------------

block='type: seq, children: [{name: norm, type: rmsnorm, dim: 32}, {name: fc, type: linear, in: 32, out: 32}]'
tree written "{name: blocks, type: list, children: [{name: \"0\", $block}, {name: \"1\", $block}, {name: \"2\", $block}]}" "$head"
tree repeated "{name: blocks, repeat: 3, $block}" "$head"
for name in written repeated; do
    works program "$tmp/$name.yaml"
    cp "$out" "$tmp/$name.program"
done
same "$tmp/written.program" "$tmp/repeated.program"
has "$tmp/repeated.program" 'blocks.2.fc'

# ---- SwiGLU, and attention to all keys -----------------------------------------------------------

# blocks FILE ATTENTION ACTIVATION
blocks() {
    tree "$1" "{name: blocks, type: seq, repeat: 2, children: [{name: attn, type: seq, residual: true, children: [
      {name: qkv, type: linear, in: 32, out: 96}, {name: core, type: attention, heads: 4, head_dim: 8$2},
      {name: proj, type: linear, in: 32, out: 32}]}, {name: mlp, type: seq, residual: true, children: [
      {name: up, type: linear, in: 32, out: 128}, $3, {name: down, type: linear, in: 64, out: 32}]}]}" "$head"
}
swiglu='{name: act, type: swiglu}'
blocks full ', causal: false' "$swiglu"
blocks causal '' "$swiglu"
blocks priced '' '{name: act, type: op, in: 128, out: 64, flops: 320}'
for dialect in eager fused compile; do
    for attention in flash math eager efficient; do
        works check "$tmp/full.yaml" --set dialect=$dialect --set attention=$attention
        has "$out" 'nothing found'
    done
    works check "$tmp/priced.yaml" --set dialect=$dialect
done
# The host runs both: all kernels of attention give one loss, which depends on who sees whom.
for name in full causal; do
    for attention in flash math eager; do
        works run "$tmp/$name.yaml" --on host --ranks 2 --out "$tmp/run-$name-$attention" --set "attention=$attention" --set 'train.lr=0.05' \
            --set precision.param=none --set precision.reduce=none --set train.steps=4
    done
done
python3 - "$tmp" <<'P' || complain "losses of attention: $(cat "$tmp/why")"
import json, sys
def losses(name):
    lines = [json.loads(x) for x in open(f"{sys.argv[1]}/run-{name}/metrics.jsonl")]
    return [x["loss"] for x in lines if "loss" in x]
why = open(f"{sys.argv[1]}/why", "w")
for name in ("full", "causal"):
    runs = [losses(f"{name}-{a}") for a in ("flash", "math", "eager")]
    print(name, runs, file=why, flush=True)
    assert len(runs[0]) == 4
    assert all(abs(a - b) < 2e-4 for run in runs[1:] for a, b in zip(runs[0], run))
assert max(abs(a - b) for a, b in zip(losses("full-flash"), losses("causal-flash"))) > 1e-3
P

# ---- an operation that is only priced ------------------------------------------------------------

fails 2 "the host has no kernel 'op:act', which module 'blocks.0.mlp.act' needs" -- run "$tmp/priced.yaml" --on host --ranks 2
works program "$tmp/priced.yaml"
# 16 tokens: forward 320 FLOP each; backward twice as much.
has "$out" 'generic:op:act 16x128 flops=5120' 'generic:op:act 16x64 flops=10240'
cp "$out" "$tmp/plain.program"
for change in 'flops: 321' 'bytes: 5000' 'backward_flops: 1' 'backward_bytes: 7' 'saved_bytes: 9' 'saves_input: false' 'params: 12'; do
    sed "s/flops: 320/$(echo "$change" | grep -q '^flops' && echo "$change" || echo "flops: 320, $change")/" "$tmp/priced.tree" >"$tmp/other.tree"
    sed 's/priced/other/' "$tmp/priced.yaml" >"$tmp/other.yaml"
    works program "$tmp/other.yaml"
    checks=$((checks + 1))
    cmp -s "$out" "$tmp/plain.program" && complain "$change changes nothing"
done
works explain "$tmp/priced.yaml"
works compare "$tmp/priced.yaml"
works inspect "$tmp/priced.yaml"

# ---- ViT-L ---------------------------------------------------------------------------------------

# Sums by hand, per GPU: B images of S rows, T = B S; width D = 1024, 16 heads of 64, MLP 4 D, 1000 classes. Memory
# at 256 rows, where tensors fill the allocator's blocks.
for shape in 8x197 16x197 16x256 32x256; do
    for depth in 24 12; do
        sed "s/repeat: 24/repeat: $depth/" "$own/vit-l.yaml" >"$tmp/vit.tree"
        printf 'model: {tree: vit.tree}\ncluster: {gpus: 2, gpu: h100-sxm5-80g}\nbatch: %s\nseq: %s\nwrap: root\n' "${shape%x*}" "${shape#*x}" >"$tmp/vit.yaml"
        works compare "$tmp/vit.yaml" --format csv
        cp "$out" "$tmp/vit-$shape-$depth.csv"
    done
done
works inspect "$own/vit-l.yaml"
has "$out" '304,326,632' # timm's vit_large_patch16_224
cat >"$tmp/vit.py" <<'P'
import csv, sys
def row(B, S, depth):
    return next(csv.DictReader(open(f"{sys.argv[1]}/vit-{B}x{S}-{depth}.csv")))
D, H, d, C, patch = 1024, 16, 64, 1000, 768
for B, S in ((8, 197), (16, 197), (16, 256), (32, 256)):
    T = B * S
    linear = 3 * 2 * T * (D * 3 * D + D * D + 2 * D * 4 * D)   # forward, and two products of backward for each
    attention = 3 * 4 * B * H * S * S * d                      # QK and PV over all keys
    first = 2 * 2 * T * patch * D                              # no gradient of the pixels
    head = 3 * 2 * B * D * C                                   # one row an image
    embed = 3 * T * D                                          # as the file says: 1024 a row, backward twice
    for depth in (12, 24):
        flop = depth * (linear + attention) + first + head + embed
        found = float(row(B, S, depth)["model_flop_per_gpu"])
        assert abs(found / flop - 1) < 1e-8, ("FLOP", B, S, depth, found, flop)
    if S != 256:
        continue
    # Kept of a block, bf16: the input and the sum after attention, the results of both norms, q, k, v, attention's
    # result, 4 D before and after GELU: 16 T D numbers. In f32 mean and rstd of two norms, and the log-sum-exp;
    # attention's random state is two numbers of 512 bytes each.
    kept = 2 * T * D * (1 + 1 + 1 + 1 + 3 + 1 + 4 + 4) + 4 * 4 * T + 4 * B * H * S + 2 * 512
    found = sum(f * float(row(B, S, k)["peak_activation_bytes"]) for k, f in ((24, 1 / 12), (12, -1 / 12)))
    assert found == kept, ("bytes", B, S, found, kept)
print("ok")
P
checks=$((checks + 1))
python3 "$tmp/vit.py" "$tmp" >"$out" 2>"$err" || complain "ViT-L: $(tail -n 1 "$err")"
finish
