#!/usr/bin/env bash
# compare, sim, run and program on real experiments. The short form has every third study, and eight blocks of the flagship
# where any number shows it: order, stack, ranks, commands that repeat a row.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
experiments=$TSR_SOURCE_DIR/experiments
flagship=$experiments/flagship/dgx-h100-8.yaml
shallow=$flagship
thorough || {
    shallow=$tmp/shallow.yaml
    sed 's/names: hf}/names: hf, layers: 8}/' "$flagship" >"$shallow"
    has "$shallow" "layers: 8"
}

# Every study runs (every third in the short form); a row for every strategy, in the order of the file.
for file in $(printf '%s\n' "$experiments"/flagship/*.yaml "$experiments"/*/compare.yaml | every 3); do
    works compare "$file" --format csv
    [ -s "$err" ] && complain "$file: something on stderr"
    sed -n 's/^  \([a-z0-9-]*\):.*/\1/p' "$file" | sed -n '/^ddp$/,$p' >"$tmp/names"
    grep -v '^#' "$out" | sed 1d | cut -d, -f2 >"$tmp/rows"
    same "$tmp/names" "$tmp/rows"
done

# The order and the figures do not depend on how many run at a time.
works compare "$shallow" --jobs 1
cp "$out" "$tmp/one.md"
works compare "$shallow" --jobs 7
same "$tmp/one.md" "$out"
works compare "$shallow" --only fsdp,hsdp-2x4
has "$out" "| fsdp" "| hsdp-2x4" "tessera compare $shallow --only fsdp --emit torch out/code" "gpu-h100-sxm5-80g.json"
grep -q fsdp-one-group "$out" && complain "--only shows others"
works compare "$shallow" --only fsdp --format json
has "$out" '"fsdp"' step_time_s

# A stack of 256 KiB is enough, of which a strategy alone took 280. Sanitizers need more for themselves.
if [ -z "${LSAN_OPTIONS:-}" ]; then
    for command in "compare $shallow --only fsdp,ddp --out $tmp/small --emit torch $tmp/small/code" "explain $shallow --strategy fsdp" \
        "overlap $shallow --strategy fsdp" "inspect $shallow" "check $shallow --strategy fsdp"; do
        checks=$((checks + 1))
        # shellcheck disable=SC2086
        (ulimit -s 256 && exec "$TESSERA" $command) >"$out" 2>"$err" || complain "a stack of 256 KiB: $command"
    done
fi

# sim and run are one row of compare; what does not fit is exit status 3, with its row.
works sim "$shallow" --strategy fsdp
cp "$out" "$tmp/sim.md"
works run "$shallow" --strategy fsdp --on sim
same "$tmp/sim.md" "$out"
for limit in none card; do
    checks=$((checks + 1))
    "$TESSERA" sim "$flagship" --strategy ddp --set allocator.limit=$limit >"$out" 2>"$err"
    got=$?
    [ "$got" = 3 ] || complain "sim of ddp with allocator.limit=$limit: exit status $got, not 3"
    has "$out" "| ddp" NO
done
works compare "$flagship" --only ddp
works compare "$flagship" --only ddp --set allocator.limit=card
has "$out" "out of memory"

# The command under the table repeats the row: with what --set changed, or the resolved file. It leaves the code.
again() { sed -n "s|^    tessera compare \(.*\) out/code\$|\"$TESSERA\" compare \1 $tmp/code --wide|p" "$out"; }
for folder in "" "$tmp/changed"; do
    works compare "$shallow" --only fsdp --wide --set seq=4096 --set 'phases=[init, step1]' ${folder:+--out "$folder" --pictures none}
    [ -s "$err" ] && complain "something on stderr"
    grep '^| fsdp' "$out" | sed 's/fsdp \*/fsdp/' | sort -u >"$tmp/rows"
    command=$(again)
    case $folder in
    "") has "$out" "$shallow --only fsdp --set seq=4096 --set 'phases=[init, step1]' --emit torch out/code" ;;
    *) has "$out" "$folder/experiment.yaml --only fsdp --emit torch out/code" ;;
    esac
    checks=$((checks + 1))
    eval "$command" >"$out" 2>"$err" || complain "$command"
    grep '^| fsdp' "$out" | sed 's/fsdp \*/fsdp/' | sort -u >"$tmp/again"
    same "$tmp/rows" "$tmp/again"
done

