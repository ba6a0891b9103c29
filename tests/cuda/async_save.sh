#!/usr/bin/env bash
# --async-save on the stand-in's GPUs, by loopback and NCCL, and by one rank with graphs: the
# checkpoints of a run that saves while training stands still, byte for byte, and a run goes on from
# them alike.
#
# Environment: TESSERA_STANDIN, the program with the stand-ins.
TESSERA=${TESSERA_STANDIN:?the program with stand-ins}
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
unset XDG_CACHE_HOME HOME # no plans of products are kept
export TSR_STANDIN=gpus=2,delay_us=20,seed=3

cuda() {
    works run "$job" --on cuda --strategy fsdp --deterministic --set train.steps=24 \
        --set checkpoints.every=6 "$@"
}

for how in "--comm loopback" "--graphs off" "--graphs on" "--ranks 1 --graphs on"; do
    # shellcheck disable=SC2086
    cuda $how --out "$tmp/now$how"
    # shellcheck disable=SC2086
    cuda $how --out "$tmp/later$how" --async-save
    checks=$((checks + 2))
    diff -r "$tmp/now$how/checkpoints" "$tmp/later$how/checkpoints" >"$tmp/diff" ||
        complain "$how: $(head -n 1 "$tmp/diff")"
    [ "$(losses "$tmp/now$how")" = "$(losses "$tmp/later$how")" ] || complain "$how: other losses"
done
cuda --comm loopback --out "$tmp/checked" --async-save --check --set train.steps=8
cuda --ranks 1 --resume "$tmp/now--ranks 1 --graphs on" --out "$tmp/now" --set train.steps=30
cuda --ranks 1 --resume "$tmp/later--ranks 1 --graphs on" --out "$tmp/later" --set train.steps=30 --async-save
losses "$tmp/now" >"$tmp/want"
losses "$tmp/later" >"$tmp/got"
same "$tmp/want" "$tmp/got"
checks=$((checks + 1))
[ "$(wc -l <"$tmp/want")" = 6 ] || complain "$(wc -l <"$tmp/want") steps behind the checkpoint"
finish
