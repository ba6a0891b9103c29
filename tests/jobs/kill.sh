#!/usr/bin/env bash
# kill -9 at 100 random moments (15 in the short form) of a run that saves every other step, as threads and as processes,
# half of them beside training.
# Each time it goes on from a checkpoint that is whole; in the end its losses and norms are those of
# a run that nobody killed, digit for digit, at every step.
#
# Environment: TSR_KILL_SEED repeats the moments of an earlier run; TSR_KILLS, how many.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
seed=${TSR_KILL_SEED:-$(($(date +%s%N) / 1000 % 32768))}
RANDOM=$seed
run=$tmp/run
common=(--set train.schedule=constant --set checkpoints.every=2 --set checkpoints.keep=2)

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

# How long the first step takes here: a sanitizer's build, or a machine that is busy, gets fewer
# kills, later ones.
begin=$(milliseconds)
run --ranks 2 --set train.steps=2 >/dev/null 2>"$err" || complain "two steps fail"
first=$(($(milliseconds) - begin))
most=15
thorough && most=100
kills=${TSR_KILLS:-$((first < 250 || most < 25 ? most : 25))}
echo "seed $seed; the first steps take $first ms; $kills kills"

wait_for_lock() { # of ranks that have not quite ended
    [ ! -e "$run/lock" ] || flock -w 20 "$run/lock" true || complain "the folder is still locked"
}

resumed=0 early=0 saving=0 last=0
# more rounds if none came while it was saving
for ((round = 1; round <= kills || (saving == 0 && round <= 4 * kills); round++)); do
    how=(--ranks 2)
    ((round % 3 == 0)) && how=(--nproc 2)
    ((round % 2 == 0)) && how+=(--async-save)
    if compgen -G "$run/checkpoints/step_*[0-9]" >"$tmp/list"; then
        how+=(--resume "$run")
    else
        how+=(--out "$run")
    fi
    start "${how[@]}" --set train.steps=1000000 "${common[@]}"
    delay=$((RANDOM % (4 * first + 100)))
    sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
    # who starts the ranks goes first: it would tell of their loss
    # shellcheck disable=SC2046
    kill -KILL "$started" $(pgrep -P "$started") 2>/dev/null
    wait "$started" 2>/dev/null
    code=$?
    checks=$((checks + 1))
    [ $code = 137 ] || complain "round $round (${how[*]}), after $delay ms: ended by itself, status $code"
    wait_for_lock
    [ -z "$(find "$run" -name '*.tmp' 2>/dev/null)" ] || saving=$((saving + 1))
    if grep -q "going on behind step" "$err"; then
        resumed=$((resumed + 1))
        step=$(sed -nE 's/.*going on behind step ([0-9]+).*/\1/p' "$err")
        [ "$step" -ge "$last" ] || complain "round $round: from step $step, and it had come to $last"
        last=$step
    else
        early=$((early + 1))
    fi
    # the kill came between two pages of the metrics: a line was cut, and that is said
    if grep -v -e "going on behind step" -e "was cut off" "$err" >"$tmp/other"; then
        complain "round $round (${how[*]}), after $delay ms: $(head -n 1 "$tmp/other")"
    fi
done

# To the end: some steps further than it ever came.
steps=$(($(losses "$run" | tail -n 1 | cut -d ' ' -f 1) + 10))
works run "$job" --on host --strategy fsdp --ranks 2 --resume "$run" --set train.steps=$steps "${common[@]}"
works run "$job" --on host --strategy fsdp --ranks 2 --out "$tmp/whole" --set train.steps=$steps \
    "${common[@]}" --set checkpoints.every=0
losses "$run" >"$tmp/killed"
losses "$tmp/whole" >"$tmp/alive"
same "$tmp/killed" "$tmp/alive"
checks=$((checks + 4))
[ "$(wc -l <"$tmp/killed")" = $steps ] || complain "$(wc -l <"$tmp/killed") steps, not $steps"
[ "$resumed" -ge $((kills / 5)) ] || complain "only $resumed of $((round - 1)) rounds came as far as a checkpoint"
[ "$saving" -gt 0 ] || complain "no kill came while it was saving"
left=$(find "$run" -name '*.tmp' -o -name '*.old')
[ -z "$left" ] || complain "left behind: $left"
echo "$((round - 1)) kills: $early before the checkpoint was read, $resumed after, $saving while one was" \
    "written; $steps steps"
finish
