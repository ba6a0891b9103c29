#!/usr/bin/env bash
# Ranks that are processes with a GPU each, on the stand-in's: what becomes of the others when one is killed, is stuck, or
# NCCL fails in it.
# shellcheck source=tests/cuda/_processes.sh
. "$TSR_SOURCE_DIR/tests/cuda/_processes.sh"
: "${tmp:?a folder of our own}" "${job:?}" "${out:?}" "${err:?}"

# ---- ranks that are lost ----

# A rank that never starts.
checks=$((checks + 1))
TSR_RANK=0 TSR_SIZE=2 TSR_LOCAL_RANK=0 run --ranks 2 --timeout 1 >"$out" 2>"$err"
[ $? = 75 ] || complain "a rank that never came: not status 75"
lines "$err" 1 "rank 1"

# One that is killed where the others make their communicator with it, or wait for it in a collective.
for at in ncclCommInitRankConfig:1 ncclCommSplit:1 ncclAllGather:9 cudaGraphLaunch:2; do
    own=([1]=kill=$at)
    rm -rf "$tmp/killed"
    by_hand 3 --timeout 20 --out "$tmp/killed" --set checkpoints.every=1
    checks=$((checks + 1))
    [ "${ends[1]}" = 137 ] || complain "$at: rank 1 was not killed, but ended with ${ends[1]}"
    for rank in 0 2; do
        ended_with $rank 75 "rank 1 is lost"
        has "$tmp/killed/flight-rank-$rank.json" "rank 1 is lost"
    done
done

# One that is killed at any moment of a long run: the launcher says so, and the last checkpoint loads.
process_of() {
    local pid
    for pid in $(pgrep -P "$started"); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "TSR_RANK=$1" && echo "$pid"
    done
}
long=(--set train.steps=1000000 --set checkpoints.every=3)
for victim in 0 2; do
    rm -rf "$tmp/run"
    start --nproc 3 --timeout 20 --out "$tmp/run" "${long[@]}"
    until_step "$tmp/run" 7 || continue
    kill -KILL "$(process_of $victim)"
    ended 75
    grep -F "rank $victim is lost" "$err" >"$tmp/survivors"
    lines "$tmp/survivors" 1 "and so 1 more rank" "; the last checkpoint is $tmp/run/checkpoints/step_"
    has "$err" "rank $victim was killed by signal 9"
    checks=$((checks + 1))
    [ "$(grep -vc "$news" "$err")" = 2 ] || complain "killed: not one line of two ranks and one of the launcher"
    # shellcheck disable=SC2046
    flight "$tmp/run" "rank $victim is lost" $(printf '%s\n' 0 1 2 | grep -v $victim)
    loads "$tmp/run"
    checks=$((checks + 1))
    pgrep -f -- "--out $tmp/run" >"$tmp/left" && complain "killed: a process is left"
done

# One that is stuck.
rm -rf "$tmp/run"
patience=6
! thorough || patience=12
start --nproc 2 --timeout $patience --out "$tmp/run" "${long[@]}"
if until_step "$tmp/run" 4; then
    stopped=$(process_of 1)
    kill -STOP "$stopped"
    for ((i = 0; i < 1200; i++)); do
        grep -q "within $patience s" "$err" && break
        sleep 0.05
    done
    kill -KILL "$stopped"
    ended 75
    has "$err" "within $patience s" "; the last checkpoint is $tmp/run/checkpoints/step_"
    loads "$tmp/run"
fi

# ---- calls of NCCL that fail in one process ----

# 3 is an internal error of NCCL's, 6 a rank that it has lost. Both ranks end with a line; neither hangs.
for call in ncclGetVersion:1:3 ncclCommInitRankConfig:1:3 ncclCommSplit:1:3 ncclAllGather:5:3 ncclReduceScatter:2:3 \
    ncclAllReduce:2:3 ncclCommGetAsyncError:1:3 '(async):1:6'; do
    own=([1]=fail=$call)
    want=$((${call##*:} == 6 ? 75 : 1))
    by_hand 2 --timeout 20
    ended_with 0 $want "rank 1"
    ended_with 1 $want "NCCL"
done
own=([0]=fail=ncclGetUniqueId:1:2)
by_hand 2 --timeout 20
ended_with 0 1 "rank 0: NCCL does not start"
ended_with 1 1 "rank 0: NCCL does not start"
# A GPU that has no memory left: the others say who asked there for it, and nothing of their own.
own=([1]=fail=cuMemCreate:2:2)
by_hand 2 --timeout 20
ended_with 0 3 "rank 1 gave up: a device segment" "; in phase forward, module (root), for a segment"
ended_with 1 3 "rank 1: a device segment" "; in phase forward, module (root), for a segment"
sed 's/rank 1 gave up:/rank 1:/' "$tmp/err.0" >"$tmp/heard"
same "$tmp/heard" "$tmp/err.1"
own=()
finish
