#!/usr/bin/env bash
# Where results go: folders that cannot be written, full disks, no gnuplot; nothing half-written.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
cat >"$tmp/e.yaml" <<'Y'
model: llama-3.2-1b
cluster: dgx-h100-1
seq: 128
strategies:
  fsdp: {}
  ddp: {api: ddp, ddp: {static_graph: true}}
Y

# Folders
: >"$tmp/file"
fails 2 --out "$tmp/file/x" "is not a folder" allowed -- compare "$tmp/e.yaml" --out "$tmp/file/x"
fails 2 --out "$tmp/file" allowed -- compare "$tmp/e.yaml" --out "$tmp/file"
fails 2 --out allowed -- compare "$tmp/e.yaml" --out ''
fails 2 --out allowed -- sim "$tmp/e.yaml" --strategy fsdp --out /proc/tessera

# A mistake in the file is found before anything is written.
fails 2 batch -- compare "$tmp/e.yaml" --set batch=0 --out "$tmp/never"
[ -e "$tmp/never" ] && complain "a folder was made for an experiment that is wrong"

# A full disk
for arguments in "compare $tmp/e.yaml" "compare $tmp/e.yaml --format csv" \
    "compare $tmp/e.yaml --format json" "sim $tmp/e.yaml --strategy fsdp" \
    "inspect $tmp/e.yaml" "program $tmp/e.yaml --strategy fsdp" "help keys" "--version" \
    "compare $tmp/e.yaml --print-config" \
    "trace $TSR_SOURCE_DIR/tests/golden/scenarios/rnd-gpt2-body-is-view-w2.json"; do
    checks=$((checks + 1))
    # shellcheck disable=SC2086
    "$TESSERA" $arguments >/dev/full 2>"$err"
    got=$?
    [ "$got" = 1 ] || complain "tessera $arguments > /dev/full: exit status $got, not 1"
    [ "$(wc -l <"$err")" = 1 ] || complain "tessera $arguments > /dev/full: not one line"
    has "$err" "standard output" "No space left"
done

# Everything is there, and nothing under a temporary name.
works compare "$tmp/e.yaml" --out "$tmp/a/b/out" --pictures svg
for file in summary.csv summary.json fsdp/memory.csv fsdp/streams.csv fsdp/trace.json ddp/memory.csv; do
    checks=$((checks + 1))
    [ -s "$tmp/a/b/out/$file" ] || complain "no $file"
done
left=$(find "$tmp/a" -name '*tmp*' -o -name '.*' -type f | head -n 1)
[ -z "$left" ] || complain "left behind: $left"
has "$tmp/a/b/out/summary.json" llama-3.2-1b dgx-h100-1 reshard_after_forward

# One label of PyTorch's profiler for each gather, copy-out and reduction (R256).
trace=$tmp/a/b/out/fsdp/trace.json
slices() { grep -Ec "\"name\":\"($1)" "$trace"; }
checks=$((checks + 3))
gathers=$(slices ncclDevKernel_AllGather)
[ "$gathers" -gt 30 ] || complain "$gathers gathers in the trace"
[ "$(slices 'FSDP::all_gather[ "]|FSDP::(forward|backward)_prefetch for model.layers')" = "$gathers" ] ||
    complain "not one label for each of $gathers gathers"
[ "$(slices FSDP::all_gather_copy_out)" = "$gathers" ] ||
    complain "not one label for each of $gathers copy-outs"
[ "$(slices FSDP::post_backward_reduce)" = "$(slices ncclDevKernel_ReduceScatter)" ] ||
    complain "not one label for each reduction"

# Without gnuplot: the data, one line, no pictures.
checks=$((checks + 1))
PATH=$tmp/empty "$TESSERA" compare "$tmp/e.yaml" --out "$tmp/bare" >"$out" 2>"$err"
got=$?
[ "$got" = 0 ] || complain "without gnuplot: exit status $got"
[ "$(grep -c . "$err")" = 1 ] || complain "without gnuplot: not one line on stderr"
has "$err" gnuplot
[ -s "$tmp/bare/summary.csv" ] || complain "without gnuplot: no summary.csv"
[ -z "$(find "$tmp/bare" -name '*.png' | head -n 1)" ] || complain "pictures without gnuplot"
finish
