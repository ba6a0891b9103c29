#!/usr/bin/env bash
# Mistakes of a user of `tessera run --on host`: one line for the whole job, exit status 2, before a
# step is done, however the ranks are started.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
fsdp=(run "$job" --on host --strategy fsdp)

# Options that contradict each other
fails 2 --nproc --ranks allowed -- "${fsdp[@]}" --nproc 2 --ranks 2
fails 2 --transport carrier-pigeon "auto, shm, tcp, mpi" -- "${fsdp[@]}" --nproc 2 --transport carrier-pigeon
fails 2 --transport carrier-pigeon -- "${fsdp[@]}" --transport carrier-pigeon
fails 2 --verify-operands --serial -- "${fsdp[@]}" --verify-operands
fails 2 --timeout 0 allowed -- "${fsdp[@]}" --timeout 0
fails 2 world 300 256 -- "${fsdp[@]}" --ranks 300
for how in --ranks --nproc; do
    TESSERA_PRODUCTS=mkl fails 2 TESSERA_PRODUCTS mkl "plain, openblas or onednn" -- "${fsdp[@]}" "$how" 2
done

# Values that no training has
fails 2 train.warmup 9 8 train.steps -- "${fsdp[@]}" --set train.warmup=9
fails 2 train.beta2 allowed -- "${fsdp[@]}" --set train.beta2=1
fails 2 train.max_norm allowed -- "${fsdp[@]}" --set train.max_norm=0
fails 2 data.train "empty name" -- "${fsdp[@]}" --set "data.train=$tmp/job.yaml,,$tmp/none.bin"
sed 's/"rope_theta": [0-9.]*/"rope_theta": 0/' "$TSR_SOURCE_DIR/experiments/small/llama-tiny.json" >"$tmp/flat.json"
fails 2 flat.json rope_theta positive -- "${fsdp[@]}" --set "model=$tmp/flat.json"
fails 2 --out "$tmp/job.yaml/x" allowed -- corpus "$TSR_SOURCE_DIR/engine" --out "$tmp/job.yaml/x"

# Ranks and mesh. Of four processes one speaks.
for how in --ranks --nproc; do
    fails 2 mesh 4 3 -- run "$job" --on host --strategy hsdp "$how" 3
    fails 2 batch=x allowed -- "${fsdp[@]}" "$how" 4 --set batch=x
    fails 2 "not there" data.train -- "${fsdp[@]}" "$how" 4 --set "data.train=$tmp/none.bin"
    fails 2 "not there" model.weights -- "${fsdp[@]}" "$how" 4 --set "model.weights=$tmp/none.safetensors"
    fails 2 --strategy nobody -- run "$job" --on host --strategy nobody "$how" 4
done

# Where results go
: >"$tmp/file"
for how in --ranks --nproc; do
    fails 2 --out "$tmp/file" allowed -- "${fsdp[@]}" "$how" 2 --out "$tmp/file"
    fails 2 --out "$tmp/file/x" allowed -- "${fsdp[@]}" "$how" 2 --out "$tmp/file/x"
    fails 2 --out /proc/tessera allowed -- "${fsdp[@]}" "$how" 2 --out /proc/tessera
    fails 2 --out allowed -- "${fsdp[@]}" "$how" 2 --out ''
done
if [ "$(id -u)" != 0 ]; then # nothing is read-only for root
    mkdir -m 555 "$tmp/read-only"
    fails 2 --out "$tmp/read-only" "ermission denied" -- "${fsdp[@]}" --out "$tmp/read-only"
fi

# Going on from nothing, from something else, into something else
for how in --ranks --nproc; do
    fails 2 --resume "$tmp/nothing" "no checkpoint" -- "${fsdp[@]}" "$how" 2 --resume "$tmp/nothing"
    [ -e "$tmp/nothing" ] && complain "--resume made a folder"
