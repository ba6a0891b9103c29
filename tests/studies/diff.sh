#!/usr/bin/env bash
# diff: totals are those of compare, categories those of memory.csv, recordings as the golden data
# says; every kind of run against every other, and mistakes.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
# shellcheck source=tests/studies/_figures.sh
. "$TSR_SOURCE_DIR/tests/studies/_figures.sh"
flagship=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml
rows=$tmp/compare.csv
golden=$TSR_SOURCE_DIR/tests/golden-memory


works compare "$flagship" --only fsdp,fsdp-checkpoint,ddp --format csv --out "$tmp/out" --traces --pictures none
cp "$out" "$rows"

# ---- strategies ----------------------------------------------------------------------------------

works diff "$flagship:fsdp" "$flagship:fsdp"
has "$out" "B minus A: 0 allocated, 0 reserved" "The curves never part" "Peak of each phase"
grep -q "Where the gap" "$out" && complain "a gap between a strategy and itself"

works diff "$flagship:fsdp" "$flagship:fsdp-checkpoint" --format json
for side in a b; do
    name=fsdp
    [ $side = b ] && name=fsdp-checkpoint
    equal "peak of $name" "$(value "$out" $side allocated_bytes)" "$(column "$rows" $name peak_allocated_bytes)"
    equal "reserved of $name" "$(value "$out" $side peak_reserved_bytes)" \
        "$(column "$rows" $name peak_reserved_bytes)"
    # What is alive at the peak, against memory.csv.
    grep -v '^#' "$tmp/out/$name/memory.csv" |
        awk -F, -v peak="$(column "$rows" $name peak_allocated_bytes)" '
            NR == 1 { for (i = 1; i <= NF; i++) { at[$i] = i; sub(/_bytes$/, "", $i); name[i] = $i }
                      total = at["total_bytes"]; next }
            $total == peak { for (i = 2; i < total; i++) if ($i) print name[i], $i; exit }' |
        sort >"$tmp/row"
    sed -n '/^  "categories"/,/^  \]/p' "$out" | awk -F'"' -v key=${side}_bytes '
        /"category"/ { name = tolower($4); gsub(/ /, "_", name); sub(/optstate/, "opt_state", name) }
        index($0, "\"" key "\"") { gsub(/[^0-9]/, "", $3); if ($3 > 0) print name, $3 }' |
        sort >"$tmp/categories"
    same "$tmp/row" "$tmp/categories"
done
change=$(($(column "$rows" fsdp-checkpoint peak_allocated_bytes) - $(column "$rows" fsdp peak_allocated_bytes)))
equal "total" "$(value "$out" total allocated_difference_bytes)" "$change"
# The sum over the categories and over the owners is the total.
for list in categories owners; do
    equal "sum of $list" "$(sed -n "/^  \"$list\"/,/^  \]/s/.*\"difference_bytes\": \(-*[0-9]*\).*/\1/p" "$out" |
        awk '{ s += $1 } END { printf "%.0f", s }')" "$change"
done
# All the gap between start and end: what opens it, closes it.
equal "gap" "$(sed -n '/^  "gap"/,/^  \]/s/.*"change_bytes": \(-*[0-9]*\).*/\1/p' "$out" |
    awk '{ s += $1 } END { printf "%.0f", s }')" 0
# They part in the first block: it is recomputed, so what it makes is not kept.
equal "part, phase" "$(value "$out" part_first phase)" forward
equal "part, block" "$(value "$out" part_first module | cut -d. -f1-3)" model.layers.0
part=$(value "$out" part_first operation)
works diff "$flagship:fsdp" "$flagship:fsdp-checkpoint" --top 1
has "$out" "model.layers.* (in 32 places)" "more places" " Activation" \
    "$(awk "BEGIN { printf \"%+.2f GiB  total\", $change / 1073741824 }")"

# Other groups and other methods: phases and blocks are still beside each other.
works diff "$flagship:fsdp" "$flagship:fsdp-embed-head" --format json
equal "part of other groups" "$(value "$out" part_first phase)" zero_grad
works diff "$flagship:ddp" "$flagship:fsdp"
has "$out" "Reduce Scatter" "OptState" "backward, model.layers.* (in 32 places)"
works diff "$flagship:fsdp" "$flagship:fsdp" --set batch=2 --set accumulation.steps=2
has "$out" "forward 1" "The curves never part"
# One strategy in the file: its name may be left away.
printf 'model: qwen2.5-0.5b\nworld: 4\nseq: 64\n' >"$tmp/one.yaml"
works diff "$tmp/one.yaml" "$tmp/one.yaml:default"
has "$out" "The curves never part"

# ---- what compare left ---------------------------------------------------------------------------

