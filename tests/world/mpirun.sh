#!/usr/bin/env bash
# Ranks that mpirun starts meet through its PMIx or our rendezvous (and, in a build with MPI, through
# MPI) and compute the bits of threads. Every mpirun that is installed is tried.
#
# Environment: TSR_BUILD_DIR. Exit status 77: there is no mpirun.
set -euo pipefail
program=$TSR_BUILD_DIR/tests/world_test_mpi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0 tried=0

[ -x "$program" ] || {
    echo "skipped: no $program (tests in C need cmocka)"
    exit 77
}

complain() {
    printf '%s\n' "$1"
    failures=$((failures + 1))
}

# run SOURCE HOW NAME COMMAND...: four ranks say that they are well.
run() {
    local source=$1 how=$2 name=$3 rank
    shift 3
    # What MPI itself leaks is not ours.
    [ "$how" != mpi ] || export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    if ! timeout -s KILL 60 "$@" -n 4 "$program" --rank "$how" >"$tmp/out" 2>"$tmp/err" </dev/null; then
        complain "$* --rank $how: failed: $(head -n 3 "$tmp/out" "$tmp/err")"
        return
    fi
    for rank in 0 1 2 3; do
        grep -qxF "rank $rank of 4: $name, $source" "$tmp/out" ||
            complain "$* --rank $how: nothing of rank $rank as wanted: $(cat "$tmp/out")"
    done
}

# Ports that two runs of this test are unlikely to share.
export TSR_PORT=$((20000 + $$ % 10000))

libraries=$(ldd "$program")
has_mpi() { # LIBRARY: the program is linked with it
    [[ $libraries == *"$1"* ]]
}

mpich=$(command -v mpirun.mpich || true)
if [ -n "$mpich" ]; then
    tried=$((tried + 1))
    run MPICH own processes "$mpich"
    run MPICH tcp processes "$mpich"
    if has_mpi libmpich; then
        run MPICH mpi mpi "$mpich"
    fi
fi

openmpi=$(command -v mpirun.openmpi || true)
if [ -n "$openmpi" ]; then
    tried=$((tried + 1))
    options=(--oversubscribe)
    [ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)
    pmix=
    if has_mpi libpmix; then # the launcher's own service: with a port that is taken, too
        pmix=", PMIx"
    else
        echo "skipped: PMIx, which this program is not linked with"
    fi
    run "Open MPI$pmix" own processes "$openmpi" "${options[@]}"
    run "Open MPI$pmix" tcp processes "$openmpi" "${options[@]}"
    TSR_ADDR=127.0.0.1 run "Open MPI" own processes "$openmpi" "${options[@]}"
    TSR_ADDR=127.0.0.1 TSR_TOKEN=ours run "Open MPI" tcp processes "$openmpi" "${options[@]}"
    # All hear that a rank is killed, though no rendezvous is there to say so; mpirun ends them, too.
    HEARD=$tmp/heard OMPI_MCA_odls_base_sigkill_timeout=2 timeout -s KILL 60 "$openmpi" "${options[@]}" \
        -n 4 "$program" --rank die >"$tmp/out" 2>&1 </dev/null && complain "a job with a rank that is killed does not fail"
    [ "$(grep -cx "rank 1 is lost: its process ended, or its connection broke" "$tmp/heard")" = 3 ] ||
        complain "a rank that is killed: the others hear $(cat "$tmp/heard")"
    if has_mpi libmpi.so; then
        run "Open MPI" mpi mpi "$openmpi" "${options[@]}"
    elif has_mpi libmpich; then
        # Built with the other one: every process is alone then, which is said.
        if timeout -s KILL 60 "$openmpi" "${options[@]}" -n 2 "$program" --rank mpi >"$tmp/out" 2>&1 \
            </dev/null; then
            complain "an MPI job under the wrong mpirun does not fail"
        fi
        grep -q "was built with another MPI than started it" "$tmp/out" ||
            complain "an MPI job under the wrong mpirun does not say why: $(cat "$tmp/out")"
    fi
fi

if [ "$tried" = 0 ]; then
    echo "skipped: neither mpirun.mpich nor mpirun.openmpi is installed"
    exit 77
fi
if [ "$failures" != 0 ]; then
    echo "$failures failures"
    exit 1
fi
echo "ranks of $tried kinds of mpirun: well"
