#!/usr/bin/env bash
# The first half hour on a GPU: three commands of less than ten minutes each, for a machine that may be taken away at any
# moment. See README.md, "First light".
#
# Usage: tests/gpu/first.sh 1|2|3 OUT [--seconds S] [--every S] [--small]
# 1: does it work, and the first ratio beside PyTorch. 2: is it right. 3: the other ratios.
# OUT gets one archive, first-N.tar.gz, with all results; it is made anew every 15 s (--every) and at the end, so a command
# that is killed loses no more than that. What was started ends with the command, also when that is killed. The last five
# lines say which card it was, what was seen, what to look at first, and what the next call should be.
# --seconds: of the whole command, 570. --small: the smallest models, to test this script.
# Exit status: 0 all passed, 1 not, 2 wrong words. Environment: as run.sh.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
started=$(date +%s)

wrong() {
    echo "first.sh: $1; allowed: first.sh 1|2|3 OUT [--seconds S] [--every S] [--small]" >&2
    exit 2
}

stage=${1:-} out=${2:-} seconds=570 every=15 small='' only='initial|compile$|fsdp$|profile'
large=llama-3-8b-l8 others=(gpt2-124m llama-3.2-1b)
case $stage in 1 | 2 | 3) ;; *) wrong "found stage '$stage'" ;; esac
case $out in '' | -*) wrong "found no OUT" ;; esac
shift 2
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=${2:-} && shift ;;
    --every) every=${2:-} && shift ;;
    --small) small=--small only='tessera (fsdp|profile)$' large=tiny-gpt2 others=(tiny-llama tiny-gpt2) ;;
    *) wrong "found $1" ;;
    esac
    shift
done
[[ $seconds =~ ^[1-9][0-9]*$ && $every =~ ^[1-9][0-9]*$ ]] || wrong "found --seconds '$seconds', --every '$every'"
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
if ! (: >"$out/.first-$stage.new") 2>/dev/null; then
    echo "first.sh: $out: no file can be written there, so nothing is run" >&2
    exit 1
fi
results=$(mktemp -d "${TMPDIR:-/tmp}/tessera-first-XXXXXX") || exit 1

# ---- one archive, and an end to all that was started -----------------------------------------------------------------

