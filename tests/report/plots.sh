#!/usr/bin/env bash
# plots.sh: draws every picture by hand from the data in sample/ (a made-up study) and fails if
# gnuplot says anything or a picture is not whole. Exit 77: skipped, there is no gnuplot.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
plots=${TSR_SOURCE_DIR:-$here/../..}/plots

if ! command -v gnuplot >/dev/null; then
    echo "skipped: no gnuplot (package gnuplot-nox)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A place with a space and a quote in its name, as users have them.
data="$work/it''s data" # gnuplot's spelling of one quote
cp -R "$here/sample" "$work/it's data"

fail() {
    echo "plots.sh: $*" >&2
    exit 1
}

# draw SCRIPT FOLDER
draw() {
    local picture
    gnuplot -d -e "dir='$data$2'; out='$1'" "$plots/$1.gp" >"$work/said" 2>&1 ||
        fail "$1.gp failed: $(cat "$work/said")"
    [ ! -s "$work/said" ] || fail "$1.gp: $(cat "$work/said")"
    picture="$work/it's data$2/$1"
    [[ $(tail -c 20 "$picture.svg") == *'</svg>'* ]] || fail "$1.svg is not whole"
    [ "$(head -c 4 "$picture.png" | tail -c 3)" = PNG ] || fail "$1.png is no PNG"
    [ "$(wc -c <"$picture.png")" -gt 20000 ] || fail "$1.png is all but empty"
    grep -q 'Llama-3.1-8B' "$picture.svg" || fail "$1.svg does not say what it shows"
}

# says SCRIPT FOLDER WORDS...: each is text of the picture.
says() {
    local picture="$work/it's data$2/$1.svg" word
    for word in "${@:3}"; do
        grep -q -- "$word" "$picture" || fail "$1.svg does not say '$word'"
    done
}

draw memory /fsdp
says memory /fsdp 'peak [0-9.]* GiB' 'usable: ' forward loss backward optimizer \
    'memory (GiB)' 'in use on the device' allocated reserved 'time in the step (ms)' activations
draw timeline /fsdp
says timeline /fsdp 'AG layers.16' 'RS layers.16' exposed 'reduce-scatter' 'time in the step (ms)' 'first 60 ms' \
    'last 60 ms' 'AG (root)' 'RS (root)' forward backward 'the steady step, simulated'
draw run /fsdp
says run /fsdp init load step1 step2 eval save '66.20' 'usable: 79.20' reserved 'host, page-locked' \
    activations 'GPU (GiB)' 'host (GiB)' 'peak of the phase' 'peak, GiB'
draw compare-time-memory ""
says compare-time-memory "" fsdp-slow 'usable on the card' 'does not fit' 'step time (ms)' '(GiB)'
draw compare-bars ""
says compare-bars "" fsdp-slow activations 'usable' 'GiB'
draw compare-time ""
says compare-time "" fsdp-slow 'exposed communication' 'step time (ms)'
# Steps of different numbers of tokens.
mkdir "$work/it's data/tokens"
cp "$work/it's data"/compare*.csv "$work/it's data/tokens"
sed -i 's/,0,0,0,0$/,0,0,1,0/; s/^[^#,]*,[^#,]*,159.783,528.733/42.8735,98.4677,19.5,64.5/' "$work/it's data/tokens/compare-frame.csv"
draw compare-time-memory /tokens
says compare-time-memory /tokens 'time per token and GPU (µs)' 'changed (~ ^)' 'Pareto front'
draw compare-time /tokens
says compare-time /tokens 'time per token and GPU (µs)' '31.25 µs, MFU 27.1 %'
draw plan ""
says plan "" 'Pareto front' 'ruled out' 'does not fit' 'budget of the card' 'checkpoint=full' 'memory needed' \
    'time per token'
draw goodput ""
says goodput "" 'best: every 10.2 to 22.1 min' 'asked: every 30 min' 'work lost' restarts checkpoints \
    'a failure every 18.8 h' 'minutes, log scale' 'at most 0.1 % less'
draw overlap ""
says overlap "" 'all-gather, forward (9)' 'reduce-scatter (8)' 'host late 0.3 ms' 'same communicator 0.4 ms' \
    'buffer wait 0.2 ms' 'stream order 0.6 ms' 'other ranks 0.7 ms' 'bandwidth 6.7 ms' 'simulated step of 115.0 ms'
draw validate ""
says validate "" 'predicted against measured' 'tokens per second and GPU' '15 figures' 'median 2.0 %' \
    '90 % within 5.0 %' 'a100-sxm4-80g' 'h100-sxm5-80g'
for script in "$plots"/*.gp; do
    name=$(basename "$script" .gp)
    [ "$name" = style ] || [ -e "$work/it's data/$name.svg" ] ||
        [ -e "$work/it's data/fsdp/$name.svg" ] || fail "$name.gp is not tested"
done
echo "drawn without a warning: memory, timeline, compare-time-memory, compare-bars, compare-time, plan, goodput, overlap, validate"
