#!/usr/bin/env bash
# overlap: its totals are those of compare, from a file and from what compare and run left; what
# would hide it; the host's stops; diff of exposure; mistakes.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
# shellcheck source=tests/studies/_figures.sh
. "$TSR_SOURCE_DIR/tests/studies/_figures.sh"
flagship=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml
rows=$tmp/compare.csv
far=$TSR_SOURCE_DIR/experiments/flagship/h100-128.yaml

# true_that WHAT EXPRESSION of awk
true_that() {
    checks=$((checks + 1))
    awk "BEGIN { exit !($2) }" || complain "$1: not $2"
}
# number KEY: of the first KEY in the report (JSON with an indent of 2), to 9 digits as compare.
number() {
    awk -v key="\"$1\":" 'index($0, key) { sub(/.*": /, ""); sub(/,$/, ""); printf "%.9g", $0; exit }' "$out"
}
# sum LIST KEY: over the objects of a list at the top of the report.
sum() {
    sed -n "/^  \"$1\"/,/^  \]/s/.*\"$2\": \([-0-9.e]*\).*/\1/p" "$out" | awk '{ s += $1 } END { printf "%.9g", s }'
}

# ---- totals --------------------------------------------------------------------------------------

short="--set seq=1024"
# shellcheck disable=SC2086
works compare "$far" --only fsdp,ddp,hsdp-16x8,replicate $short --format csv --out "$tmp/out" --pictures none --traces
cp "$out" "$rows"
for strategy in $(printf '%s\n' fsdp ddp hsdp-16x8 replicate | every 2); do
    # shellcheck disable=SC2086
    works overlap "$far" --strategy $strategy $short --no-what-if --format json
    cp "$out" "$tmp/file.json"
    equal "$strategy: exposed" "$(number exposed_s)" "$(column "$rows" $strategy exposed_communication_s)"
    equal "$strategy: step" "$(number step_s)" "$(column "$rows" $strategy step_time_s)"
    equal "$strategy: share" "$(number exposed_share)" \
        "$(column "$rows" $strategy exposed_communication_share)"
    for list in kinds collectives; do
        equal "$strategy: sum of $list" "$(sum $list exposed_s)" "$(number exposed_s)"
    done
    # Reasons of all collectives add up to their exposed seconds.
    all=$(for why in host_late same_communicator buffer_wait stream_order other_ranks bandwidth; do
        sum collectives ${why}_s
        echo
    done | awk '{ s += $1 } END { printf "%.9g", s }')
    true_that "$strategy: reasons" "($all - $(number exposed_s))^2 < 1e-17"
    works overlap "$tmp/out" --strategy $strategy --format json
    equal "$strategy: exposed, of the folder" "$(number exposed_s)" \
        "$(column "$rows" $strategy exposed_communication_s)"
    for list in kinds collectives; do
        true_that "$strategy: sum of $list, of the folder" \
            "($(sum $list exposed_s) - $(number exposed_s))^2 < 1e-17"
    done
done
works overlap "$tmp/out/fsdp"
has "$out" "(simulated)" "all-gather, backward" "The most exposed of 99 collectives" "AG (root) (forward)"
grep -q "What would hide it" "$out" && complain "what-ifs of a folder"

has "$tmp/out/fsdp/trace.json" '"exposed_because":"bandwidth"'
works overlap "$tmp/out/fsdp" --format csv
same "$out" "$tmp/out/fsdp/overlap.csv"

# A slow GPU is the one that is shown, in both.
works sim "$far" --strategy fsdp --set seq=1024 --set world=16 --set sim.slow_rank=11 \
    --set sim.slow_factor=1.5 --format csv
cp "$out" "$rows"
works overlap "$far" --strategy fsdp --set seq=1024 --set world=16 --set sim.slow_rank=11 \
    --set sim.slow_factor=1.5 --no-what-if --format json
equal "exposed, with a slow GPU" "$(number exposed_s)" "$(column "$rows" fsdp exposed_communication_s)"

