#!/usr/bin/env bash
# `tessera run --on cuda` with ranks that are processes, on the stand-in's GPUs: the losses of threads under every
# launcher, what is refused, and going on with another number of ranks.
# shellcheck source=tests/cuda/_processes.sh
. "$TSR_SOURCE_DIR/tests/cuda/_processes.sh"
: "${tmp:?a folder of our own}" "${job:?}" "${out:?}" "${err:?}"

# ---- the same losses ----

# expect NAME STATUS: what $tmp/NAME holds are the losses of threads.
expect() {
    checks=$((checks + 1))
    [ "$2" = 0 ] || complain "$1: exit status $2"
    losses "$tmp/$1" >"$tmp/got"
    cmp -s "$tmp/want" "$tmp/got" || complain "$1: other losses than those of threads"
}
# Enough steps for some that are launched as graphs.
few=(--set train.steps=7 --set checkpoints.every=0 --timeout 60)

for strategy in fsdp ddp hsdp; do
    n=2
    [ $strategy = fsdp ] || n=4
    run --ranks $n --out "$tmp/threads-$strategy" "${few[@]}" >"$out" 2>"$err" || complain "$strategy, threads: status $?"
    losses "$tmp/threads-$strategy" >"$tmp/want"
    checks=$((checks + 1))
    [ "$(wc -l <"$tmp/want")" = 7 ] || complain "$strategy: not 7 steps"
    run --nproc $n --out "$tmp/$strategy" "${few[@]}" >"$out" 2>"$err"
    expect $strategy $?
done
has "$err" "NCCL 2.28.9"
unset strategy
# Other orders of sums than those of the host, but the same numbers to the digits that are shown.
losses "$tmp/threads-fsdp" >"$tmp/want"
"$TESSERA" run "$job" --on host --strategy fsdp --ranks 2 --out "$tmp/host" "${few[@]}" >"$out" 2>"$err" </dev/null ||
    complain "host: status $?"
losses "$tmp/host" | cut -d ' ' -f 2 | cut -c 1-6 >"$tmp/a"
cut -d ' ' -f 2 "$tmp/want" | cut -c 1-6 >"$tmp/b"
same "$tmp/a" "$tmp/b"
run --graphs off --nproc 2 --out "$tmp/direct" "${few[@]}" >"$out" 2>"$err"
expect direct $?
run --comm loopback --ranks 2 --out "$tmp/loopback" "${few[@]}" >"$out" 2>"$err"
expect loopback $?
run --nproc 2 --comm nccl:windows,zero-cta --out "$tmp/windows" "${few[@]}" >"$out" 2>"$err"
expect windows $?

# by_variables NAME RANK-VARIABLE LOCAL-VARIABLE SETTING...: two processes as launcher NAME starts them.
by_variables() {
    local name=$1 rank_name=$2 local_name=$3 rank status=0 pids=()
    shift 3
    TSR_PORT=$((TSR_PORT + 3))
    for rank in 0 1; do
        env "$@" "$rank_name=$rank" "$local_name=$rank" "$TESSERA" run "$job" "${words[@]}" --strategy fsdp \
            "${few[@]}" --out "$tmp/$name" >"$tmp/out.$rank" 2>&1 </dev/null &
        pids+=($!)
    done
    for rank in 0 1; do
        wait "${pids[rank]}" || status=$?
    done
    expect "$name" $status
    [ ! -s "$tmp/out.1" ] || complain "$name: another rank than 0 speaks: $(head -n 1 "$tmp/out.1")"
}
by_variables torchrun RANK LOCAL_RANK -u TSR_PORT WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT=$((TSR_PORT + 1)) TORCHELASTIC_RUN_ID=a-test
by_variables srun SLURM_PROCID SLURM_LOCALID SLURM_NTASKS=2 SLURM_STEP_NODELIST=localhost SLURM_JOB_ID=7
by_variables openmpi OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2
by_variables mpich PMI_RANK MPI_LOCALRANKID PMI_SIZE=2 MPI_LOCALNRANKS=2

# ---- what is refused ----

# refused WORD...: one line, status 2, of --nproc with the words in $how.
refused() {
    checks=$((checks + 1))
    run "${how[@]}" >"$out" 2>"$tmp/all"
    [ $? = 2 ] || complain "${how[*]}: not status 2"
    grep -v "$news" "$tmp/all" >"$err"
    lines "$err" 1 "$@"
}
how=(--nproc 2 --gpu 0)
refused "found ranks 0 and 1 on one" "a GPU for each rank" "--comm loopback"
how=(--nproc 2 --graphs maybe)
refused "--graphs: found maybe"
how=(--nproc 2 --comm loopback)
refused "found loopback with ranks that are processes" "allowed"
export TSR_STANDIN=gpus=2
how=(--nproc 3)
refused "GPU: found 2; allowed: 0 to 1"
export TSR_STANDIN=gpus=1
how=(--nproc 2)
refused "found ranks 0 and 1 on one"
export TSR_STANDIN=gpus=4
own=([1]=nccl=22903)
by_hand 2 "${few[@]}"
ended_with 0 2 "rank 1 has NCCL 2.29.3, rank 0 has 2.28.9" "need the same"
ended_with 1 2
own=([1]=nccl=22703)
by_hand 2 "${few[@]}"
ended_with 0 1 "rank 1" "NCCL 2.27.3 is loaded" "2.28.9"
ended_with 1 1 "NCCL 2.27.3 is loaded" "2.28.9"

# ---- going on with other ranks ----

at() { # STEPS BATCH ARGUMENT...
    local steps=$1 batch=$2
    shift 2
    run --set batch="$batch" --set train.steps="$steps" --set train.schedule=constant --set checkpoints.every=0 \
        "$@" >"$out" 2>"$err" || complain "$*: status $?"
}
at 6 1 --nproc 4 --out "$tmp/stays"
at 3 1 --nproc 4 --out "$tmp/moves"
at 6 2 --nproc 2 --resume "$tmp/moves"
has "$err" "going on behind step 3"
losses "$tmp/stays" >"$tmp/want"
losses "$tmp/moves" >"$tmp/got"
checks=$((checks + 1))
paste -d ' ' "$tmp/want" "$tmp/got" | awk '
    function off(a, b) { return (a > b ? a - b : b - a) > 3e-6 * a }
    $1 != $4 || off($2, $5) || off($3, $6) { print; bad = 1 }
    END { exit bad || NR != 6 }' >"$tmp/apart" || complain "a run that moves: $(head -n 1 "$tmp/apart")"

# A signal to the launcher ends a run after a step, saved.
start --nproc 2 --timeout 60 --out "$tmp/stopped" --set train.steps=1000000 --set checkpoints.every=0
until_step "$tmp/stopped" 6 && kill -TERM "$started"
ended 0
has "$err" "stopped after step" "--resume $tmp/stopped"
loads "$tmp/stopped"
finish
