#!/usr/bin/env bash
# What runs for long takes no more memory than what runs for a moment: simulations in one process, steps of training, and
# nothing is left in the folder for temporary files.
#
# Usage: growth.sh [RUNS [STEPS]]
# Environment: TESSERA, the program; TSR_SOURCE_DIR, the tree; TSR_BUILD_DIR, the build.
export TSR_SOURCE_DIR=${TSR_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export TESSERA=${TESSERA:-$TSR_SOURCE_DIR/build/tessera}
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
runs=${1:-$(thorough && echo 150 || echo 100)} steps=${2:-$(thorough && echo 3000 || echo 1200)}
study=${TSR_BUILD_DIR:-$TSR_SOURCE_DIR/build}/tessera_sequence_length
export TMPDIR=$tmp/temporary
mkdir "$TMPDIR"
sed -i 's/^world: 2/world: 2\ncluster: dgx-h100-1/; /hsdp/d' "$job"

# memory WHAT DONE WANT: what the process $watched holds, in KiB, when DONE (a command) says 1/10 and all of WANT.
memory() {
    local what=$1 want=$2 count=$3 first='' latest=0 n kib
    while kill -0 "$watched" 2>/dev/null; do
        n=$($count)
        kib=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$watched/status" 2>/dev/null)
        [ -z "$kib" ] || [ "${n:-0}" -lt $((want / 10)) ] || first=${first:-$kib}
        [ -z "$kib" ] || latest=$kib
        sleep 0.05
    done
    wait "$watched" || complain "$what: status $?: $(head -n 1 "$err")"
    checks=$((checks + 1))
    first=${first:-$latest}
    echo "$what: $first KiB after a tenth of $want, $latest KiB at the end"
    # An arena of malloc more or less is no growth; a leak of 8 KiB a simulation is.
    [ "$latest" -le $((first + 1024)) ] || complain "$what: it grew from $first to $latest KiB"
}

if [ -x "$study" ]; then
    mapfile -t lengths < <(yes 16 | head -n "$runs")
    "$study" "$job" fsdp "${lengths[@]}" >"$out" 2>"$err" </dev/null &
    watched=$!
    simulations() { wc -l <"$out"; }
    memory simulations "$runs" simulations
    checks=$((checks + 1))
    [ "$(tail -n +2 "$out" | sort -u | wc -l)" = 1 ] || complain "simulations of the same differ"
fi

"$TESSERA" run "$job" --on host --strategy fsdp --ranks 2 --out "$tmp/run" --set train.schedule=constant \
    --set train.steps="$steps" --set checkpoints.every=0 --set train.log_every=$((steps / 20)) \
    >"$out" 2>"$err" </dev/null &
watched=$!
trained() { tail -n 1 "$out" 2>/dev/null | sed -n 's/^step: *\([0-9,]*\) .*/\1/p' | tr -d ,; }
memory steps "$steps" trained

checks=$((checks + 1))
[ -z "$(ls -A "$TMPDIR")" ] || complain "left behind: $(ls -A "$TMPDIR" | head -n 3)"
finish
