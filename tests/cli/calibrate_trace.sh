#!/usr/bin/env bash
# calibrate reads traces of PyTorch's profiler: one made by hand, whose figures are known, a real one
# of a processor, and damaged ones; compare takes what it writes.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
golden=$TSR_SOURCE_DIR/tests/golden-real

# flat FILE: in one line without spaces.
flat() {
    tr -d ' \n' <"$1" >"$tmp/flat"
}

# ---- a GPU ---------------------------------------------------------------------------------------

works calibrate "$golden/kineto-gpu.json" --out "$tmp/gpu"
gpu=nvidia-h100-80gb-hbm3
# Two kernels of one operator are one; all but 30 us of 1132 are known.
has "$err" "97.3 % of the time in kernels is in the tables; most of the rest is in aten::cumsum" \
    "more than 8 ranks, up to 64, are left out" "wrote $tmp/gpu/cluster-$gpu.json"
# 2 x 4096^3 FLOP; a product's operands say which of the three it is. Medians of two.
flat "$tmp/gpu/kernels-$gpu.json"
has "$tmp/flat" '"kernel":"mm","dtype":"bf16","per":"flop"' '[[137400000000.0,201.0,4096,4096,4096,1]]' \
    '"kernel":"mm_input_grad"' '[[137400000000.0,210.0,4096,4096,4096,1]]' \
    '"kernel":"mm_weight_grad"' '[[137400000000.0,220.0,4096,4096,4096,1]]' \
    '"kernel":"flash_attention"' '[[137400000000.0,400.0,1,32,8,4096,4096,128]]' \
    '"kernel":"mul","dtype":"bf16","per":"byte"' '[[100700000.0,40.0,4096,4096]]'
# All-gather by its output, reduce-scatter by its input; the group of 64 leaves the node.
flat "$tmp/gpu/node-$gpu.json"
has "$tmp/flat" '"kind":"all_gather","ranks":8' '[[67108864,300.0]]' '"kind":"reduce_scatter"' \
    '[[134217728,600.0]]' '"gpus_per_node":8'
grep -q "all_reduce" "$tmp/flat" && complain "a collective of 64 ranks inside of a node of 8"
flat "$tmp/gpu/gpu-$gpu.json"
has "$tmp/flat" '"launch_s":5e-6' '"event_s":1e-6' '"sm_count":132' '"visible_bytes":85028765696' \
    '"architecture":"Hopper"' 'measuredinatraceoftorch.profiler(NVIDIAH10080GBHBM3)'
grep -q "$TSR_SOURCE_DIR" "$tmp/gpu"/* && complain "a path of this machine"
printf 'model: qwen2.5-0.5b\nworld: 8\nseq: 256\n' >"$tmp/one.yaml"
works compare "$tmp/one.yaml" --set "cluster=$tmp/gpu/cluster-$gpu.json" --format csv
works calibrate "$golden/kineto-gpu.json" --ranks 4 --out "$tmp/four"
flat "$tmp/four/node-$gpu.json"
has "$tmp/flat" '"gpus_per_node":4' '"collectives":[]'

# A name that is as long as one may be is also read again; a longer one is refused, and nothing is written.
long=$(printf 'R%.0s' $(seq 63))
sed "s/NVIDIA H100 80GB HBM3/$long/" "$golden/kineto-gpu.json" >"$tmp/long.json"
works calibrate "$tmp/long.json" --out "$tmp/long"
works compare "$tmp/one.yaml" --set "cluster=$(echo "$tmp"/long/cluster-*.json)" --format csv
sed -i "s/$long/x$long/" "$tmp/long.json"
fails 2 "long.json: deviceProperties: found a name of 64 bytes, xRRR" "allowed: up to 63" -- \
    calibrate "$tmp/long.json" --out "$tmp/longer"
checks=$((checks + 1))
[ ! -e "$tmp/longer" ] || complain "a refused trace leaves a folder"

# ---- a processor, recorded -----------------------------------------------------------------------

checks=$((checks + 1))
gzip -dc "$golden/kineto-cpu.json.gz" >"$tmp/cpu.json" || complain "gzip"
works calibrate "$tmp/cpu.json" --out "$tmp/cpu"
# The layers of the model: 64 tokens, 64 to 256 and back, forward and both gradients.
flat "$tmp/cpu/kernels-processor.json"
for kernel in mm mm_input_grad mm_weight_grad rms_norm silu silu_backward log_softmax add mul; do
    has "$tmp/flat" "\"kernel\":\"$kernel\",\"dtype\":\"f32\""
done
has "$tmp/flat" ',64,256,64,1]' ',64,64,256,1]' ',256,64,64,1]'
sed -i 's/world: 8/world: 1/' "$tmp/one.yaml"
works compare "$tmp/one.yaml" --set "cluster=$tmp/cpu/cluster-processor.json" --format csv

# ---- mistakes ------------------------------------------------------------------------------------

fails 2 "found no --out" -- calibrate "$golden/kineto-gpu.json"
fails 2 "beside --on; allowed: one of them" -- calibrate "$tmp/cpu.json" --on host --out "$tmp/x"
fails 2 "beside --nccl-log" -- calibrate "$tmp/cpu.json" --nccl-log x --out "$tmp/x"
fails 2 "--ranks: found 11; allowed: 1 to 10" -- calibrate "$tmp/cpu.json" --ranks 11 --out "$tmp/x"
fails 2 "/nowhere.json" "a file that can be read" -- calibrate /nowhere.json --out "$tmp/x"
# bad TEXT WORD...
bad() {
    printf '%b' "$1" >"$tmp/bad.json"
    shift
    fails 2 "$tmp/bad.json" "$@" -- calibrate "$tmp/bad.json" --out "$tmp/x"
}
bad '' ":1:"
bad '[]' 'has no "traceEvents"' "export_chrome_trace"
bad '{"traceEvents": 7}' 'has no "traceEvents"'
bad '{"traceEvents": [1, {}, {"ph": "X", "cat": "kernel", "dur": "long", "args": 3}]}' "record_shapes=True"
event='{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":2,"args":{"External id":1,"Input type":["float","float"],"Input Dims"'
bad "{\"traceEvents\":[$event:[[4,4],[5,4]]}}]}" "record_shapes=True"
bad "{\"traceEvents\":[$event:[[4,-4],[-4,4]]}}]}" "record_shapes=True"
bad "{\"traceEvents\":[$event:[[0,4],[4,4]]}}]}" "record_shapes=True"
head -c 200000 "$tmp/cpu.json" >"$tmp/half.json"
fails 2 "$tmp/half.json:" -- calibrate "$tmp/half.json" --out "$tmp/x"
head -c 20000 "$golden/kineto-cpu.json.gz" >"$tmp/half.json.gz"
fails 2 "$tmp/half.json.gz" -- calibrate "$tmp/half.json.gz" --out "$tmp/x"
checks=$((checks + 1))
[ -e "$tmp/x" ] && complain "a folder is left by what was refused"
finish
