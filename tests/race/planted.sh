#!/usr/bin/env bash
# ThreadSanitizer sees a wait that is left out, in every run, and nothing where none is.
#
# Environment: RACE_PLANTED (the program), RUNS (of each; default 8).
set -uo pipefail
runs=${RUNS:-8}
export TSAN_OPTIONS=exitcode=66:halt_on_error=1

# statuses STRATEGY [STREAM NUMBER]: the exit statuses of all runs, each with its number.
statuses() {
    # shellcheck disable=SC2016
    seq "$runs" | xargs -P 4 -I SEED bash -c \
        'timeout 60 "$RACE_PLANTED" SEED "$@" >/dev/null 2>&1; echo $?' race "$@" | sort | uniq -c
}

bad=0
# expect STATUS WHAT STRATEGY [STREAM NUMBER]
expect() {
    local want=$1 what=$2 got
    shift 2
    got=$(statuses "$@" | sed 's/^ *//')
    printf '%s (%s): %s\n' "$what" "$*" "$got"
    [ "$got" = "$runs $want" ] || {
        printf 'FAILED: expected exit status %s of %s runs\n' "$want" "$runs"
        bad=$((bad + 1))
    }
}

expect 0 "nothing is left out" hsdp
expect 66 "copy-in after the optimizer" hsdp copy_in 0
expect 66 "all-gather after copy-in" hsdp all_gather 1
expect 66 "compute after all-gather" hsdp default 0
expect 66 "reduce-scatter after backward" hsdp reduce_scatter 0
expect 66 "all-reduce after reduce-scatter" hsdp all_reduce 0
# The first wait of that stream is before the broadcast of buffers.
expect 66 "bucket's all-reduce after backward" ddp all_reduce 1
expect 66 "optimizer on the host after its gradients have come" pinned host 3
[ "$bad" = 0 ]