# Time per token and GPU decides; what changes numbers or hardware never wins over what does not.
winner() { # NAME: the row with the star, and what the command under the table runs
    checks=$((checks + 2))
    [ "$(sed -n 's/^| \([^ ]*\) \*[+~^]* *|.*/\1/p' "$out")" = "$1" ] || complain "the winner is not $1: $(grep ' \*' "$out")"
    rm -rf "$tmp/code"
    eval "$(again)" >"$tmp/run" 2>&1 || complain "the command of $1 fails"
    [ -n "$(find "$tmp/code" -name '*.py')" ] || complain "the command of $1 leaves no code"
    row() { sed -n "s/^| $1[ *~^+]*| *\([0-9.]* |.*\)/\1/p" "$2" | head -n 1 | tr -d ' '; }
    [ "$(row "$1" "$out")" = "$(row "${1%%@*}" "$tmp/run")$(row "$1" "$tmp/run" | grep @)" ] ||
        [ "$(row "$1" "$out")" = "$(row "$1" "$tmp/run")" ] || complain "the command of $1 runs something else"
}
small="$flagship --set model=llama-3.2-1b --set clip=true"
works compare $small --wide --only fsdp --set 'sweeps={batch: [1, 2]}'
winner fsdp@batch=2
has "$out" "by time per token and GPU (marked" "--only fsdp --set model=llama-3.2-1b --set clip=true --set batch=2 --emit torch out/code"
works compare $small --wide --only fsdp --set 'sweeps={precision.reduce: [bf16, f32], clip: [false, true]}'
winner fsdp@reduce=f32@clip=true
has "$out" "| fsdp@reduce=bf16@clip=false ~ " "| fsdp@reduce=f32@clip=false ~ " "Faster, but it changes what is computed (~): fsdp@reduce=bf16@clip=false" \
    "less time per token and GPU: precision.reduce: bf16, clip: false." "never the winner over rows that do not"
works compare $small --wide --only fsdp --set 'sweeps={sim.nic_bw: [0, 1e12], world: [4, 8], cluster: [dgx-h100-1]}'
winner fsdp@nic_bw=0@world=8@cluster=dgx-h100-1
has "$out" "| fsdp@nic_bw=0@world=4@cluster=dgx-h100-1 ^ "
works compare $small --wide --only fsdp --set 'sweeps={gpu: [h200-sxm, h100-sxm5-80g], clip: [true]}'
winner fsdp@gpu=h200-sxm@clip=true
works compare "$flagship" --wide --only fsdp --set world=2 --set seq=6144 --set 'sweeps={optimizer.state: [master, bf16]}'
has "$out" "| fsdp@state=bf16 *~ " "fsdp@state=bf16, which changes optimizer.state: bf16 (nothing fits without such a change)"

# Sweeps
works compare "$flagship" --only fsdp --set 'sweeps={batch: [1, 2], seq: [512, 1024]}' --format csv
has "$out" 'fsdp@batch=1@seq=512' 'fsdp@batch=2@seq=1024'
works compare "$experiments/flagship/h100-128.yaml" --only hsdp-16x8 \
    --set 'sweeps={mesh: [{replicate: 16}, [4, 32]], cluster: [dgx-h100-superpod-su]}' --format csv
has "$out" 'hsdp-16x8@mesh=replicate16' 'hsdp-16x8@mesh=4x32'

# A user's own file elsewhere, with a config.json and a cluster beside it, from another folder.
mkdir -p "$tmp/own/data"
cp "$experiments/models/qwen2.5-0.5b.json" "$tmp/own/data/config.json"
printf '{"model": "data/config.json", "cluster": "dgx-a100-16", "world": 4, "seq": 64}\n' >"$tmp/own/e.json"
(cd / && "$TESSERA" compare "$tmp/own/e.json") >"$out" 2>"$err" || complain "an own file elsewhere"
has "$out" "| default" data "4 x a100"

# A sweep's head says what all of its rows are; a strategy's files what it is.
works compare "$flagship" --only fsdp --set model=llama-3.2-1b --out "$tmp/heads" --pictures none --traces \
    --set 'sweeps={world: [8, 2], model.name: [llama-3.2-1b, qwen2.5-0.5b]}'
has "$out" "llama-3.2-1b, qwen2.5-0.5b on dgx-h100-1: 2 to 8 x h100-sxm5-80g"
has "$tmp/heads/compare-frame.csv" "2 to 8 GPUs"
has "$tmp/heads/fsdp@world=2@name=qwen2.5-0.5b/memory.csv" "# model: qwen2.5-0.5b" "# world size: 2"
works compare "$shallow" --only fsdp --set nodes=20 --set world=8 --set cluster=dgx-h100-superpod-su
has "$err" "nodes: 20: world 8 takes 1 of them; the others are unused"
# A mesh that leaves GPUs idle is a remark; a world that was asked for is none.
works compare "$shallow" --only hsdp-2x4 --set nodes=4 --set cluster=dgx-h100-128 \
    --set 'strategies.hsdp-2x4.mesh={replicate: 4, shard: 7}'
has "$err" "mesh: 28 of the 32 GPUs of cluster dgx-h100-128; 4 of them are idle"
works compare "$shallow" --only fsdp --set cluster=dgx-h100-2 --set world=8
grep -q "are idle" "$err" && complain "GPUs that world leaves out are called idle"

# Equal studies leave equal files; how long this machine took is apart.
works compare "$flagship" --only fsdp --set model=llama-3.2-1b --out "$tmp/heads2" --pictures none \
    --set 'sweeps={world: [8, 2], model.name: [llama-3.2-1b, qwen2.5-0.5b]}'
