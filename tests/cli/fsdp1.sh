#!/bin/sh
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
refused reshard_after_backward true "api: fsdp1, reshard_after_backward: false"
refused forward_prefetch fsdp1.forward_prefetch "api: fsdp1, forward_prefetch: 1"
refused backward_prefetch fsdp1.backward_prefetch "api: fsdp1, backward_prefetch: 2"
refused accumulation.mode no_sync "api: fsdp1, accumulation: {steps: 2, mode: no_reduce_no_reshard}"
refused offload none "api: fsdp1, offload: cpu"
refused precision.output none "api: fsdp1, precision: {output: f32}"
refused tp 1 "api: fsdp1, tp: 2"
refused init meta "api: fsdp1, init: device"
refused fsdp1.backward_prefetch pre "fsdp1.backward_prefetch: post"
refused fsdp1.limit_all_gathers true "api: ddp, fsdp1.limit_all_gathers: false"
refused fsdp1.backward_prefetch "pre, post or none" "api: fsdp1, fsdp1.backward_prefetch: later"
refused wrap "one by one" "api: fsdp1, wrap: [{modules: ['model.layers.*'], group: true}, {modules: ['']}]"
refused wrap "tied" "api: fsdp1, wrap: [{modules: [lm_head]}, {modules: ['']}]"
one "api: fsdp1"
fails 2 api fully_shard -- run "$tmp/one.yaml" --strategy s --on host
finish