done
fails 2 --resume allowed -- "${fsdp[@]}" --resume ''
mkdir "$tmp/empty"
fails 2 --resume "$tmp/empty" "no checkpoint" -- "${fsdp[@]}" --resume "$tmp/empty" --out "$tmp/o"
works "${fsdp[@]}" --out "$tmp/run"
grep -qE '"host_products": "(OpenBLAS|plain loops)' "$tmp/run/run.json" || complain "run.json: no products"
TESSERA_PRODUCTS=plain works "${fsdp[@]}" --out "$tmp/plain"
grep -q '"host_products": "plain loops"' "$tmp/plain/run.json" || complain "run.json: other products than plain"
fails 2 --out "$tmp/run" checkpoints "--resume $tmp/run" -- "${fsdp[@]}" --out "$tmp/run"
fails 2 --out "$tmp/run" checkpoints -- "${fsdp[@]}" --nproc 2 --out "$tmp/run"
fails 2 --resume step_00000008 "--out" -- "${fsdp[@]}" --resume "$tmp/run/checkpoints/step_00000008"
for how in --ranks --nproc; do
    more=("$how" 2 --resume "$tmp/run" --set train.steps=9 --out "$tmp/o")
    fails 2 step_00000008 "another model" allowed -- "${fsdp[@]}" "${more[@]}" --set model.layers=1
    fails 2 step_00000008 "other training data" allowed -- "${fsdp[@]}" "${more[@]}" --set seq=8
    fails 2 step_00000008 "another optimizer" allowed allowed -- \
        "${fsdp[@]}" "${more[@]}" --set optimizer.name=sgd
done
works "${fsdp[@]}" --resume "$tmp/run"
has "$err" "all 8 steps are done" train.steps
checks=$((checks + 1))
lines "$err" 1
[ ! -s "$out" ] || complain "a run that is over does a step"
works "${fsdp[@]}" --resume "$tmp/run" --set train.steps=9 --nproc 2
has "$err" "going on behind step 8" "saved after step 9"
works "${fsdp[@]}" --resume "$tmp/run/checkpoints/step_00000008" --set train.steps=10 --out "$tmp/branch"
has "$err" "going on behind step 8" "$tmp/branch/checkpoints/step_00000010"

# What was refused has left nothing behind.
checks=$((checks + 1))
left=$(find "$tmp/o" "$tmp/empty" -name 'step_*' -o -name 'flight*' 2>/dev/null)
[ -z "$left" ] || complain "left behind: $left"

# by_hand RANK SIZE ARGUMENT...: a rank that no launcher of ours started.
by_hand() {
    local rank=$1 size=$2
    shift 2
    TSR_RANK=$rank TSR_SIZE=$size TSR_LOCAL_RANK=$rank run "$@" --timeout 20
}

# differ WORD ARGUMENT...: of three ranks the last two have other arguments; rank 1 is named, by
# rank 0, and all end with status 2.
differ() {
    local word=$1 rank statuses=""
    shift
    checks=$((checks + 1))
    for rank in 1 2; do
        by_hand $rank 3 --ranks 3 "$@" >"$tmp/out.$rank" 2>&1 &
    done
    by_hand 0 3 --ranks 3 >"$out" 2>"$err"
    statuses=$?
    for rank in 1 2; do
        wait -n
        statuses="$statuses $?"
    done
    [ "$statuses" = "2 2 2" ] || complain "differ $word: exit statuses $statuses"
    [ -s "$out" ] && complain "differ $word: a step was done"
    lines "$err" 1 "$word" "rank 1" "rank 0"
    [ -z "$(cat "$tmp/out.1" "$tmp/out.2")" ] || complain "differ $word: more than one rank speaks"
}
differ train.lr --set train.lr=0.004
differ batch --set batch=2
differ reshard_after_forward --set reshard_after_forward=false
differ --out --out "$tmp/o"
checks=$((checks + 1))
by_hand 1 2 --ranks 2 --set train.lr=never >"$tmp/out.1" 2>&1 &
by_hand 0 2 --ranks 2 >"$out" 2>"$err"
first=$?
wait $!
[ "$first $?" = "2 2" ] || complain "a rank whose file is wrong: not status 2 everywhere"
lines "$err" 1 train.lr never allowed

# A launcher that started another number of ranks
checks=$((checks + 1))
by_hand 1 2 --ranks 4 >"$tmp/out.1" 2>&1 &
by_hand 0 2 --ranks 4 >"$out" 2>"$err"
[ $? = 2 ] || complain "2 ranks for a job of 4: not status 2"
wait
lines "$err" 1 world 4 2 TSR_RANK allowed
finish
