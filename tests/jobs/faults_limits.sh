#!/usr/bin/env bash
# Limits of the shell, and interrupts while a job starts: one clear line, the right status, and nothing that hangs.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"

# limited STATUS LIMIT WORD... -- ARGUMENT...: `tessera ARGUMENT...` under `ulimit LIMIT` ends with STATUS, and with one line
# on stderr that has every WORD. What it writes goes through pipes: the limit of file sizes is not for them.
limited() {
    local want=$1 limit=$2 words arguments got
    split "${@:3}"
    checks=$((checks + 1))
    # shellcheck disable=SC2086
    (ulimit $limit && timeout -k 5 60 "$TESSERA" "${arguments[@]}" 2>&1 >/dev/null </dev/null; echo "status $?") | cat >"$out"
    got=$(sed -n 's/^status //p' "$out")
    sed '/^status /d' "$out" >"$err"
    [ "$got" = "$want" ] || complain "ulimit $limit: ${arguments[*]}: status $got, not $want: $(head -c 300 "$err")"
    [ "$want" = 0 ] || lines "$err" 1 "${words[@]}"
}
fsdp=(run "$job" --on host --strategy fsdp)
addresses=(addresses "ulimit -v")
file=("File too large")

# No more addresses: what multiplies nothing runs all the same. (Under the sanitizers nothing starts with so little.)
sizes=(200000 400000)
(ulimit -v 8000000 && "$TESSERA" --version >"$out" 2>&1) || sizes=()
for kib in "${sizes[@]}"; do
    limited 1 "-v $kib" "${addresses[@]}" -- "${fsdp[@]}" --ranks 2
    limited 1 "-v $kib" "${addresses[@]}" -- "${fsdp[@]}" --nproc 2
    limited 0 "-v $kib" -- --version
    limited 0 "-v $kib" -- help keys
    limited 0 "-v $kib" -- inspect "$job" --only fsdp
done

# No more descriptors, no larger files: ranks that fail alike say it once.
limited 1 "-n 5" "Too many open files" -- "${fsdp[@]}" --ranks 2 --out "$tmp/n5"
limited 1 "-n 8" "8 open files (ulimit -n)" "at least 20" -- "${fsdp[@]}" --nproc 2 --out "$tmp/n8"
limited 0 "-n 32" -- "${fsdp[@]}" --nproc 2 --out "$tmp/n32"
limited 1 "-f 8" "${file[@]}" -- "${fsdp[@]}" --ranks 2 --out "$tmp/f1"
limited 1 "-f 8" "${file[@]}" -- "${fsdp[@]}" --nproc 3 --out "$tmp/f2"
limited 1 "-f 0" "${file[@]}" -- "${fsdp[@]}" --ranks 2 --out "$tmp/f3"

# No more processes and threads. For root there is no such limit: root asks as nobody, if nobody may read the program.
as=()
if [ "$(id -u)" = 0 ]; then
    as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    chmod a+rx "$tmp" && chmod a+r "$tmp"/*
fi
if [ ${#sizes[@]} -gt 0 ] && "${as[@]}" "$TESSERA" --version >"$out" 2>&1; then # sanitizers need a thread to end
    for most in 1 3 6 9; do
        for how in --ranks --nproc; do
            checks=$((checks + 1))
            # shellcheck disable=SC2016 # for that shell
            "${as[@]}" bash -c 'ulimit -u "$1" && shift && exec "$@"' - $most "$TESSERA" "${fsdp[@]}" $how 2 >"$out" 2>"$err" </dev/null
            got=$?
            [ $got = 1 ] || complain "ulimit -u $most: $how: status $got, not 1: $(head -c 300 "$err")"
            lines "$err" 1 tessera:
        done
    done
fi

# No home, no folder for temporary files
HOME=/nonexistent TMPDIR=/nonexistent works "${fsdp[@]}" --nproc 2

# Interrupted while it starts: as any program is, or after a step; not as one that lost a rank (75).
default=
env --default-signal=TERM true 2>/dev/null && default="env --default-signal=TERM,INT"
begun=0 before=0
for ((round = 0; round < 24; round++)); do
    how=(--nproc 3)
    ((round % 3 == 0)) && how=(--ranks 3)
    number=15
    [ -n "$default" ] && ((round % 2)) && number=2
    $default "$TESSERA" "${fsdp[@]}" "${how[@]}" --set train.steps=1000000 >"$out" 2>"$err" </dev/null &
    started=$!
    until [ "$(cat /proc/$started/comm 2>/dev/null)" = tessera ]; do # or it is still this script
        kill -0 $started 2>/dev/null || break
    done
    sleep "0.$(printf %03d $((round * 8)))"
    kill -$number $started 2>/dev/null
    wait $started
    got=$?
    checks=$((checks + 1))
    case $got in
    0) begun=$((begun + 1)) ;;
    $((128 + number))) before=$((before + 1)) ;;
    *) complain "round $round (${how[*]}): status $got: $(head -n 2 "$err")" ;;
    esac
    [ "$(wc -l <"$err")" -le 1 ] || complain "round $round (${how[*]}): $(cat "$err")"
done
echo "interrupted: $before before the first step, $begun after one"
[ $before -gt 0 ] || complain "no interrupt came before the first step"

# A folder that is moved away while a run writes in it: the run ends at its next checkpoint, and makes no second folder.
for how in --ranks --nproc; do
    start $how 2 --out "$tmp/here" --set train.steps=1000000 --set checkpoints.every=20
    until_step "$tmp/here" 2 && mv "$tmp/here" "$tmp/moved$how"
    ended 1
    grep -v '^step' "$err" >"$tmp/said"
    lines "$tmp/said" 1 "$tmp/here: the folder of this run was moved or removed while it ran"
    checks=$((checks + 1))
    [ ! -e "$tmp/here" ] || complain "$how: a second folder: $(find "$tmp/here")"
done
finish