# --rank shows another rank, which waits for the slow one; folded or not, the step is the same.
straggler="--set seq=1024 --set world=16 --set sim.slow_rank=11 --set sim.slow_factor=1.5"
# shellcheck disable=SC2086
works overlap "$far" --strategy fsdp $straggler --no-what-if
has "$out" "GPU 11 takes 1.5 times as long" "Shown: rank 11." "--rank 0 shows one of them"
step=$(sed -n 's/^step \([0-9.]*\) ms.*/\1/p' "$out")
for rank in 0 15; do
    # shellcheck disable=SC2086
    works overlap "$far" --strategy fsdp $straggler --no-what-if --rank $rank
    has "$out" "Shown: rank $rank." "waits for GPU 11" "other ranks"
    equal "step of rank $rank" "$(sed -n 's/^step \([0-9.]*\) ms.*/\1/p' "$out")" "$step"
    cp "$out" "$tmp/folded"
    # shellcheck disable=SC2086
    works overlap "$far" --strategy fsdp $straggler --no-what-if --rank $rank --set sim.fold=false
    same "$out" "$tmp/folded"
done
# shellcheck disable=SC2086
works overlap "$far" --strategy fsdp $straggler --no-what-if --rank 0 --format json
has "$out" '"rank": 0,' '"slow_rank": 11,' '"slow_factor": 1.5'
fails 2 "--rank: found 128; allowed: 0 to 127" "strategy fsdp" -- overlap "$far" --strategy fsdp --rank 128
fails 2 "found --rank beside" -- overlap "$tmp/out/fsdp" --rank 0

# ---- what would hide it --------------------------------------------------------------------------

# shellcheck disable=SC2086
works overlap "$far" --strategy fsdp $short --top 2 --out "$tmp/picture" --notes
has "$out" "What would hide it" "reshard_after_forward=false" "an infinitely fast host" \
    "HSDP: replicas of a smaller group" "tensor parallelism over two GPUs" \
    "links of twice the rate" "own communicator for reduce-scatter" "batch=2" "and "
has "$tmp/picture/overlap.csv" "kind,phase,micro_batch" "all_gather_backward,backward"
has "$tmp/picture/overlap-frame.csv" "measured,step_s"
if command -v gnuplot >/dev/null; then
    checks=$((checks + 1))
    if [ ! -s "$tmp/picture/overlap.png" ] || [ ! -s "$tmp/picture/overlap.svg" ]; then
        complain "no picture"
    fi
fi
# Best first; a change that is simulated by itself gives the same time.
# shellcheck disable=SC2086
works overlap "$far" --strategy fsdp $short --format json
gains=$(sed -n 's/.*"gain_share": \([-0-9.e]*\).*/\1/p' "$out")
equal "order of gains" "$(printf '%s\n' "$gains" | sort -g -r)" "$gains"
# (a double may read back one digit off: 6 of them are enough)
kept=$(sed -n '/keep parameters after forward/,/step_s/s/.*"step_s": \([0-9.e-]*\).*/\1/p' "$out")
# shellcheck disable=SC2086
works sim "$far" --strategy fsdp-reshard-false $short --format csv
cp "$out" "$rows"
true_that "a change, simulated" "($kept - $(column "$rows" fsdp-reshard-false step_time_s))^2 < 1e-14"

# ---- host ----------------------------------------------------------------------------------------

# exposed REASON-KEY ARGUMENT...: milliseconds, whole ones
exposed() {
    key=$1
    shift
    works overlap "$flagship" --strategy fsdp --no-what-if --format json "$@"
    sed -n '/^  "total"/,/^  }/p' "$out" | sed -n "s/.*\"$key\": \([-0-9.e]*\).*/\1/p" | awk '{ printf "%d", 1e3 * $1 }'
}
# A host that stops after each step launches late when the step begins again.
slow="--set sim.host_scale=7 --set seq=2048"
# shellcheck disable=SC2086
ahead=$(exposed host_late_s $slow)
step=$(number step_s)
# shellcheck disable=SC2086
exposed host_late_s $slow --set sync_each_step=step >/dev/null
longer=$(number step_s)
# shellcheck disable=SC2086
reads=$(exposed host_late_s $slow --set sync_each_step=loss)
true_that "step with a stop" "$longer > 1.01 * $step"
true_that "host late after a read" "$reads > $ahead"
works program "$flagship" --strategy fsdp --set sync_each_step=loss
equal "reads of a loss" "$(grep -c host_read "$out")" 1
works program "$flagship" --strategy fsdp --set sync_each_step=loss --set accumulation.steps=3
equal "reads of three losses" "$(grep -c host_read "$out")" 3
works program "$flagship" --strategy fsdp
equal "no read" "$(grep -c host_read "$out")" 0
works program "$flagship" --strategy fsdp --set sync_each_step=step
# The end of the step waits for every stream that worked.
true_that "waits at the end" "$(tail -n 20 "$out" | grep -c host_wait) >= 3"
# One hardware queue undoes implicit prefetch; explicit prefetch brings it back.
equal "8 connections" "$(exposed stream_order_s --set sim.cuda_device_max_connections=8)" 0
one=$(exposed stream_order_s --set sim.cuda_device_max_connections=1)
true_that "one connection" "$one > 30"
works overlap "$flagship" --strategy fsdp --set sim.cuda_device_max_connections=1 --top 3 --notes
has "$out" "a hardware queue per stream" "stream order"