cp -r "$tmp/out/fsdp" "$tmp/bare"
rm "$tmp/bare/streams.csv"
for run in "$tmp/out/fsdp" "$tmp/out/fsdp/memory.csv" "$tmp/bare"; do
    works diff "$run" "$flagship:fsdp"
    has "$out" "B minus A: 0 allocated, 0 reserved" "The curves never part" "has no owners"
done
works diff "$tmp/out/fsdp" "$tmp/out/fsdp-checkpoint" --format json
equal "total of folders" "$(value "$out" total allocated_difference_bytes)" "$change"
equal "part of folders" "$(value "$out" part_first operation)" "$part"
has "$out" '"owners": null'
# The peaks of the phases are those of the strategies.
phases() {
    sed -n '/^  "phases"/,/^  \]/p' "$out" | awk -F'"' '/"phase"/ { name = $4 }
        /"a_allocated_bytes"/ { gsub(/[^0-9]/, "", $3); a = $3 }
        /"b_allocated_bytes"/ { gsub(/[^0-9]/, "", $3); print name, a, $3 }' |
        grep -E '^(forward|loss|backward) '
}
phases >"$tmp/phases"
works diff "$flagship:fsdp" "$flagship:fsdp-checkpoint" --format json
phases >"$tmp/phases-of-strategies"
same "$tmp/phases" "$tmp/phases-of-strategies"
equal "phases" "$(wc -l <"$tmp/phases")" 3
mkdir "$tmp/alone"
cp "$tmp/bare/memory.csv" "$tmp/alone"
works diff "$tmp/alone/memory.csv" "$tmp/bare"
has "$out" "The curves never part" "(step)"

# More columns than a memory.csv can have.
mkdir "$tmp/wide"
{
    printf 'time_s,total_bytes,reserved_bytes'
    yes ',in_use_bytes' | head -n 50 | tr -d '\n'
    printf '\n'
} >"$tmp/wide/memory.csv"
fails 2 "wide/memory.csv:1: columns: found 53" "allowed: at most 40" -- diff "$tmp/wide" "$tmp/bare"

# ---- recordings ----------------------------------------------------------------------------------

for name in tiny-base tiny-hsdp-2x4-bf16-reduce; do
    gzip -dc "$golden/$name.timeline.json.gz" >"$tmp/$name.timeline.json" || complain "gzip"
done
base=$tmp/tiny-base.timeline.json
works diff "$base" "$tmp/tiny-hsdp-2x4-bf16-reduce.timeline.json" --format json
i=0
for name in tiny-base tiny-hsdp-2x4-bf16-reduce; do
    side=a
    [ $i = 1 ] && side=b
    i=1
    # categories.iterations[1].peak_bytes of the golden data.
    golden_peak=$(tr -d ' \n' <"$golden/$name.json" |
        sed 's/.*"categories":{"iterations":\[//; s/\].*//' | grep -o '"peak_bytes":[0-9]*' |
        sed -n '2s/.*://p')
    equal "recorded peak of $name" "$(value "$out" $side allocated_bytes)" "$golden_peak"
done
equal "owners of recordings" "$(sed -n '/^  "owners"/,/^  \]/s/.*"difference_bytes": \(-*[0-9]*\).*/\1/p' "$out" |
    awk '{ s += $1 } END { printf "%.0f", s }')" "$(value "$out" total allocated_difference_bytes)"
works diff "$base" "$base"
has "$out" "The curves never part" "(recording)" "layers.2.attention"
# Compressed, where the program was built with zlib.
checks=$((checks + 1))
if "$TESSERA" diff "$golden/tiny-base.timeline.json.gz" "$base" >"$out" 2>"$err"; then
    has "$out" "The curves never part"
else
    has "$err" "built without zlib"
fi
works diff "$base" "$flagship:fsdp"
has "$out" "Where the gap" "Alive at the peaks, by category and owner"

# ---- mistakes ------------------------------------------------------------------------------------

fails 2 "diff: no file given" "A B" -- diff
fails 2 "diff: found one run, x; allowed: two" -- diff x
fails 2 "third file, z" "allowed: two" -- diff x y z
fails 2 "diff: found nowhere; allowed: FILE:STRATEGY" "memory.csv" -- diff nowhere "$flagship:fsdp"
fails 2 "nowhere.yaml:fsdp" "FILE:STRATEGY" -- diff "$flagship:fsdp" nowhere.yaml:fsdp
fails 2 "$flagship:; allowed" -- diff "$flagship:" "$flagship:fsdp"
fails 2 "found \"fsdb\"" "nearest strategy: \"fsdp\"" -- diff "$flagship:fsdb" "$flagship:fsdp"
fails 2 "--strategy: none given" "fsdp-one-group" -- diff "$flagship" "$flagship:fsdp"
fails 2 "--format: found md" "text or json" -- diff x y --format md
fails 2 "--top: found 0" -- diff x y --top 0
fails 2 "unknown option --strategy" -- diff x y --strategy fsdp
fails 2 "bacth" -- diff "$flagship:fsdp" "$flagship:fsdp" --set bacth=2
fails 2 "$tmp/out: has no memory.csv; allowed: the folder of one strategy" -- diff "$tmp/out" "$tmp/out/fsdp"
fails 3 "out of memory" -- diff "$flagship:fsdp" "$flagship:ddp" --set allocator.limit=card

