#!/usr/bin/env bash
# plots.sh: draws every picture by hand from the data in sample/ (a made-up study) and fails if
# gnuplot says anything or a picture is not whole. The short form draws PNGs of the first picture of each script alone: which
# texts there are and where they stand is read in SVGs. Exit 77: skipped, there is no gnuplot.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
plots=${TSR_SOURCE_DIR:-$here/../..}/plots

command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
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
declare -A has_png
drawn=()
draw() {
    local picture="$work/it's data$2/$1" formats='svg png'
    [ -z "${has_png[$1]:-}" ] || [ -n "${TSR_THOROUGH:-}" ] || formats=svg
    gnuplot -d -e "dir='$data$2'; out='$1'; formats='$formats'" "$plots/$1.gp" >"$work/said" 2>&1 ||
        fail "$1.gp failed: $(cat "$work/said")"
    [ ! -s "$work/said" ] || fail "$1.gp: $(cat "$work/said")"
    [[ $(tail -c 20 "$picture.svg") == *'</svg>'* ]] || fail "$1.svg is not whole"
    grep -q 'Llama-3.1-8B' "$picture.svg" || fail "$1.svg does not say what it shows"
    cp "$picture.svg" "$work/${#drawn[@]}-$1.svg" # some are drawn again
    drawn+=("$work/${#drawn[@]}-$1.svg")
    [ "$formats" != svg ] || return 0
    has_png[$1]=yes
    [ "$(head -c 4 "$picture.png" | tail -c 3)" = PNG ] || fail "$1.png is no PNG"
    [ "$(wc -c <"$picture.png")" -gt 20000 ] || fail "$1.png is all but empty"
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
    'memory (GiB)' 'in use on the device' allocated reserved 'time in the step (ms)' Activation
draw timeline /fsdp
says timeline /fsdp 'AG layers.16' 'RS layers.16' exposed 'reduce-scatter' 'time in the step (ms)' 'first 60 ms' \
    'last 60 ms' 'AG (root)' 'RS (root)' forward backward 'the steady step, simulated'
draw run /fsdp
says run /fsdp init load step1 step2 eval save '66.20' 'usable: 79.20' reserved 'host, page-locked' \
    Activation 'GPU (GiB)' 'host (GiB)' 'peak of the phase' 'peak, GiB'
draw compare-time-memory ""
says compare-time-memory "" fsdp-slow 'usable on the card' 'does not fit' 'step time (ms)' '(GiB)'
draw compare-bars ""
says compare-bars "" fsdp-slow Activation 'usable' 'GiB'
draw compare-time ""
says compare-time "" fsdp-slow 'exposed communication' 'step time (ms)'
draw finding ""
says finding "" 'to the node' 'kept' 'network (Gbit/s)' 'step against full sharding (%)' '>400<' '>50<'
# Steps of different numbers of tokens.
mkdir "$work/it's data/tokens"
cp "$work/it's data"/compare*.csv "$work/it's data/tokens"
sed -i 's/,0,0,0,0$/,0,0,1,0/; s/^[^#,]*,[^#,]*,159.783,528.733/42.8735,98.4677,19.5,64.5/' "$work/it's data/tokens/compare-frame.csv"
draw compare-time-memory /tokens
says compare-time-memory /tokens 'time per token and GPU (µs)' 'changed (~ ^)' 'Pareto front'
draw compare-time /tokens
says compare-time /tokens 'time per token and GPU (µs)' '31.25 µs, MFU 27.1 %'
# Every mark; logarithmic axes.
mkdir "$work/it's data/marks"
cp "$work/it's data"/compare*.csv "$work/it's data/marks"
sed -i 's/,0,0,0,0$/,1,1,0,0/' "$work/it's data/marks/compare-frame.csv"
sed -i -e '/^fsdp-keep,/s/,yes,/,retries,/' -e '/^fsdp-slow,/s/,yes,/,unknown,/' \
    -e '/^fsdp-same,/s/,yes,\(.*\),none,/,retries,\1,numbers,/' "$work/it's data/marks/compare.csv"
draw compare-time-memory /marks
says compare-time-memory /marks 'fits' 'fits with retries' 'unknown (?)' 'retries, changed (~ ^)' 'changed (~ ^)' \
    'does not fit' 'peak reserved memory (GiB, log scale)' 'step time (ms, log scale)'
# A limit far above and far below; what does not fit all the same is not said to fit.
mkdir "$work/it's data/far"
cp "$work/it's data"/compare*.csv "$work/it's data/far"
sed -i 's/^\([^#,]*,[^,]*,[^,]*,[^,]*\),79.2051,/\1,900,/' "$work/it's data/far/compare-frame.csv"
draw compare-time-memory /far
says compare-time-memory /far 'usable on the card: 900.00 GiB, right of the picture'
sed -i 's/,no,/,yes,/' "$work/it's data/far/compare.csv"
draw compare-time-memory /far
says compare-time-memory /far 'everything fits: usable on the card are 900.00 GiB'
sed -i 's/,900,/,9,/' "$work/it's data/far/compare-frame.csv"
sed -i 's/,yes,/,no,/' "$work/it's data/far/compare.csv"
draw compare-time-memory /far
says compare-time-memory /far 'nothing fits: usable on the card are 9.00 GiB'
draw compare-bars /far
# A run on ranks.
mkdir "$work/it's data/ranks"
cp "$work/it's data"/compare*.csv "$work/it's data/ranks"
sed -i 's/,0,0,0,0$/,0,0,1,1/; s/8 GPUs/8 ranks on 2 cores/; s/^[^#,]*,[^#,]*,159.783,528.733,79/42.8735,98.4677,19.5,64.5,999/' \
    "$work/it's data/ranks/compare-frame.csv"
for name in compare-time-memory compare-time; do
    draw $name /ranks
    says $name /ranks 'time per token and rank (µs)' '8 ranks on 2 cores' 'measured: a run on the ranks'
done
says compare-time-memory /ranks 'usable on the modelled card'
draw compare-bars /ranks
says compare-bars /ranks 'memory of the fullest rank' measured
# Names of 95 letters: wrapped beside bars, a number with a legend in the scatter.
mkdir -p "$work/it's data/long/fsdp"
cp "$work/it's data"/*.csv "$work/it's data/long"
cp "$work/it's data"/fsdp/*.csv "$work/it's data/long/fsdp"
name='a-strategy-with-a-rather-long-name;batch=16;seq=131072;checkpoint=full;reshard_after_forward=4-ab'
tables='a-rather-long-name-of-a-table-of-measurements.csv+another-one-of-those-tables.csv+a-third-one.csv'
find "$work/it's data/long" -name '*.csv' -exec sed -i "s/· fsdp\$/· $name/; s/· fsdp,/· $name,/; s/strategy fsdp/strategy $name/; \
    s/^fsdp-slow,/$name,/; s/,fsdp-slow,\$/,1,1/; s/made-up-Llama-3.1-8B.csv/Llama-3.1-8B-$tables/; \
    s/model.layers.6,backward/model.decoder.transformer.encoder-decoder-attention-layers.6.self-attention.query-key-value,backward/" {} +
for script in compare-time-memory compare-bars compare-time plan goodput overlap validate; do
    draw $script /long
done
for script in memory timeline run; do
    draw $script /long/fsdp
done
says compare-time-memory /long ">1  $name<"
for script in compare-bars compare-time; do
    says $script /long 'a-strategy-with-a-rather-long-name' 'seq=131072;'
    ! grep -q "$name" "$work/it's data/long/$script.svg" || fail "$script.svg: a name of 97 letters in one line"
done
# A limit far above the curve stands beside the subtitle; little memory is in MiB; of a run.
mkdir -p "$work/it's data/tiny"
cp "$work/it's data"/fsdp/*.csv "$work/it's data/tiny"
sed -i 's/,15373781504,/,99922944,/; s/,85045870592,50588001280,/,85045870592,106954752,/; s/,14758830243,/,99131904,/; s/,0$/,1/; s/8 GPUs/2 ranks on 2 cores/' \
    "$work/it's data/tiny/peak.csv"
draw memory /tiny
says memory /tiny 'usable: 79.21 GiB' '(above the picture)' 'memory (MiB)' 'peak 95.29 MiB' 'memory of a rank over one step, measured' \
    '2 ranks on 2 cores'
# Hours are days from 72 on.
mkdir -p "$work/it's data/days"
cp "$work/it's data"/goodput*.csv "$work/it's data/days"
sed -i 's/,67500,/,675000,/' "$work/it's data/days/goodput-frame.csv"
draw goodput /days
says goodput /days 'a failure every 7.81 days'
draw plan ""
! grep -q 'fits with retries' "$work/it's data/plan.svg" || fail "plan.svg names a mark that is not there"
mkdir "$work/it's data/retries"
cp "$work/it's data"/plan*.csv "$work/it's data/retries"
sed -i '0,/,simulated,\([0-9]*\),yes,/s//,simulated,\1,retries,/' "$work/it's data/retries/plan.csv"
draw plan /retries
says plan /retries 'fits with retries' 'on the front'
# Ranks in the list go from the fastest on.
first=$(sed -n 's/.*<text xml:space="preserve">\([0-9]*\)  .*/\1/p' "$work/it's data/plan.svg")
[ "${first%%[!0-9]*}" = 1 ] || fail "the list of plan.svg does not begin with the fastest"
# A row that needs another stack; one row alone; a front of 40 rows, of which many are close, from 1 us to 1 s and 1 to 79 GiB.
mkdir "$work/it's data/marked" "$work/it's data/single" "$work/it's data/dense"
cp "$work/it's data"/plan*.csv "$work/it's data/marked"
cp "$work/it's data"/plan*.csv "$work/it's data/single"
cp "$work/it's data"/plan*.csv "$work/it's data/dense"
sed -i '0,/,simulated,\([0-9]*\),yes,no,\(.*\),,no$/s//,simulated,\1,yes,no,\2,compile,yes/' "$work/it's data/marked/plan.csv"
draw plan /marked
says plan /marked 'needs another stack'
for file in plan.csv plan-front.csv; do
    sed -n '/^#/p; /^configuration,/p; /^rank,/p; /^1,wrap=block_embed_head,/p' "$work/it's data/$file" >"$work/it's data/single/$file"
done
draw plan /single
says plan /single 'log scale' 'budget of the card'
sed -i '/^[0-9]/d' "$work/it's data/dense/plan.csv" "$work/it's data/dense/plan-front.csv"
for rank in $(seq 40 -1 1); do
    seconds=$(awk -v r="$rank" 'BEGIN { print r < 30 ? 1e-6 * 1.01 ^ r : 1e-6 * 4 ^ (r - 30) }')
    bytes=$(awk -v r="$rank" 'BEGIN { printf "%.0f", 1073741824 * (r < 30 ? 79 - 0.3 * r : 70 / (r - 28)) }')
    echo "$rank,${name:0:60}  rank=$rank,$bytes,$seconds" >>"$work/it's data/dense/plan-front.csv"
    echo "$rank,rank=$rank,simulated,$rank,yes,yes,$bytes,$bytes,$seconds,$seconds,1,,,,,no" >>"$work/it's data/dense/plan.csv"
done
draw plan /dense
says plan /dense 'and 16 more'
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
    '90 % within 5.0 %' 'and GPU (log scale)' 'a100-sxm4-80g' 'h100-sxm5-80g'
python3 "$here/svg_texts.py" "${drawn[@]}" || fail "texts are not where they can be read"
for script in "$plots"/*.gp; do
    name=$(basename "$script" .gp)
    [ "$name" = style ] || [ -e "$work/it's data/$name.svg" ] ||
        [ -e "$work/it's data/fsdp/$name.svg" ] || fail "$name.gp is not tested"
done
echo "drawn without a warning: memory, timeline, compare-time-memory, compare-bars, compare-time, finding, plan, goodput, overlap, validate"