# ---- a measured run ------------------------------------------------------------------------------

small=$TSR_SOURCE_DIR/experiments/small/llama.yaml
if "$TESSERA" run "$small" --on host --ranks 2 --strategy fsdp --set world=2 --set batch=1 \
    --set seq=32 --set data.train=null --set data.val=null --set eval.every=0 --set train.warmup=0 \
    --set train.steps=4 --profile --out "$tmp/run" >"$out" 2>"$err"; then
    works overlap "$tmp/run" --format json
    has "$out" '"measured": true' '"kind": "reduce_scatter"'
    measured=$(number exposed_s)
    equal "measured" "$measured" "$(sed -n 's/.*"exposed_communication_s": \([-0-9.e]*\).*/\1/p' \
        "$tmp/run/measured/summary.json" | awk '{ printf "%.9g", $0; exit }')"
    works overlap "$tmp/run/measured/fsdp-measured"
    has "$out" "(measured)"
    works diff "$tmp/run/measured/fsdp-measured" "$small:fsdp" --set world=2 --set batch=1 --set seq=32
    has "$out" "exposed communication:"
    # Ranks on cores, no GPUs; and not in the pictures of time of what is simulated.
    grep -q "2 ranks on [0-9]* cores" "$tmp/run/measured/compare-frame.csv" || complain "no ranks"
    grep -q "2 ranks on [0-9]* cores" "$tmp/run/measured/fsdp-measured/timeline.csv" || complain "ranks"
    # A run stands beside a simulation of its own machine alone: as many ranks on the same device.
    like=(--only fsdp --set batch=1 --set seq=32 --measured "$tmp/run")
    fails 2 "of 2 ranks on host, beside fsdp, simulated on 4 x h100-sxm5-80g; allowed: the machine of the run" \
        "--set cluster=DIR/cluster-host.json, which \`tessera calibrate --on host --out DIR\` makes there, and --set world=2" \
        -- compare "$small" "${like[@]}" --out "$tmp/refused"
    [ ! -e "$tmp/refused/fsdp-measured" ] || complain "a refused run was copied"
    fails 2 "simulated on 2 x h100-sxm5-80g" -- compare "$small" "${like[@]}" --set world=2
    mkdir "$tmp/machine" # as calibrate names what it writes; cli/calibrate_host.sh compares with the real ones
    for kind in gpu-h100-sxm5-80g node-dgx-h100 cluster-dgx-h100-1; do
        sed "s/\"name\": \"${kind#*-}\"/\"name\": \"host\"/; s/\"gpu\": \"h100-sxm5-80g\"/\"gpu\": \"host\"/; s/\"node\": \"dgx-h100\"/\"node\": \"host\"/" \
            "$TSR_SOURCE_DIR/experiments/clusters/$kind.json" >"$tmp/machine/${kind%%-*}-host.json"
    done
    like+=(--set "cluster=$tmp/machine/cluster-host.json")
    fails 2 "of 2 ranks on host, beside fsdp, simulated on 1 x host" "allowed: the machine of the run: --set world=2" \
        -- compare "$small" "${like[@]}" --set world=1
    works compare "$small" "${like[@]}" --set world=2 --out "$tmp/beside" --pictures svg
    has "$out" "| fsdp-measured |" "| ran " "| 2 x host"
    checks=$((checks + 1))
    python3 - "$tmp/beside/summary.json" <<'END' || complain "the row of the run"
