#!/usr/bin/env bash
# A program that is interrupted ends by that signal, takes its processes along, and leaves no
# unfinished file.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
flagship=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml

# unfinished FOLDER: files under temporary names.
unfinished() {
    # shellcheck disable=SC2086 # a pattern
    find $1 -name '*.tmp-*' -o -name '.new-*' -o -name '.tessera-*' 2>/dev/null
}

# wait_for FOLDER PROCESS: until one is there; fails if the process ends before.
wait_for() {
    while kill -0 "$2" 2>/dev/null; do
        [ -n "$(unfinished "$1")" ] && return 0
    done
    return 1
}

# What a shell starts in the background ignores SIGINT, and so does the program then, unless `env` can
# undo that.
default=
env --default-signal=INT true 2>/dev/null && default="env --default-signal=INT"

# interrupted SIGNAL NUMBER: a comparison in the midst of its files.
interrupted() {
    checks=$((checks + 1))
    folder=$tmp/$1
    rm -rf "$folder"
    $default "$TESSERA" compare "$flagship" --out "$folder" >"$out" 2>"$err" &
    process=$!
    wait_for "$folder/*/" $process || complain "$1: it ended before it could be interrupted"
    kill -"$1" $process
    wait $process
    got=$?
    [ "$got" = $((128 + $2)) ] || complain "$1: exit status $got, not $((128 + $2))"
    left=$(unfinished "$folder" | head -n 3)
    [ -z "$left" ] || complain "$1: left behind: $left"
    grep -qE "^tessera: interrupted; [0-9]+ of [0-9]+ strategies are complete in $folder; summary.csv" "$err" ||
        complain "$1: no line says what is complete"
    files=$(find "$folder" -type f | wc -l)
    sleep 0.3
    [ "$(find "$folder" -type f | wc -l)" = "$files" ] || complain "$1: a process went on"
}
for i in 1 2 3; do
    interrupted TERM 15
    interrupted HUP 1
    [ -n "$default" ] && interrupted INT 2
done

# A table of published runs: what was simulated is said, and nothing is written.
checks=$((checks + 1))
mkdir "$tmp/table"
"$TESSERA" validate "$TSR_SOURCE_DIR/experiments/validation/torchtitan.csv" --jobs 1 --out "$tmp/table/out" >"$out" 2>"$err" &
process=$!
until [ -n "$(cat "/proc/$process/task/$process/children" 2>/dev/null)" ] || ! kill -0 $process 2>/dev/null; do
    sleep 0.01
done
kill -TERM $process
wait $process
[ $? = 143 ] || complain "validate: it did not end by SIGTERM"
has "$err" "tessera: interrupted; " " runs were simulated; the table is written at the end"
[ -z "$(find "$tmp/table" -type f)" ] || complain "validate: left files"

# A run that is hung up ends as one that SIGINT ends: it saves, and says how to go on.
"$TESSERA" run "$TSR_SOURCE_DIR/experiments/small/llama.yaml" --strategy fsdp --on host --set world=1 --set batch=1 --set seq=32 \
    --set data.train=null --set data.val=null --set eval.every=0 --set train.steps=100000 --out "$tmp/run" >"$out" 2>"$err" &
process=$!
until grep -q 'step:  *2 ' "$out" || ! kill -0 $process 2>/dev/null; do
    sleep 0.02
done
kill -HUP $process
if wait $process; then
    has "$err" "stopped after step " "; go on with --resume $tmp/run"
else
    grep -q "built without" "$err" || complain "run: SIGHUP did not end it as SIGINT does"
fi

# As late as the pictures: what gnuplot has begun goes, too.
if [ -n "$default" ] && command -v gnuplot >/dev/null; then
    checks=$((checks + 1))
    $default "$TESSERA" compare "$flagship" --only fsdp --out "$tmp/late" >"$out" 2>"$err" &
    process=$!
    while kill -0 $process 2>/dev/null; do
        [ -n "$(find "$tmp/late" -name '.new-*' 2>/dev/null)" ] && break
    done
    kill -INT $process || complain "it ended before its pictures were drawn"
    wait $process
    sleep 0.3
    left=$(unfinished "$tmp/late" | head -n 3)
    [ -z "$left" ] || complain "left behind: $left"
fi
finish