# What is started from here on has this in its environment, however it is started and whoever its parent is.
export TSR_FIRST=$$-$started
mine() {
    local -a all=(/proc/[0-9]*/environ) # listed before grep and sed begin, which have it, too
    { grep -lzxF "TSR_FIRST=$TSR_FIRST" "${all[@]}" 2>/dev/null || true; } | sed 's|^/proc/||; s|/environ$||'
}
end_all() {
    local signal found pause
    for signal in TERM:0.1 TERM:0.4 TERM:0.5 TERM:1 TERM:1 TERM:2 KILL:0.1; do
        pause=${signal#*:} signal=${signal%:*}
        readarray -t found < <(mine)
        [ ${#found[@]} -gt 0 ] || return 0
        kill -"$signal" "${found[@]}" 2>/dev/null
        sleep "$pause"
    done
}
archive() {
    tar -C "$results" -czf "$out/.first-$stage.new" . && mv "$out/.first-$stage.new" "$out/first-$stage.tar.gz"
}
# The last archive. Results that it cannot take stay where they are.
hand_over() {
    if archive; then
        rm -rf "$results"
    else
        rm -f "$out/.first-$stage.new"
        echo "first.sh: the results cannot be written to $out: they are in $results" >&2
        return 1
    fi
}
keep() { # PID of this script: renews the archive, and ends everything when the script is gone
    local turn=0
    trap '' TERM INT HUP
    while sleep 1; do
        if ! kill -0 "$1" 2>/dev/null; then
            end_all
            hand_over
            return
        fi
        turn=$((turn + 1))
        [ $((turn % every)) -ne 0 ] || archive
    done
}
exec 3>&1
# A process group of its own, so that a signal to this one's whole group leaves it.
set -m
keep $$ >/dev/null 2>&1 3>&- </dev/null &
keeper=$!
set +m
finish() {
    trap '' TERM INT HUP
    kill -KILL "$keeper" 2>/dev/null
    wait "$keeper" 2>/dev/null
    end_all
    "$python" "$here/advice.py" "$stage" "$results" "$out" 2>&1 | tee "$results/advice.txt" >&3
    hand_over || exit 1
}
trap finish EXIT
trap 'exit 1' TERM INT HUP

# ---- steps ------------------------------------------------------------------------------------------------------------

left() {
    echo $((started + seconds - $(date +%s)))
}
failed=0
# step SECONDS NAME WORD...: runs a command, for no longer than is left; what it prints goes to NAME.txt, too.
step() {
    local most=$1 name=$2 status
    shift 2
    [ "$most" -le "$(left)" ] || most=$(left)
    if [ "$most" -lt 5 ]; then
        echo "$name not-run" >>"$results/steps.txt"
        failed=1
        return 1
    fi
    echo "$name" >"$results/running.txt"
    timeout -k 10 "$most" "$@" >"$results/$name.txt" 2>&1 </dev/null &
    wait $!
    status=$?
    tail -n 12 "$results/$name.txt"
    echo "== $name: status $status"
    echo "$name $status" >>"$results/steps.txt"
    rm -f "$results/running.txt"
    [ "$status" = 0 ] || failed=1
    return "$status"
}
part() { # SECONDS NAME WORD...: a part of run.sh, which keeps to its time itself
    local most=$1 name=$2
    shift 2
    [ "$most" -le $(($(left) - 15)) ] || most=$(($(left) - 15))
    step $((most + 15)) "$name" "$here/run.sh" "$@" --seconds "$most" $small
}
bench() { # SECONDS MODEL
    part "$1" "bench-$2" bench "$2" "$results" --only "$only"
}

cd "$top" || exit 1
! command -v nvidia-smi >/dev/null || nvidia-smi dmon -d 10 >"$results/dmon.txt" 2>&1 3>&- &

first() {
    local test program
    part 120 smoke smoke "$results"
    program=$(sed -n 's/^programs: //p' "$results/smoke.txt" | tail -n 1)
    # without a program or a GPU nothing else means anything
    [ -n "$program" ] && ! grep -qE 'found no driver|no GPU; needed' "$results"/smoke.* || return
    # shellcheck source=/dev/null
    [ ! -e "$program/env.sh" ] || . "$program/env.sh"
    export TSR_SOURCE_DIR=$top
    for test in cudnn matmul norms loss fused optimizer rows lists; do
        if [ -x "$program/gpu_test_kernels_$test" ]; then
            step 40 "kernels-$test" "$program/gpu_test_kernels_$test"
        else # the pack lacks it
            echo "kernels-$test missing" >>"$results/steps.txt"
            failed=1
        fi
    done
    bench 110 tiny-llama || tiny_alone "$program/tessera-cuda"
    bench 290 "$large"
}
# The small job without graphs, one task at a time, and under memcheck: which of them fails says where to look.
tiny_alone() {
    local run=("$1" run experiments/h200/tiny-llama.yaml --strategy fsdp --on cuda --set train.steps=8 --set checkpoints.last=false
        --set data.train=null)
    step 60 tiny-no-graphs "${run[@]}" --graphs off --out "$results/tiny-no-graphs"
    step 60 tiny-serial "${run[@]}" --serial --out "$results/tiny-serial"
    ! command -v compute-sanitizer >/dev/null || step 150 tiny-memcheck \
        compute-sanitizer --kernel-regex kns=tsr_cuda "${run[@]}" --graphs off --out "$results/tiny-memcheck"
}
case $stage in
1) first ;;
2) part 540 correct correct "$results" ;;
3)
    bench 275 "${others[0]}"
    bench 275 "${others[1]}"
    ;;
esac
exit "$failed"
