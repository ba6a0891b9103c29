#!/usr/bin/env bash
# api: fsdp1 beside the others: compared, checked, explained; its keys and what it refuses.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

cat >"$tmp/mixed.yaml" <<END
model: {name: llama-2-7b, layers: 4}
cluster: dgx-h100-2
batch: 1
seq: 2048
clip: true
strategies:
  fully_shard: {}
  fsdp1: {api: fsdp1}
  post: {api: fsdp1, fsdp1.backward_prefetch: post}
  none: {api: fsdp1, fsdp1.backward_prefetch: none}
  forward: {api: fsdp1, fsdp1: {forward_prefetch: true}}
  unlimited: {api: fsdp1, fsdp1: {limit_all_gathers: false}}
  zero2: {api: fsdp1, reshard_after_forward: false}
  hybrid: {api: fsdp1, mesh: [2, 8]}
  pure: {api: fsdp1, precision: {reduce: bf16}}
  no-sync: {api: fsdp1, accumulation: {steps: 2, mode: no_reduce}}
  sides: {api: fsdp1, wrap: block_embed_head}
  compiled: {api: fsdp1, dialect: compile}
  kept: {api: fsdp1, reshard_after_forward: false, accumulation: {steps: 3, mode: no_reduce}, optimizer: {name: none}}
END

# A row each. The same bytes on the wires as fully_shard, but for paddings.
works compare "$tmp/mixed.yaml" --format csv
[ -s "$err" ] && complain "something on stderr"
grep -v '^#' "$out" >"$tmp/rows.csv"
python3 - "$tmp/rows.csv" <<'END' || complain "the table of the mixed file"
import csv, sys

rows = {r["strategy"]: r for r in csv.DictReader(open(sys.argv[1]))}
assert len(rows) == 13, rows.keys()
work = {k: float(r["model_flop_per_gpu"]) for k, r in rows.items() if k not in ("no-sync", "kept")}
assert max(work.values()) < 1.000001 * min(work.values()), work
step = {k: float(r["step_time_s"]) for k, r in rows.items()}
inter = {k: float(r["sent_between_nodes_bytes_per_gpu"]) for k, r in rows.items()}
assert abs(inter["fsdp1"] / inter["fully_shard"] - 1) < 0.01, inter
assert inter["hybrid"] < 0.6 * inter["fsdp1"], inter
assert inter["zero2"] < 0.85 * inter["fsdp1"], inter
assert step["none"] > 1.02 * step["fsdp1"], step
assert 0.8 < step["fsdp1"] / step["fully_shard"] < 1.25, step
peak = {k: float(r["peak_allocated_bytes"]) for k, r in rows.items()}
assert peak["forward"] > peak["fsdp1"] and peak["unlimited"] > 1.1 * peak["fsdp1"], peak
END

works check "$tmp/mixed.yaml"
works explain "$tmp/mixed.yaml" --strategy fsdp1
works inspect "$tmp/mixed.yaml" --only fsdp1
has "$out" fsdp1
works diff "$tmp/mixed.yaml:fully_shard" "$tmp/mixed.yaml:fsdp1"

# What FSDP1 has no use for, and keys of its own without it.
one() { # KEY: VALUE of a strategy
    printf 'model: {name: llama-3.2-1b, layers: 2}\ncluster: dgx-h100-1\nseq: 64\nstrategies:\n  s: {%s}\n' "$1" >"$tmp/one.yaml"
}
refused() { # KEY ALLOWED SETTINGS
    one "$3"
    fails 2 one.yaml "$1" "$2" -- compare "$tmp/one.yaml"
}
refused reshard_after_forward SHARD_GRAD_OP "api: fsdp1, reshard_after_forward: 2"
refused reshard_after_backward "api: fully_shard or replicate" "api: fsdp1, reshard_after_backward: false"
refused forward_prefetch fsdp1.forward_prefetch "api: fsdp1, forward_prefetch: 1"
refused backward_prefetch fsdp1.backward_prefetch "api: fsdp1, backward_prefetch: 2"
refused accumulation.mode no_sync "api: fsdp1, accumulation: {steps: 2, mode: no_reduce_no_reshard}"
refused accumulation.mode "allowed: no_reduce (no_sync), or api: fully_shard" "api: ddp, accumulation: {steps: 2, mode: no_all_reduce}"
refused accumulation.mode "no_reduce (no_sync), or api:" "api: ddp, accumulation: {steps: 2, mode: no_reduce_no_reshard}"
refused accumulation.mode "beside accumulation.steps: 1" "api: ddp, accumulation: {mode: no_reduce}"
refused precision.reduce "parameters in 16 bits, too" "api: ddp, precision: {param: none, reduce: bf16}"
refused offload none "api: fsdp1, offload: cpu"
refused precision.output "api: fully_shard or replicate" "api: fsdp1, precision: {output: f32}"
refused tp 1 "api: fsdp1, tp: 2"
refused init meta "api: fsdp1, init: device"
refused fsdp1.backward_prefetch "api: fsdp1" "fsdp1.backward_prefetch: post"
refused fsdp1.limit_all_gathers "api: fsdp1" "api: ddp, fsdp1.limit_all_gathers: false"
refused fsdp1.backward_prefetch "pre, post or none" "api: fsdp1, fsdp1.backward_prefetch: later"
refused wrap "one by one" "api: fsdp1, wrap: [{modules: ['model.layers.*'], group: true}, {modules: ['']}]"
refused wrap "tied" "api: fsdp1, wrap: [{modules: [lm_head]}, {modules: ['']}]"
refused clip_variant "loop or loop_read" "api: fsdp1, clip: true, clip_variant: foreach"
refused checkpoint.first "checkpoint.every: full or a number" "checkpoint.first: 2"
refused sequence_parallel "tp: 2 and more" "sequence_parallel: false"
refused gqa_repeat "allowed: false" "gqa_repeat: true, model: {name: gpt2, layers: 1}"
refused wrap "fully_shard, replicate or fsdp1" "api: ddp, wrap: block"
refused mesh.shape "api: fully_shard or fsdp1" "api: ddp, mesh: [8]"
# Norms of bf16 gradients are bf16, as torch._foreach_norm() returns them; FSDP1 asks for float32.
for norms in fully_shard:bf16 replicate:bf16 ddp:bf16 fsdp1:f32; do
    one "api: ${norms%:*}, clip: true, precision: {master: bf16, param: none, reduce: none}"
    works program "$tmp/one.yaml"
    has "$out" " ${norms#*:} reduction:total_norm"