# bad NAME TEXT WORD...: a damaged memory.csv with that text.
bad() {
    mkdir -p "$tmp/$1"
    printf '%b' "$2" >"$tmp/$1/memory.csv"
    name=$1
    shift 2
    fails 2 "$tmp/$name/memory.csv" "$@" -- diff "$tmp/$name" "$tmp/bare"
}
head=time_s,activation_bytes,total_bytes,reserved_bytes
bad empty '' ':0: head: found ""' "as compare writes it"
bad comments '# nothing\n' "head"
bad head 'a,b\n1,2\n' ':1: head: found "a"'
bad column "time_s,secret_bytes,total_bytes,reserved_bytes\n" 'column: found "secret_bytes"'
bad total 'time_s,activation_bytes,reserved_bytes\n' "total_bytes and reserved_bytes"
bad rows "$head\n" "found no rows"
bad short "$head\n0,1,2\n" ':2: row: found "0"' "as many fields"
bad time "$head\nnow,1,1,1\n" ':2: time: found "now"; allowed: seconds'
bad bytes "$head\n0,1,-1,1\n" 'bytes: found "-1"; allowed: an integer'
bad category "$head\n0,x,1,1\n" 'bytes: found "x"'
bad not-compared "$head,requested_bytes\n0,1,1,1,x\n" 'bytes: found "x"'
printf '%s\n0,1,1,1\n' $head >"$tmp/total/memory.csv"
printf 'a,b\n' >"$tmp/total/streams.csv"
fails 2 "streams.csv:1: head" "stream,start_s" -- diff "$tmp/total" "$tmp/bare"
rm "$tmp/total/streams.csv"
printf 'a,b\n' >"$tmp/total/phases.csv"
fails 2 "phases.csv:1: head" "phase,start_s" -- diff "$tmp/total" "$tmp/bare"

# damaged TEXT WORD...: a time line with that text.
damaged() {
    printf '%s' "$1" >"$tmp/bad.timeline.json"
    shift
    fails 2 "$tmp/bad.timeline.json" "$@" -- diff "$base" "$tmp/bad.timeline.json"
}
tables='"tables":{"phase":["init"],"module":[""],"op":[""],"category":["Temp","Mystery"],"segment_action":["segment_alloc","segment_free"],"stream":["default"]}'
damaged '{' ":1:"
damaged '[]' "tables"
damaged '{"tables":{},"events":[[0]]}' "tables"
damaged "{$tables,\"events\":[[7]]}" "event 0" "neither an allocation, a free nor a segment"
damaged "{$tables,\"events\":[[0,0,0]]}" "event 0"
damaged "{$tables,\"events\":[[0,\"x\",0,0,0,0]]}" "no number"
damaged "{$tables,\"events\":[[0,0,0,9,0,0]]}" "in no table"
damaged "{$tables,\"events\":[[1,0,4,0,0,1,0,0,0,0]]}" "unknown category"
damaged "{$tables,\"events\":[[0,5,0,0,0,0]]}" "not allocated"
damaged "{$tables,\"events\":[[1,0,4,0,0,0,0,0,0,0],[1,0,4,0,0,0,0,0,0,0]]}" "event 1"
damaged "{$tables,\"events\":[[2,1,4,0,0,0,0,0,0]]}" "more memory released than reserved"
damaged "{$tables,\"events\":[[2,7,4,0,0,0,0,0,0]]}" "unknown segment action"
damaged "{$tables,\"events\":[[2,0,4,0,0,-1,0,0,0]]}" "no iteration"
damaged "{$tables,\"events\":[[1,99999999999,4,0,0,0,0,0,0,0]]}" "too large"
printf 'no gzip' >"$tmp/no.gz"
fails 2 "$tmp/no.gz" -- diff "$base" "$tmp/no.gz"
checks=$((checks + 1))
"$TESSERA" diff "$base" "$base" >/dev/full 2>"$err"
if [ $? != 1 ] || [ "$(wc -l <"$err")" != 1 ]; then
    complain "a full disk is no failure of the machine"
fi
finish
