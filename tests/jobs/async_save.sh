#!/usr/bin/env bash
# Checkpoints that are copied beside the next step and written by a thread while training goes on
# (--async-save), or only written so (save: sharded): the same bytes as those that are written at
# once, the same losses; a run goes on from them; a thread that cannot write ends the run at a later
# step, with the last good checkpoint as it was.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
fsdp=(run "$job" --on host --strategy fsdp)

# alike NOW LATER WHAT: two runs with the same losses and checkpoints.
alike() {
    local now=$1 later=$2 how=$3 step file
    checks=$((checks + 1))
    [ "$(losses "$now")" = "$(losses "$later")" ] || complain "$how: other losses"
    for step in 4 6 8; do
        for file in rank_00000-of-00002.safetensors rank_00001-of-00002.safetensors meta.json \
            COMMIT; do
            checks=$((checks + 1))
            cmp -s "$now/checkpoints/step_0000000$step/$file" \
                "$later/checkpoints/step_0000000$step/$file" ||
                complain "$how: step $step: $file differs"
        done
    done
    checks=$((checks + 1))
    [ "$(ls "$later/checkpoints")" = "$(ls "$now/checkpoints")" ] ||
        complain "$how: other checkpoints: $(ls "$later/checkpoints")"
}

for how in $(printf '%s\n' --ranks --nproc | every 2); do
    now=$tmp/now$how
    works "${fsdp[@]}" "$how" 2 --out "$now"
    works "${fsdp[@]}" "$how" 2 --resume "$now" --out "$tmp/on$how" --set train.steps=10
    losses "$tmp/on$how" >"$tmp/want"
    for save in sharded_async sharded; do
        later=$tmp/later$how-$save
        works "${fsdp[@]}" "$how" 2 --out "$later" --async-save --set save=$save
        alike "$now" "$later" "$how $save"
        works "${fsdp[@]}" "$how" 2 --resume "$later" --out "$later.on" --set train.steps=10 \
            --async-save --set save=$save
        losses "$later.on" >"$tmp/got"
        same "$tmp/want" "$tmp/got"
        loads "$later.on" 10
    done
done
# Without --set the copies are beside the step, too; --check sees their waits. Where instructions are
# verified, nothing can be lent.
works "${fsdp[@]}" --ranks 2 --out "$tmp/checked" --async-save --check
alike "$tmp/now--ranks" "$tmp/checked" "--check"
works "${fsdp[@]}" --ranks 2 --out "$tmp/verified" --async-save --serial --verify-operands
alike "$tmp/now--ranks" "$tmp/verified" "--verify-operands"
# Saves behind every step, and one at the end only.
for every in 1 8; do
    works "${fsdp[@]}" --ranks 2 --out "$tmp/now$every" --set checkpoints.every=$every
    works "${fsdp[@]}" --ranks 2 --out "$tmp/later$every" --set checkpoints.every=$every \
        --async-save
    checks=$((checks + 1))
    diff -r "$tmp/now$every/checkpoints" "$tmp/later$every/checkpoints" >"$tmp/diff" ||
        complain "every $every: $(head -n 1 "$tmp/diff")"
done
checks=$((checks + 1))
"$TESSERA" program "$job" --strategy fsdp --iteration save --set save=sharded_async >"$out" 2>"$err"
grep -q "save_shard" "$out" || complain "no copies in the program"
checks=$((checks + 1))
! grep -q "lend_checkpoint" "$out" || complain "the program of a save lends before the copies are there"

# A file may grow to 50 KiB: a checkpoint does not fit.
for how in --ranks --nproc; do
    dir=$tmp/full$how
    works "${fsdp[@]}" "$how" 2 --out "$dir" --async-save --set train.steps=2
    (
        ulimit -f 50
        run "$how" 2 --resume "$dir" --async-save >"$out" 2>"$err"
    )
    got=$?
    checks=$((checks + 1))
    [ $got = 1 ] || complain "$how: exit status $got, not 1"
    grep -v "going on behind" "$err" >"$tmp/told"
    lines "$tmp/told" 1 "step_00000004.tmp/rank_0000" "File too large" \
        "; the last checkpoint is $dir/checkpoints/step_00000002"
    checks=$((checks + 1))
    [ ! -e "$dir/checkpoints/step_00000004.tmp" ] || complain "$how: a part was left"
    loads "$dir" 2
done

# A machine that has no room for the copies is told what needs none; without them it says less.
flagship=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml
fails 2 "memory: found a job of" "--set save=sharded saves" -- run "$flagship" --on host \
    --strategy fsdp --ranks 1 --set model.layers=400 --async-save --out "$tmp/large"
fails 2 "memory: found a job of" "what it has (--on sim" -- run "$flagship" --on host \
    --strategy fsdp --ranks 1 --set model.layers=400 --async-save --set save=sharded \
    --out "$tmp/large"

# On a simulator nothing is saved.
fails 2 --async-save "--on host or cuda" -- run "$job" --on sim --strategy fsdp --async-save
# What run does not write is refused, not written in another way.
for full in full_rank0 full_device; do
    fails 2 "save: found $full" 'sharded or sharded_async' -- "${fsdp[@]}" --ranks 2 --out "$tmp/full" --set save=$full
done
finish