done
one "api: fsdp1"
fails 2 api fully_shard -- run "$tmp/one.yaml" --strategy s --on host
# Inherited keys that an API does not read: a line for each API that says where they were given; programs are those without.
cat >"$tmp/inherits.yaml" <<END
model: $TSR_SOURCE_DIR/tests/exec/tiny.json
world: 4
seq: 16
clip: true
forward_prefetch: 1
offload: cpu
wrap: root
strategies:
  sharded: {}
  ddp: {api: ddp, stack: torchtitan-2024-12}
  back: {api: ddp, stack: torchtitan-2024-12, offload: none, forward_prefetch: 0, reshard_after_forward: null, wrap: block}
  none: {api: fsdp1, offload: none, optimizer: {name: sgd}}
END
works inspect "$tmp/inherits.yaml"
[ "$(grep -c . "$err")" = 2 ] || complain "not one line for ddp and one for fsdp1"
has "$err" "note: api: ddp does not read wrap (line 7 of $tmp/inherits.yaml), reshard_after_forward (stack torchtitan-2024-12), forward_prefetch (line 5 of $tmp/inherits.yaml), offload (line 6 of" \
    "note: api: fsdp1 does not read forward_prefetch (line 5 of"
printf 'model: %s/tests/exec/tiny.json\nworld: 4\nseq: 16\naccumulation: {steps: 2, mode: no_all_reduce}\nstrategies: {a: {}, d: {api: ddp}}\n' \
    "$TSR_SOURCE_DIR" >"$tmp/modes.yaml"
works inspect "$tmp/modes.yaml"
works compare "$tmp/modes.yaml" --set cluster=dgx-h100-1 --set world=4 --set 'sweeps={accumulation.steps: [1, 2], accumulation.mode: [no_reduce, no_all_reduce]}' --format csv
has "$out" 'a@steps=1@mode=no_reduce' 'd@steps=2@mode=no_all_reduce'
works inspect "$tmp/modes.yaml"
has "$err" "nothing reads accumulation.mode (line 4 of $tmp/modes.yaml) without api: fully_shard or replicate; it is taken as no_reduce"
works program "$tmp/inherits.yaml" --strategy ddp
grep -v '^# strategy' "$out" >"$tmp/ddp.txt"
works program "$tmp/inherits.yaml" --strategy back
[ -s "$err" ] && complain "a remark on keys that the strategy takes back"
grep -v '^# strategy' "$out" >"$tmp/back.txt"
same "$tmp/ddp.txt" "$tmp/back.txt"
works program "$tmp/inherits.yaml" --strategy sharded --set 'sweeps=null'
[ -s "$err" ] && complain "a remark on a strategy that reads all"
# By --set: of all strategies, of one, of none; where the API comes from --set, too.
works program "$tmp/inherits.yaml" --strategy back --set backward_prefetch=2
has "$err" "backward_prefetch (--set backward_prefetch=2)"
fails 2 "--set strategies.back.wrap=root: wrap: found root" "fully_shard, replicate or fsdp1" -- \
    program "$tmp/inherits.yaml" --strategy back --set strategies.back.wrap=root
fails 2 "--set ddp.bucket_cap_mb=1" "allowed: no such key, or api: ddp" -- \
    compare "$tmp/mixed.yaml" --only fsdp1,post --set ddp.bucket_cap_mb=1
works program "$tmp/inherits.yaml" --strategy none --set strategies.none.api=ddp --set offload=cpu
# Sweeps: what does not read a key is taken once.
works inspect "$tmp/inherits.yaml" --only sharded,back --set 'sweeps={forward_prefetch: [0, 1, 2], batch: [1, 2]}'
has "$out" sharded@forward_prefetch=2@batch=2 back@batch=1 back@batch=2
has "$err" "forward_prefetch (sweeps, taken once)"
checks=$((checks + 1))
grep -q 'back@forward_prefetch' "$out" && complain "a strategy is swept over a key that it does not read"

# train.decay: matrices decays nothing where FSDP1 shards: SGD's program is that without a decay, and a remark says so.
printf 'model: {name: llama-3.2-1b, layers: 1}\ncluster: dgx-h100-1\nseq: 16\noptimizer: {name: sgd}\nstrategies: {s: {api: fsdp1}}\n' >"$tmp/decays.yaml"
works compare "$tmp/decays.yaml"
has "$err" "note: train.decay: matrices: FSDP1's shards have one dimension"
for set in train.decay=all world=1; do
    works compare "$tmp/decays.yaml" --set $set
    [ -s "$err" ] && complain "a remark on what decays with $set"
done
finish
