#!/usr/bin/env bash
# The same job under every launcher: ranks as threads, our own processes by shared memory and TCP,
# mpirun of MPICH and of Open MPI, and ranks that find what torchrun and srun set. Losses and norms
# are the same digits at every step. What cannot run here is said.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
tried=0
how=(--set world=3 --set train.steps=12 --set checkpoints.every=0 --timeout 60)

run --out "$tmp/threads" "${how[@]}" >"$out" 2>"$err" || complain "threads: status $?"
losses "$tmp/threads" >"$tmp/want"
checks=$((checks + 1))
[ "$(wc -l <"$tmp/want")" = 12 ] || complain "threads: not 12 steps"

# compare NAME STATUS: what the job under launcher NAME left in $tmp/NAME
compare() {
    tried=$((tried + 1))
    checks=$((checks + 1))
    [ "$2" = 0 ] || complain "$1: exit status $2"
    losses "$tmp/$1" >"$tmp/got"
    cmp -s "$tmp/want" "$tmp/got" || complain "$1: other losses than those of threads"
    [ "$(grep -c 'step: ' "$out")" = 12 ] || complain "$1: not 12 lines of steps"
    grep -qF "saved after step 12: $tmp/$1" "$err" || complain "$1: does not say where it saved"
}

for transport in auto shm tcp; do
    run --nproc 3 --transport $transport --out "$tmp/$transport" --set train.steps=12 \
        --set checkpoints.every=0 --timeout 60 >"$out" 2>"$err"
    compare $transport $?
done

# with_mpirun NAME TRANSPORT MPIRUN...
with_mpirun() {
    local name=$1 transport=$2
    shift 2
    timeout 60 "$@" -n 3 "$TESSERA" run "$job" --on host --strategy fsdp "${how[@]}" \
        --transport "$transport" --out "$tmp/$name" >"$out" 2>"$err" </dev/null
    compare "$name" $?
}
linked() { ldd "$TESSERA" | grep -q "$1"; }
for mpi in mpich openmpi; do
    mpirun=$(command -v mpirun.$mpi)
    if [ -z "$mpirun" ]; then
        echo "skipped: mpirun.$mpi is not installed"
        continue
    fi
    options=()
    library=libmpich
    if [ $mpi = openmpi ]; then
        library=libmpi.so
        options=(--oversubscribe)
        [ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)
    fi
    with_mpirun $mpi auto "$mpirun" "${options[@]}"
    if linked $library; then
        # what MPI itself leaks is not ours
        ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 with_mpirun $mpi-mpi mpi "$mpirun" "${options[@]}"
    else
        echo "skipped: --transport mpi under $mpi, which this program is not linked with"
    fi
done

# by_variables NAME RANK-VARIABLE LOCAL-VARIABLE SETTING...: three processes as launcher NAME starts
# them; those of one host, which the settings say.
by_variables() {
    local name=$1 rank_name=$2 local_name=$3 rank status=0
    shift 3
    for rank in 1 2; do
        env -u TSR_PORT "$@" "$rank_name=$rank" "$local_name=$rank" "$TESSERA" run "$job" --on host \
            --strategy fsdp "${how[@]}" --out "$tmp/$name" >"$tmp/out.$rank" 2>&1 </dev/null &
    done
    env -u TSR_PORT "$@" "$rank_name=0" "$local_name=0" "$TESSERA" run "$job" --on host \
        --strategy fsdp "${how[@]}" --out "$tmp/$name" >"$out" 2>"$err" </dev/null || status=$?
    for rank in 1 2; do
        wait -n || status=$?
    done
    compare "$name" $status
    [ -z "$(cat "$tmp/out.1" "$tmp/out.2")" ] || complain "$name: another rank than 0 speaks"
}
by_variables torchrun RANK LOCAL_RANK WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT="$TSR_PORT" TORCHELASTIC_RUN_ID=a-test
by_variables srun SLURM_PROCID SLURM_LOCALID SLURM_NTASKS=3 SLURM_STEP_NODELIST=localhost \
    SLURM_JOB_ID=7 "TSR_PORT=$((TSR_PORT + 7))"
by_variables by-hand TSR_RANK TSR_LOCAL_RANK TSR_SIZE=3 TSR_ADDR=localhost \
    "TSR_PORT=$((TSR_PORT + 9))" TSR_TOKEN=of-this-job

# A run that goes on with another number of ranks, another strategy and another launcher, whose
# global batch is the same: the losses but for rounding.
at() { # STEPS STRATEGY BATCH ARGUMENT...
    local steps=$1 strategy=$2 batch=$3
    shift 3
    works run "$job" --on host --strategy "$strategy" --set batch="$batch" --set train.steps="$steps" \
        --set train.schedule=constant --set checkpoints.every=0 "$@"
}
at 12 fsdp 1 --ranks 4 --out "$tmp/stays"
at 4 fsdp 1 --ranks 4 --out "$tmp/moves"
at 8 ddp 2 --nproc 2 --resume "$tmp/moves"
has "$err" "going on behind step 4"
at 10 hsdp 1 --nproc 4 --resume "$tmp/moves"
at 12 fsdp 4 --ranks 1 --resume "$tmp/moves"
losses "$tmp/stays" >"$tmp/want"
losses "$tmp/moves" >"$tmp/got"
checks=$((checks + 1))
paste -d ' ' "$tmp/want" "$tmp/got" | awk '
    function off(a, b) { return (a > b ? a - b : b - a) > 3e-6 * a }
    $1 != $4 || off($2, $5) || off($3, $6) { print; bad = 1 }
    END { exit bad || NR != 12 }' >"$tmp/apart" ||
    complain "a run that moves: $(head -n 1 "$tmp/apart")"

# What a launcher says that cannot be is a mistake of one line.
checks=$((checks + 1))
env RANK=3 WORLD_SIZE=3 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 "$TESSERA" run "$job" \
    --on host --strategy fsdp >"$out" 2>"$err"
[ $? = 2 ] || complain "rank 3 of 3: not status 2"
lines "$err" 1 RANK 3
echo "$tried launchers and transports"
finish
