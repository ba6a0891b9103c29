#!/usr/bin/env bash
# A job of many processes, of which a random one is killed, stopped or cut off again and again while it trains. It goes on
# from its checkpoints each time; in the end its losses and norms are those of a job that nobody disturbed, digit for digit.
#
# Usage: chaos.sh [RANKS [MINUTES [SECONDS [SEED]]]]: a blow every SECONDS of the job's own time, for MINUTES of it. That
# time counts from a job's first new step: starting is not training.
# Environment: TESSERA, the program; TSR_SOURCE_DIR, the tree.
export TSR_SOURCE_DIR=${TSR_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export TESSERA=${TESSERA:-$TSR_SOURCE_DIR/build/tessera}
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
ranks=${1:-6} minutes=${2:-0.05} every=${3:-1} seed=${4:-$(($(date +%s%N) / 1000 % 32768))}
RANDOM=$seed
run=$tmp/run
common=(--set train.schedule=constant --set checkpoints.every=2 --set checkpoints.keep=2 --timeout 10)
blows=$(awk -v m="$minutes" -v s="$every" 'BEGIN { n = m * 60 / s; print n < 1 ? 1 : int(n) }')
echo "seed $seed; $ranks ranks, $blows blows"

now() { losses "$run" 2>/dev/null | tail -n 1 | cut -d ' ' -f 1; }

# process_of RANK: of the job that was started last.
process_of() {
    local pid
    for pid in $(pgrep -P "$started"); do
        tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "TSR_RANK=$1" && echo "$pid" && return
    done
}

# Every connection of a process is reset, as by a switch that dies. Fails where the system does not let us.
cut_off() {
    local port
    local -a ports
    mapfile -t ports < <(ss -Htnp state established 2>/dev/null | grep "pid=$1," | awk '{ sub(/.*:/, "", $3); print $3 }')
    [ ${#ports[@]} -gt 0 ] || return 1
    for port in "${ports[@]}"; do
        ss -K state established "sport = :$port" >/dev/null 2>&1
    done
}

# further STEP: until the job is behind it; false when it ends before.
further() {
    local step
    while kill -0 "$started" 2>/dev/null; do
        step=$(now)
        [ "${step:-0}" -gt "$1" ] && return 0
        sleep 0.1
    done
    return 1
}

killed=0 stopped=0 cut=0 last=0
for ((blow = 1; blow <= blows; blow++)); do
    how=(--out "$run")
    compgen -G "$run/checkpoints/step_*[0-9]" >/dev/null && how=(--resume "$run")
    [ -e "$run/checkpoints" ] || rm -rf "$run"
    transport=auto
    ((RANDOM % 2)) && transport=tcp
    start --nproc "$ranks" --transport $transport "${how[@]}" --set world="$ranks" --set train.steps=1000000 "${common[@]}"
    if ! further "$last"; then
        complain "blow $blow: it ended before a step was done"
        break
    fi
    sleep "$every"
    victim=$((RANDOM % ranks))
    pid=$(process_of $victim)
    named=true
    case $((RANDOM % 3)) in
    0) kill -KILL "$pid" && killed=$((killed + 1)) ;;
    1) kill -STOP "$pid" && stopped=$((stopped + 1)) ;;
    2)
        if cut_off "$pid"; then
            cut=$((cut + 1))
            named=false # both ends of a connection miss the other
        else
            kill -KILL "$pid" && killed=$((killed + 1))
        fi
        ;;
    esac
    ended 75
    kill -KILL "$pid" 2>/dev/null
    checks=$((checks + 1))
    ! $named || grep -q "rank $victim " "$err" || complain "blow $blow: rank $victim is not named: $(head -n 3 "$err")"
    step=$(now)
    [ "${step:-0}" -ge "$last" ] || complain "blow $blow: at step $step, and it had come to $last"
    last=${step:-0}
    find "$run/checkpoints" -maxdepth 1 -name 'step_*[0-9]' | grep -q . || last=0
done

steps=$((last + 4))
works run "$job" --on host --strategy fsdp --nproc "$ranks" --set world="$ranks" --resume "$run" \
    --set train.steps=$steps "${common[@]}"
works run "$job" --on host --strategy fsdp --ranks "$ranks" --set world="$ranks" --out "$tmp/whole" \
    --set train.steps=$steps "${common[@]}" --set checkpoints.every=0
losses "$run" >"$tmp/disturbed"
losses "$tmp/whole" >"$tmp/alone"
same "$tmp/disturbed" "$tmp/alone"
checks=$((checks + 1))
[ "$(wc -l <"$tmp/disturbed")" = $steps ] || complain "$(wc -l <"$tmp/disturbed") steps, not $steps"
echo "$killed killed, $stopped stopped, $cut cut off; $steps steps, bit for bit those of an undisturbed job"
finish
