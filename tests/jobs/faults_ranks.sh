#!/usr/bin/env bash
# A rank that is killed or stuck: the others end with one line that names it and status 75, leave
# their flight records, and the last checkpoint loads. Signals that end a run in order; two runs in
# one folder.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
long=(--set train.steps=1000000 --set checkpoints.every=20)

# Of our launcher's processes the one that is rank $1.
process_of() {
    local pid
    for pid in $(pgrep -P "$started"); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "TSR_RANK=$1" && echo "$pid"
    done
}

# after SIGNAL RANK WORD OTHERS: what must be true of $tmp/run when rank RANK of 3 got SIGNAL.
after() {
    local signal=$1 victim=$2 word=$3 others
    others=$(printf '%s\n' 0 1 2 | grep -v "$victim")
    ended 75
    grep -F "rank $victim $word" "$err" >"$tmp/survivors"
    lines "$tmp/survivors" 1 "and so 1 more rank" "; the last checkpoint is $tmp/run/checkpoints/step_"
    checks=$((checks + 1))
    [ "$(wc -l <"$err")" = 2 ] || complain "$signal: $(wc -l <"$err") lines of 2 ranks and the launcher"
    # shellcheck disable=SC2086
    flight "$tmp/run" "rank $victim $word" $others
    [ ! -e "$tmp/run/flight-rank-$victim.json" ] || complain "$signal: a record of the lost rank"
    loads "$tmp/run"
    checks=$((checks + 1))
    pgrep -f -- "--out $tmp/run" >"$tmp/left" && complain "$signal: a process is left"
}

for case in shm:0 tcp:1; do
    rm -rf "$tmp/run"
    start --nproc 3 --transport "${case%:*}" --timeout 60 --out "$tmp/run" "${long[@]}"
    until_step "$tmp/run" 25 || continue
    kill -KILL "$(process_of "${case#*:}")"
    after SIGKILL "${case#*:}" "is lost"
    has "$err" "rank ${case#*:} was killed by signal 9"
done

rm -rf "$tmp/run"
# Long enough for a rank that saves while others use the machine.
patience=6
! thorough || patience=12
start --nproc 3 --timeout $patience --out "$tmp/run" "${long[@]}"
if until_step "$tmp/run" 25; then
    stopped=$(process_of 1)
    kill -STOP "$stopped"
    after SIGSTOP 1 "did not"
    has "$err" "within $patience s" "exit status 75"
    checks=$((checks + 1))
    kill -0 "$stopped" 2>/dev/null && complain "the stopped rank is still there"
fi

# A rank that never starts
checks=$((checks + 1))
TSR_RANK=0 TSR_SIZE=2 TSR_LOCAL_RANK=0 run --ranks 2 --timeout 1 >"$out" 2>"$err"
[ $? = 75 ] || complain "a rank that never came: not status 75"
lines "$err" 1 "rank 1"

# Two runs, one folder: the first goes on.
for how in --ranks --nproc; do
    rm -rf "$tmp/run"
    start "$how" 2 --out "$tmp/run" "${long[@]}"
    until_step "$tmp/run" 3 || continue
    for second in --ranks --nproc; do
        cp "$err" "$tmp/first"
        checks=$((checks + 1))
        run "$second" 2 --out "$tmp/run" >"$tmp/o" 2>"$tmp/e"
        [ $? = 2 ] || complain "a second run in a folder: not status 2"
        lines "$tmp/e" 1 --out "$tmp/run" "still writing" allowed
    done
    # a signal ends it after a step, saved
    kill -"$([ "$how" = --ranks ] && echo INT || echo TERM)" "$started"
    ended 0
    has "$err" "stopped after step" "--resume $tmp/run" "saved after step"
    last=$(losses "$tmp/run" | tail -n 1 | cut -d ' ' -f 1)
    loads "$tmp/run" "$last"
done

# The run that was stopped goes on as if it had not been: the losses of one that never stopped.
steps=$((last + 150))
done_steps() { losses "$tmp/run" 2>/dev/null | tail -n 1 | cut -d ' ' -f 1; }
checks=$((checks + 1))
run --ranks 2 --out "$tmp/whole" --set train.steps=$steps --set train.schedule=constant \
    >"$out" 2>"$err" || complain "a run of $steps steps fails"
rm -rf "$tmp/run"
for stop in 1 2 3; do
    next=$(($(done_steps) + 10))
    [ $next -le $steps ] || next=$steps # a run that ends before the signal ends as well
    start "--$([ $stop = 2 ] && echo ranks || echo nproc)" 2 \
        "--$([ $stop = 1 ] && echo out || echo resume)" "$tmp/run" \
        --set train.steps=$steps --set train.schedule=constant
    until_step "$tmp/run" "$next" && kill -TERM "$started" 2>/dev/null
    ended 0
done
works run "$job" --on host --strategy fsdp --ranks 2 --resume "$tmp/run" --set train.steps=$steps \
    --set train.schedule=constant
losses "$tmp/whole" >"$tmp/a"
losses "$tmp/run" >"$tmp/b"
same "$tmp/a" "$tmp/b"
checks=$((checks + 1))
[ "$(wc -l <"$tmp/a")" = "$steps" ] || complain "not $steps steps"
finish