for file in summary.csv summary.json; do
    sed 's/heads2/heads/' "$tmp/heads2/$file" >"$tmp/second"
    same "$tmp/heads/$file" "$tmp/second"
done
has "$tmp/heads/wall.json" emission_wall_s simulation_wall_s

# Notes go to stderr, once.
works compare "$flagship" --only fsdp,fsdp-checkpoint --set model=mistral-7b-v0.1
[ "$(grep -c "sliding window" "$err")" = 1 ] || complain "the sliding window is not noted once"

# program: two runs are alike; ranks and iterations are checked
works program "$shallow" --strategy fsdp
cp "$out" "$tmp/program"
has "$out" "program hash" "offsets hash" all_gather reduce_scatter
works program "$shallow" --strategy fsdp --rank 0
same "$tmp/program" "$out"
works program "$shallow" --strategy fsdp --iteration init
has "$out" "iteration init"
works program "$shallow" --strategy fsdp --rank 5
[ "$(wc -l <"$out")" = "$(wc -l <"$tmp/program")" ] || complain "ranks of one class differ"
fails 2 --rank 8 "0 to 7" fsdp -- program "$shallow" --strategy fsdp --rank 8
fails 2 --iteration x init -- program "$shallow" --strategy fsdp --iteration x
# Traces and snapshots of up to 2 strategies, and it is said; of more with --traces. Pictures as asked for.
cat >"$tmp/three.yaml" <<'Y'
model: qwen2.5-0.5b
cluster: dgx-h100-1
world: 2
seq: 128
model.layers: 1
strategies: {fsdp: {}}
sweeps: {batch: [1, 2, 3]}
Y
works compare "$tmp/three.yaml" --out "$tmp/three" --pictures none
has "$err" "no traces and snapshots of 3 strategies, which are large; --traces writes them"
[ -z "$(find "$tmp/three" -name trace.json -o -name snapshot.pickle)" ] || complain "traces of 3 strategies"
[ "$(find "$tmp/three" -name streams.csv | wc -l)" = 3 ] || complain "not 3 streams.csv"
[ -z "$(find "$tmp/three" -name '*.svg' -o -name '*.png')" ] || complain "--pictures none draws"
works compare "$tmp/three.yaml" --out "$tmp/all" --pictures none --traces
[ "$(find "$tmp/all" -name trace.json | wc -l)$(find "$tmp/all" -name snapshot.pickle | wc -l)" = 33 ] || complain "--traces: not 3 of each"
# Its compressed memory.csv has the same text, and diff reads it.
for file in "$tmp/three"/*/memory.csv.gz; do
    [ -e "$file" ] || break # a build without zlib
    folder=$(basename "$(dirname "$file")")
    gzip -dc "$file" >"$tmp/unpacked"
    same "$tmp/all/$folder/memory.csv" "$tmp/unpacked"
    works diff "$(dirname "$file")" "$tmp/all/$folder"
    has "$out" "B minus A: 0 allocated, 0 reserved"
done
works compare "$tmp/three.yaml" --set 'sweeps={batch: [1, 2]}' --out "$tmp/two" --no-traces --pictures svg
[ -z "$(find "$tmp/two" -name trace.json -o -name snapshot.pickle)" ] || complain "--no-traces writes some"
grep -q "traces and snapshots" "$err" && complain "--no-traces, and a note on traces"
if command -v gnuplot >/dev/null; then
    [ -s "$tmp/two/compare-time.svg" ] || complain "--pictures svg: no compare-time.svg"
    [ -z "$(find "$tmp/two" -name '*.png')" ] || complain "--pictures svg draws a .png"
fi
# One group: nothing hides its all-gather at the head of the step, and the timeline shows that.
works compare "$flagship" --only fsdp-one-group --out "$tmp/one" \
    --no-traces --pictures none
awk -F, '$1 == "start" && $3 == "exposed" { head += $5 - $4 } $1 == "end" && $3 == "exposed" { tail += $5 - $4 }
    END { exit !(head > 0.03 && tail > 0.06) }' "$tmp/one/fsdp-one-group/timeline.csv" ||
    complain "timeline.csv does not show the exposed all-gather of one group"
# A name too long for a picture is a number there.
long=a-strategy-with-a-name-of-more-than-thirty-six-letters
sed "s/{fsdp: {}}/{fsdp: {}, $long: {batch: 2}, also-$long: {batch: 3}}/; /^sweeps/d" "$tmp/three.yaml" >"$tmp/names.yaml"
works compare "$tmp/names.yaml" --out "$tmp/numbered" --no-traces --pictures none
[ "$(grep -v '^#' "$tmp/numbered/compare.csv" | awk -F, '{ printf "%s ", $17 }')" = "text fsdp 1 2 " ] ||
    complain "compare.csv: no numbers for long names"
fails 2 "--pictures: found jpg" "none, svg or all" -- compare "$tmp/three.yaml" --pictures jpg
finish
