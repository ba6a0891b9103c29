#!/usr/bin/env bash
# calibrate: logs of nccl-tests become tables that validate reads; mistakes name the line.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

log() {
    cat <<'END'
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
END
    for rank in 0 1 2 3 4 5 6 7; do
        echo "#  Rank  $rank Group  0 Pid  $((100 + rank)) on      node1 device  $rank [0x0$rank] NVIDIA H100 80GB HBM3"
    done
    cat <<'END'
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    44.10   23.78   41.61      0    43.90   23.89   41.80      0
    67108864      16777216     float     sum      -1    395.1  169.85  297.24      0    394.0  170.33  298.08      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 169.683
END
}

# The ratio of the bandwidths says all-reduce; so does a line, or the name of the file.
log >"$tmp/job.log"
works calibrate --nccl-log "$tmp/job.log" --out "$tmp/job.csv"
has "$tmp/job.csv" "all_reduce,H100 80GB HBM3,8,1,,nccl-tests,67108864,395.1,169.85,297.24,measured"
works validate "$tmp/job.csv"
has "$out" "kind nccl_busbw, 2 rows" "h100-sxm5-80g"
grep -q "NOT MODELLED" "$out" && complain "a row of a log is not modelled"
log | sed 's/sum /none/' >"$tmp/all_gather.log"
works calibrate --nccl-log "$tmp/all_gather.log"
has "$out" "all_gather,H100 80GB HBM3,8,1"
log | sed 's/^# nThread/# Collective test starting: reduce_scatter_perf\n&/; s/on *node1 device  [4-7]/on node2 device 0/' >"$tmp/two.log"
works calibrate --nccl-log "$tmp/two.log"
has "$out" "reduce_scatter,H100 80GB HBM3,8,2"

# Mistakes.
fails 2 "no log given" "--nccl-log" -- calibrate
log >"$tmp/job.log"
fails 2 "--out: found $tmp/none/x.csv" -- calibrate --nccl-log "$tmp/job.log" --out "$tmp/none/x.csv"
fails 2 "/nowhere.log" "cannot be opened" -- calibrate --nccl-log /nowhere.log
log | sed 's/169.85  297.24.*//' >"$tmp/bad.log"
fails 2 "bad.log:17" '67108864' "size, count, type" -- calibrate --nccl-log "$tmp/bad.log"
log | sed 's/297.24      0/297.24      3/' >"$tmp/bad.log"
fails 2 "bad.log:17: found 3 wrong results" -- calibrate --nccl-log "$tmp/bad.log"
log | sed 's/07\] NVIDIA H100/07] NVIDIA A100/' >"$tmp/bad.log"
fails 2 "bad.log:11: found a A100" "equal GPUs" -- calibrate --nccl-log "$tmp/bad.log"
log | sed 's/169.85  297.24/nan  297.24/' >"$tmp/bad.log"
fails 2 "bad.log:17: found" "size, count, type" -- calibrate --nccl-log "$tmp/bad.log"
log | sed "s/NVIDIA H100/NVIDIA $(printf '\033')[2J/" >"$tmp/bad.log"
fails 2 "bad.log:" "control character U+001B" -- calibrate --nccl-log "$tmp/bad.log"
{
    awk 'BEGIN { for (i = 0; i < 1023; i++) printf "x" }' # what a long line goes on with is no size
    echo '1 2 3'
    log
} >"$tmp/long.log"
works calibrate --nccl-log "$tmp/long.log"
log | grep -v Rank >"$tmp/bad.log"
fails 2 "bad.log" "no line \"# Rank\"" -- calibrate --nccl-log "$tmp/bad.log"
log | grep -v float >"$tmp/bad.log"
fails 2 "bad.log" "no line of a size" -- calibrate --nccl-log "$tmp/bad.log"
log | sed 's/297.24/169.85/' >"$tmp/bad.log"
fails 2 "bad.log" "which collective" "all_gather_perf" -- calibrate --nccl-log "$tmp/bad.log"
log | sed "s/NVIDIA .*/NVIDIA $(printf 'R%.0s' $(seq 300))/" >"$tmp/bad.log"
fails 2 "bad.log:" "a name of 300 bytes" "allowed: up to 95" -- calibrate --nccl-log "$tmp/bad.log"
finish
