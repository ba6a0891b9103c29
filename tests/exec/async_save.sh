#!/usr/bin/env bash
# Checkpoints that a thread writes while training goes on (--async-save): the same bytes as those
# that are written at once, the same losses; a run goes on from them; a thread that cannot write ends
# the run at a later step, with the last good checkpoint as it was.
# shellcheck source=tests/exec/_faults.sh
. "$TSR_SOURCE_DIR/tests/exec/_faults.sh"
fsdp=(run "$job" --on host --strategy fsdp)

for how in --ranks --nproc; do
    now=$tmp/now$how later=$tmp/later$how
    works "${fsdp[@]}" "$how" 2 --out "$now"
    works "${fsdp[@]}" "$how" 2 --out "$later" --async-save
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
    works "${fsdp[@]}" "$how" 2 --resume "$later" --set train.steps=10 --async-save
    loads "$later" 10
done

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
    lines "$tmp/told" "$([ "$how" = --ranks ] && echo 1 || echo 2)" \
        "step_00000004.tmp/rank_0000" "File too large" \
        "; the last checkpoint is $dir/checkpoints/step_00000002"
    checks=$((checks + 1))
    [ ! -e "$dir/checkpoints/step_00000004.tmp" ] || complain "$how: a part was left"
    loads "$dir" 2
done

# On a simulator nothing is saved.
fails 2 --async-save "--on host or cuda" -- run "$job" --on sim --strategy fsdp --async-save
finish
