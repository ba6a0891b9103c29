#!/bin/sh
# Draws memory.png, the picture of the README, with the program as it is, and writes beside it what the picture says
# (memory.txt). --check compares that with today's figures, and the checksums of the picture and of the scripts that
# drew it: a difference means that it has to be drawn again.
#
# Usage: experiments/flagship/picture.sh [--check]
# Environment: TESSERA, the program (build/tessera). Exit status: 0, 1 out of date, 2 it cannot be drawn.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
program=${TESSERA:-build/tessera}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

pictures=all
[ "${1-}" != --check ] || pictures=none
"$program" compare experiments/flagship/dgx-h100-8.yaml --only fsdp --out "$work/out" --no-traces --pictures $pictures >/dev/null 2>"$work/err" || {
    cat "$work/err" >&2
    exit 2
}

# peak.csv: time_s, peak_bytes, module, phase, limit_bytes, reserved_bytes, step_s, title, in_use_bytes, operation
grep -v '^#' "$work/out/fsdp/peak.csv" | awk -F , '
NR == 2 {
    gib = 1073741824
    print "title: " $8
    printf "peak: %.2f GiB, %s, %s\n", $2 / gib, $4, $10
    printf "reserved: %.2f GiB, in use: %.2f GiB, usable: %.2f GiB\n", $6 / gib, $9 / gib, $5 / gib
    printf "step: %.0f ms\n", $7 * 1e3
}' >"$work/figures"
sums() {
    cksum plots/memory.gp plots/style.gp experiments/flagship/memory.png | awk '{ print $3 ": " $1 }'
}

if [ "${1-}" = --check ]; then
    { cat "$work/figures" && sums; } >"$work/today"
    diff experiments/flagship/memory.txt "$work/today" && exit 0
    echo "experiments/flagship/memory.png is out of date: run experiments/flagship/picture.sh and commit what it writes"
    exit 1
fi
picture=$work/out/fsdp/memory.png
[ -s "$picture" ] || {
    echo "picture.sh: there is no picture: gnuplot is missing" >&2
    exit 2
}
cp "$picture" experiments/flagship/memory.png
{ cat "$work/figures" && sums; } >experiments/flagship/memory.txt
cat experiments/flagship/memory.txt
