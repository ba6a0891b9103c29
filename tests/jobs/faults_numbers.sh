#!/usr/bin/env bash
# What goes wrong in the middle of a run: a loss, a gradient or a parameter that is no number, and a
# disk that is full. One line for each rank that names step and rank or file, status 1, and the last
# checkpoint loads.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"

# dies STATUS RANKS WORD... -- ARGUMENT...: of RANKS processes, or of 1 process of two threads.
dies() {
    local status=$1 ranks=$2 words arguments
    split "${@:3}"
    checks=$((checks + 1))
    run "$([ "$ranks" = 1 ] && echo --ranks || echo --nproc)" 2 --timeout 60 "${arguments[@]}" >"$out" 2>"$err"
    local got=$?
    [ "$got" = "$status" ] || complain "exit status $got, not $status: ${arguments[*]}"
    grep -v "tessera: going on behind" "$err" >"$tmp/told"
    lines "$tmp/told" 1 "${words[@]}" # of ranks that fail alike one speaks
}

# ---- numbers -----------------------------------------------------------------------------------

# A learning rate that throws the model away: the loss of the third step is no number.
for ranks in 1 2; do
    rm -rf "$tmp/run"
    dies 1 $ranks "step 3: the loss of rank 0 is nan" \
        "; the last checkpoint is $tmp/run/checkpoints/step_00000002" -- \
        --out "$tmp/run" --set train.lr=1e6 --set train.warmup=0
    has "$tmp/run/metrics.jsonl" '{"step": 3, "loss": "nan", "grad_norm": "nan"'
    flight "$tmp/run" "step 3: the loss" 0 1
    loads "$tmp/run" 2
done
# Logged even if the step is not one to log.
rm -rf "$tmp/run"
dies 1 1 "step 3: the loss of rank 0 is nan" "no checkpoint was saved" -- --out "$tmp/run" \
    --set train.lr=1e6 --set train.warmup=0 --set train.log_every=100 --set checkpoints.every=0
has "$tmp/run/metrics.jsonl" '{"step": 3, "loss": "nan"'

# Weights of which one is NaN: the first loss.
run --ranks 2 --out "$tmp/good" >"$out" 2>"$err" || complain "a run of 8 steps fails"
works export "$tmp/good" --out "$tmp/model"
cp "$tmp/model/model.safetensors" "$tmp/nan.safetensors"
size=$(stat -c %s "$tmp/nan.safetensors")
printf '\377\377\377\177' | dd of="$tmp/nan.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
dies 1 2 "step 1: the loss of rank 0 is nan" "no checkpoint was saved" -- \
    --set "model.weights=$tmp/nan.safetensors"

# Without eps AdamW divides 0 by 0 for the tokens that no batch had: a model that is lost is not
# saved over one that is not.
for ranks in 1 2; do
    rm -rf "$tmp/run"
    cp -r "$tmp/good" "$tmp/run"
    dies 1 $ranks "step 9: parameter " "not finite" \
        "; the last checkpoint is $tmp/run/checkpoints/step_00000008" -- --resume "$tmp/run" \
        --set train.steps=12 --set train.eps=0 --set clip=false --set checkpoints.every=1
    loads "$tmp/run" 8
done

# ---- a full disk -------------------------------------------------------------------------------

# A limit for the size of files, which the checkpoint is over and the metrics are not
for ranks in 1 2; do
    rm -rf "$tmp/run"
    cp -r "$tmp/good" "$tmp/run"
    rm -f "$out" "$err"
    (
        ulimit -f 100
        run "$([ $ranks = 1 ] && echo --ranks || echo --nproc)" 2 --resume "$tmp/run" \
            --set train.steps=12 >"$out" 2>"$err"
    )
    got=$?
    checks=$((checks + 1))
    [ $got = 1 ] || complain "a limit of the file size: exit status $got, not 1"
    grep -v "going on behind" "$err" >"$tmp/told"
    lines "$tmp/told" 1 "step_00000010.tmp/rank_0000" "File too large" \
        "; the last checkpoint is $tmp/run/checkpoints/step_00000008"
    checks=$((checks + 1))
    [ ! -e "$tmp/run/checkpoints/step_00000010" ] || complain "half a checkpoint has its name"
    loads "$tmp/run" 8
    # with room again it goes on to the same end
    works run "$job" --on host --strategy fsdp --ranks 2 --resume "$tmp/run" --set train.steps=12
done

# Where steps are written is full, or nobody reads it any more.
for ranks in 1 2; do
    how=$([ $ranks = 1 ] && echo --ranks || echo --nproc)
    checks=$((checks + 1))
    run "$how" 2 >/dev/full 2>"$err"
    [ $? = 1 ] || complain "/dev/full: not status 1"
    lines "$err" 1 "the line of a step cannot be written: No space left"
    checks=$((checks + 1))
    (
        run "$how" 2 --set train.steps=1000000 2>"$err"
        echo $? >"$tmp/code"
    ) | head -n 1 >"$out"
    [ "$(cat "$tmp/code")" = 1 ] || complain "a closed pipe: status $(cat "$tmp/code"), not 1"
    lines "$err" 1 "the line of a step cannot be written: Broken pipe"
done

# A disk of its own that fills up
mkdir "$tmp/disk"
if mount -t tmpfs -o size=2m none "$tmp/disk" 2>/dev/null; then
    trap 'umount "$tmp/disk"; rm -rf "$tmp"' EXIT
    dies 1 2 "No space left on device" "; the last checkpoint is $tmp/disk/run/checkpoints/step_" -- \
        --out "$tmp/disk/run" --set train.steps=100 --set checkpoints.keep=0
    loads "$tmp/disk/run"
    last=$(losses "$tmp/disk/run" | tail -n 1 | cut -d ' ' -f 1)
    # what was saved goes on when there is room
    rm -rf "$tmp/disk/run/checkpoints/step_00000002"
    works run "$job" --on host --strategy fsdp --ranks 2 --resume "$tmp/disk/run" \
        --set train.steps="$last"
else
    echo "skipped: a full disk, since this user may not mount one (the limit above stands for it)"
fi
finish
