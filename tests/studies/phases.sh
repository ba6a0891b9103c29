#!/usr/bin/env bash
# phases: init, load, eval and save beside the steps; memory against the card.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
flagship=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml
all='phases=[init,load,step1,step2,eval,save]'

# bytes OF SECTION COLUMN: a figure of run-peaks.csv of the last --out.
bytes() {
    grep -v '^#' "$tmp/out/fsdp/run-peaks.csv" | awk -F, -v section="$1" -v column="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == column) c = i }
        $1 == section { print $c }'
}

# at_least NAME VALUE LEAST
at_least() {
    checks=$((checks + 1))
    [ "$2" -ge "$3" ] 2>/dev/null || complain "$1: $2 is not at least $3"
}

small='--set model=qwen2.5-0.5b --set batch=1 --set seq=512'
run() {
    rm -rf "$tmp/out"
    # shellcheck disable=SC2086 # words are meant to be split
    works sim "$flagship" --strategy fsdp $small --set "$all" --out "$tmp/out" --pictures none "$@"
}

# The steps are the same whatever else the run does.
# shellcheck disable=SC2086
works sim "$flagship" --strategy fsdp $small --format json
steady=$(grep '"peak_allocated_bytes"' "$out" | sed -n 1p)
works sim "$flagship" --strategy fsdp $small --set 'phases=[init,step1,step2,eval,save]' --format json
[ "$(grep '"peak_allocated_bytes"' "$out" | sed -n 1p)" = "$steady" ] ||
    complain "phases change the steady step"
run --format json
has "$out" '"peak_bytes_by_section"' '"context_bytes"' '"nccl_bytes"' '"library_bytes": null' \
    '"pinned_bytes"' '"host_bytes"'
for section in init load step1 step2 eval save; do
    has "$out" "\"$section\": {"
    at_least "$section" "$(bytes $section peak_allocated_bytes)" 1
done
meta=$(bytes init peak_allocated_bytes)
pinned=$(bytes save pinned_held_bytes)
save=$(bytes save peak_allocated_bytes)
at_least "pinned memory of a sharded save" "$pinned" 10000000
has "$tmp/out/fsdp/run.csv" 'time_s,place,section,phase' host_bytes,pinned_bytes,pinned_held_bytes \
    ,load,load, ,step1,forward, ,eval,eval, ,save,save,
[ "$(grep -v '^#' "$tmp/out/fsdp/run.csv" | awk -F, 'NR > 2 && $1 + 0 < last { bad++ }
    NR > 1 { last = $1 + 0 } END { print bad + 0 }')" = 0 ] || complain "time runs backwards"
works sim "$flagship" --strategy fsdp --set seq=2048 --set "$all" --notes
has "$out" "| peak by phase, GiB" "| fsdp               | eval" "| max reserved |" "| NCCL |"

# Time that a save adds: copies that the host waits for, or that run beside the next step. Pinned
# memory: a few megabytes, or the shards.
adds() {
    works sim "$flagship" --strategy fsdp --set "phases=[step2,save]" --set save="$1"
    awk -F'|' '/^\| fsdp *\| save /{ print int(10 * $8), int(100 * $7) }' "$out"
}
# shellcheck disable=SC2046
set -- $(adds sharded) $(adds sharded_async)
at_least "time that a save adds" "$1" 100
at_least "less time for copies beside a step" "$(($1 / 10))" "$3"
at_least "more pinned memory for them" "$4" "$((5 * $2))"
works check "$flagship" --strategy fsdp --set save=sharded_async
has "$out" "nothing found"

# 494 million parameters of 4 bytes, tied embedding once.
full=$((494032768 * 4))
run --set init=device --set load=full_rank0 --set save=full_device
at_least "the model on one device" "$(bytes init peak_allocated_bytes)" $full
at_least "a file on rank 0's host" "$(bytes load host_bytes)" $((3 * full))
at_least "a full state dict on the device" "$(bytes save peak_allocated_bytes)" $((3 * full))
run --set init=host --set save=full_rank0
at_least "the model on the host" "$(bytes init host_bytes)" $full
at_least "rank 0's host" "$(bytes save host_bytes)" $((3 * full))
at_least "less than the model on the device" $full "$(bytes init peak_allocated_bytes)"
at_least "shards" $full "$meta"
at_least "a sharded save is no larger than a gathered one" "$(bytes save peak_allocated_bytes)" "$save"

# Without phases there is no curve of the run.
works sim "$flagship" --strategy fsdp --out "$tmp/plain" --pictures none
[ -e "$tmp/plain/fsdp/run.csv" ] && complain "run.csv without phases"
grep -q "peak by phase" "$out" && complain "a table by phase without phases"

# Ranks of one program each; several nodes.
works compare "$TSR_SOURCE_DIR/experiments/flagship/h100-128.yaml" --only hsdp-16x8 \
    --set "$all" --set load=full_rank0 --set save=full_rank0
has "$out" "| hsdp-16x8          | save"

# program shows the parts.
works program "$flagship" --strategy fsdp --iteration load --set load=full_rank0
has "$out" "iteration load" broadcast h2d_full
works program "$flagship" --strategy fsdp --iteration eval
has "$out" "iteration eval" all_gather
works program "$flagship" --strategy fsdp --iteration save --set save=full_rank0
has "$out" "iteration save" d2h_full host_alloc
works program "$flagship" --strategy fsdp --rank 1 --iteration save --set save=full_rank0
grep -q d2h_full "$out" && complain "rank 1 keeps the full state dict"

# What does not fit says when.
checks=$((checks + 1))
"$TESSERA" sim "$flagship" --strategy fsdp --set "$all" --set save=full_device \
    --set allocator.limit=card >"$out" 2>"$err"
[ $? = 3 ] || complain "a full state dict of 90 GiB fits"
has "$err" "out of memory" "rank 0, save, "

# Mistakes
fails 2 phases "a list of init, load, step1, step2, eval or save, in this order" -- \
    sim "$flagship" --strategy fsdp --set phases=save
fails 2 phases "in this order" -- sim "$flagship" --strategy fsdp --set 'phases=[save,init]'
fails 2 phases "in this order" -- sim "$flagship" --strategy fsdp --set 'phases=[init,init]'
fails 2 phases "in this order" -- sim "$flagship" --strategy fsdp --set 'phases=[]'
fails 2 phases "in this order" -- sim "$flagship" --strategy fsdp --set 'phases=[init,step3]'
fails 2 save "found rank0" "sharded, full_rank0, full_device or sharded_async" -- \
    sim "$flagship" --strategy fsdp --set save=rank0
fails 2 load "sharded or full_rank0" -- sim "$flagship" --strategy fsdp --set load=none
fails 2 init "meta, device or host" -- sim "$flagship" --strategy fsdp --set init=cpu
fails 2 init "tp: 2" -- sim "$flagship" --strategy fsdp --set tp=2 --set init=device
fails 2 save "tp: 2" sharded -- sim "$flagship" --strategy fsdp --set tp=2 --set "$all" \
    --set save=full_rank0
fails 2 --iteration "init, load, eval, save" -- program "$flagship" --strategy fsdp --iteration loss
finish