import json, sys
rows = {row["strategy"]: row for row in json.load(open(sys.argv[1]))["rows"]}
run, simulated = rows["fsdp-measured"], rows["fsdp"]
assert run["device"] == simulated["device"] == "host" and run["world_size"] == simulated["world_size"] == 2
assert run["verdict"] == "unknown" and run["usable_bytes"] is None and run["time_error"] == ""
END
    has "$err" "note: fsdp-measured ran what is simulated: both program hashes are $(sed -n \
        's/.*"program_hash": "\([0-9a-f]*\)".*/\1/p' "$tmp/run/measured/summary.json")"
    grep -q '^fsdp,' "$tmp/beside/compare.csv" || complain "what is simulated is not drawn"
    grep -q '^fsdp-measured,' "$tmp/beside/compare.csv" && complain "measured beside simulated"
    grep -q '^fsdp-measured,' "$tmp/beside/measured.csv" || complain "no measured.csv"
    grep -q 'machine of the run · 2 ranks,.*,1$' "$tmp/beside/measured-frame.csv" || complain "measured-frame.csv"
    grep -q '"measured":true' "$tmp/beside/report.html" || complain "report.html draws it beside the others"
    if command -v gnuplot >/dev/null; then
        [ -s "$tmp/beside/measured-time.svg" ] || complain "no measured-time.svg"
        grep -q measured "$tmp/beside/compare-time.svg" && complain "compare-time.svg is not simulated alone"
    fi
    works compare "$small" "${like[@]}" --set world=2 --set clip=false
    has "$err" "note: fsdp-measured ran another program (hash "
else
    has "$err" "built without" # no executor in this build
fi

# ---- diff ----------------------------------------------------------------------------------------

works diff "$far:fsdp" "$far:fsdp-embed-head"
has "$out" "RS (root) (reduce-scatter): bandwidth, then absent" "exposed communication"
works diff "$far:fsdp" "$far:fsdp" --format json
has "$out" '"changed": []'
works diff "$far:fsdp" "$far:hsdp-16x8" --format json
true_that "difference" "($(number exposed_difference_s) - $(sum overlap difference_s))^2 < 1e-18"
mkdir "$tmp/old"
cp "$tmp/out/fsdp/memory.csv" "$tmp/old"
works diff "$tmp/old" "$tmp/out/fsdp" --format json
has "$out" '"overlap": null'

# ---- mistakes ------------------------------------------------------------------------------------

fails 2 "overlap: no file given" "FILE|RUN_DIR" -- overlap
fails 2 "--strategy: none given" "fsdp-one-group" -- overlap "$flagship"
fails 2 "found \"fsdb\"" "nearest strategy: \"fsdp\"" -- overlap "$flagship" --strategy fsdb
fails 2 "--format: found md" "text, json or csv" -- overlap "$flagship" --strategy fsdp --format md
fails 2 "--strategy: none given" "hsdp-16x8" -- overlap "$tmp/out"
fails 2 "--strategy: found \"fsdb\"" "hsdp-16x8" -- overlap "$tmp/out" --strategy fsdb
fails 2 "has no overlap.csv" "run --profile" -- overlap "$tmp/old"
fails 2 "--set beside" -- overlap "$tmp/out/fsdp" --set batch=2
fails 2 "sim.cuda_device_max_connections: found 33" "0 to 32" -- overlap "$flagship" --strategy fsdp --set sim.cuda_device_max_connections=33
fails 2 "sync_each_step: found often" "none, loss or step" -- overlap "$flagship" --strategy fsdp --set sync_each_step=often
fails 2 "separate_reduce_scatter_group: found true, which api: replicate does not read" -- sim "$flagship" --strategy replicate --set separate_reduce_scatter_group=true
cp -r "$tmp/out/fsdp" "$tmp/broken"
sed -i '5s/^[a-z_]*/all_gathers/' "$tmp/broken/overlap.csv"
fails 2 "overlap.csv:5: kind: found \"all_gathers\"" -- overlap "$tmp/broken"
sed -i '5s/^[a-z_]*,forward,0,[0-9]*/other,forward,0,many/' "$tmp/broken/overlap.csv"
fails 2 "overlap.csv:5: bytes: found \"many\"" -- overlap "$tmp/broken"
sed -i '5s/$/,more/' "$tmp/broken/overlap.csv"
fails 2 "overlap.csv:5: row" "as many fields" -- overlap "$tmp/broken"
sed -i 's/^kind,/kinds,/' "$tmp/broken/overlap.csv"
fails 2 "overlap.csv:4: head" -- overlap "$tmp/broken"
rm "$tmp/broken/overlap-frame.csv"
fails 2 "overlap-frame.csv" -- overlap "$tmp/broken"
finish
