#!/usr/bin/env bash
# tessera collectives: its tables, options and mistakes.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

works collectives dgx-h100-2 --ranks 8 --sizes 65536,1073741824
has "$out" "8 GPUs" "all_reduce" "broadcast" "| 1073741824 |"
works collectives "$TSR_SOURCE_DIR/experiments/clusters/cluster-dgx-h100-2.json" --format csv \
    --only all_gather --sizes 1073741824
has "$out" "collective,gpu,n_gpus" "all_gather,h100-sxm5-80g,16,2,1073741824,"
[ "$(wc -l <"$out")" = 2 ] || complain "--only shows more than one"
time_of() { sed -n 's/^all_reduce,[^,]*,8,1,[0-9]*,\([0-9]*\).*/\1/p' "$out"; }
works collectives dgx-h100 --format csv --only all_reduce --sizes 1073741824
auto=$(time_of)
works collectives dgx-h100 --format csv --only all_reduce --sizes 1073741824 \
    --set sim.algorithm=ring --set sim.calibration.intra_efficiency=0.5
slow=$(time_of)
[ "$slow" -gt "$auto" ] || complain "rings at half the rate: $slow us, auto: $auto us"

# NVIDIA/nccl#1048: 8 A100 and four 200 Gb/s adapters on each of two nodes, as rings: 86 GB/s of at most 96 (24 of one
# adapter). Left to itself NCCL takes trees there, which go beyond that (NVIDIA/nccl#946).
four="p4de-128 --ranks 16 --only all_reduce --sizes 4294967296 --set sim.nic_bw=25e9"
bus_of() { sed -n 's/^all_reduce,.*,\([0-9]*\)[.0-9]*$/\1/p' "$out"; }
# shellcheck disable=SC2086
works collectives $four --format csv --set sim.algorithm=ring
[ "$(bus_of)" -ge 82 ] && [ "$(bus_of)" -le 96 ] || complain "rings over four adapters: $(bus_of) GB/s"
# shellcheck disable=SC2086
works collectives $four --format csv
[ "$(bus_of)" -gt 96 ] || complain "trees over four adapters: $(bus_of) GB/s"
# shellcheck disable=SC2086
works collectives $four
has "$out" "is no ring here" "reaches 92.0 GB/s"
# shellcheck disable=SC2086
works collectives $four --set sim.algorithm=tree
grep -q "no ring" "$out" && complain "a remark on what was asked for"

fails 2 "no file given" -- collectives
fails 2 "--ranks" 17 "2 to 16" -- collectives dgx-h100-2 --ranks 17
fails 2 "--sizes" '"x"' "numbers of bytes" -- collectives dgx-h100-2 --sizes 12,x
fails 2 "--only" '"gather"' "all_gather" -- collectives dgx-h100-2 --only gather
fails 2 "sim.algorithm" star nvls_tree -- collectives dgx-h100-2 --set sim.algorithm=star
fails 2 "12 GPUs" "dgx-h100-2" -- collectives dgx-h100-2 --ranks 12
fails 2 "nonesuch" -- collectives nonesuch
finish
