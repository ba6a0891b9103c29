#!/usr/bin/env bash
# explain: its figures are those of compare and memory.csv; a what-if is a real run with --set.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
# shellcheck source=tests/studies/_figures.sh
. "$TSR_SOURCE_DIR/tests/studies/_figures.sh"
whole=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml
# Every rule below holds for any number of blocks: the short form has a quarter of them.
layers=32
thorough || layers=8
flagship=$tmp/flagship.yaml
# DDP's iterations go on differing by blocks that are split or not, where segments have fixed sizes.
sed -e "s/names: hf}/names: hf, layers: $layers}/" -e 's/^  ddp: {/&allocator.expandable_segments: true, /' "$whole" >"$flagship"
grep -q '^  ddp: {allocator' "$flagship" || complain "$whole: no strategy ddp"

# sum FILE SECTION LIST KEY: over the rows of a LIST of SECTION.
sum() {
    awk -v section="  \"$2\"" -v list="\"$3\": [" -v key="\"$4\":" '
        index($0, section) == 1 { on = 1 } on && index($0, list) { in_list = 1; match($0, / */); n = RLENGTH }
        on && in_list && index($0, key) { v = $0; sub(/.*": /, "", v); sub(/,$/, "", v); s += v }
        on && in_list && match($0, /^ *\]/) && RLENGTH == n + 1 { printf "%.0f\n", s; exit }' "$1"
}

# ---- the peak is that of compare, what is alive that of memory.csv --------------------------------

strategies="fsdp fsdp-checkpoint ddp fsdp-one-group"
thorough && strategies="$strategies hsdp-2x4"
works compare "$flagship" --only "$(echo "$strategies" | tr ' ' ,)" --format csv --out "$tmp/out" --pictures none --traces
cp "$out" "$tmp/compare.csv"
for s in $strategies; do
    works explain "$flagship" --strategy "$s" --no-what-if --format json
    cp "$out" "$tmp/$s.json"
    peak=$(column "$tmp/compare.csv" "$s" peak_allocated_bytes)
    equal "$s: peak" "$(value "$out" peak allocated_bytes)" "$peak"
    equal "$s: reserved" "$(value "$out" peak reserved_bytes)" \
        "$(column "$tmp/compare.csv" "$s" peak_reserved_bytes)"
    equal "$s: phase" "$(value "$out" peak phase)" "$(column "$tmp/compare.csv" "$s" peak_phase)"
    equal "$s: module" "$(value "$out" peak module)" "$(column "$tmp/compare.csv" "$s" peak_module)"
    equal "$s: module in the folder" "$(value "$out" peak module)" \
        "$(grep -v '^#' "$tmp/out/$s/peak.csv" | tail -n 1 | cut -d, -f3)"
    equal "$s: first iteration" "$(sed -n '/"iteration": "first"/,/allocated_bytes/p' "$out" |
        sed -n 's/.*"allocated_bytes": \([0-9]*\).*/\1/p')" \
        "$(column "$tmp/compare.csv" "$s" first_peak_allocated_bytes)"
    equal "$s: categories" "$(sum "$out" alive by_category bytes)" "$peak"
    equal "$s: owners" "$(sum "$out" alive owners bytes)" "$peak"
    equal "$s: phases" "$(sed -n '/^  "phases"/,/^  \]/s/.*"allocated_bytes": \([0-9]*\).*/\1/p' "$out" |
        sort -n | tail -n 1)" "$peak"

    # Every category, against the row of memory.csv that has the peak.
    grep -v '^#' "$tmp/out/$s/memory.csv" | awk -F, -v peak="$peak" '
        NR == 1 { for (i = 1; i <= NF; i++) { at[$i] = i; sub(/_bytes$/, "", $i); name[i] = $i }
                  total = at["total_bytes"]; next }
        $total == peak { for (i = 2; i < total; i++) if ($i) print name[i], $i
                         print "reserved", $at["reserved_bytes"]; exit }' |
        sort >"$tmp/row"
    {
        sed -n '/^  "alive"/,/^    "owners"/p' "$out" | awk -F'"' '
            /"category"/ { name = tolower($4); gsub(/ /, "_", name); sub(/optstate/, "opt_state", name); sub(/opttemp/, "opt_temp", name) }
            /"bytes"/ && name { gsub(/[^0-9]/, "", $3); print name, $3; name = "" }'
        echo reserved "$(value "$out" allocator reserved_bytes)"
    } | sort >"$tmp/alive"
    same "$tmp/row" "$tmp/alive"

    # requested + rounding = allocated; + inactive split + cached = reserved; the pools are the sum.
    requested='' rounding='' allocated='' inactive_split='' cached='' reserved=''
    for part in requested rounding allocated inactive_split cached reserved; do
        eval "$part=$(value "$out" allocator ${part}_bytes)"
    done
    equal "$s: rounding" $((requested + rounding)) "$allocated"
    equal "$s: cached" $((allocated + inactive_split + cached)) "$reserved"
    for part in allocated reserved cached inactive_split; do
        equal "$s: pools, $part" "$(sum "$out" allocator pools ${part}_bytes)" \
            "$(value "$out" allocator ${part}_bytes)"
    done
done

# The card: what it must hold is what compare says, and it is a sum.
need=$(value "$tmp/fsdp.json" card needed_bytes)
equal "needed" "$need" "$(column "$tmp/compare.csv" fsdp needed_bytes)"
equal "needed, the sum" "$need" $(($(value "$tmp/fsdp.json" card most_reserved_bytes) +
    $(value "$tmp/fsdp.json" card context_bytes) + $(value "$tmp/fsdp.json" card nccl_bytes)))
equal "libraries" "$(value "$tmp/fsdp.json" card library_bytes)" null
for s in fsdp ddp; do
    fits=$(value "$tmp/$s.json" card fits | sed 's/true/yes/; s/false/no/; s/null/unknown/')
    equal "$s: fits" "$fits" "$(column "$tmp/compare.csv" $s fits)"
done

# The next-highest peaks: levels of the curve, lower than the peak, the highest first, no two alike.
sed -n '/^  "next_peaks"/,/^  \]/p' "$tmp/fsdp.json" | sed -n 's/^      "allocated_bytes": \([0-9]*\),/\1/p' >"$tmp/next"
[ "$(wc -l <"$tmp/next")" -ge 3 ] || complain "fewer than 3 next-highest peaks"
sort -rn "$tmp/next" >"$tmp/next-sorted"
same "$tmp/next" "$tmp/next-sorted"
[ "$(head -n 1 "$tmp/next")" -lt "$(value "$tmp/fsdp.json" peak allocated_bytes)" ] ||
    complain "a next-highest peak is not lower"
grep -v '^#' "$tmp/out/fsdp/memory.csv" | awk -F, '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } { print $at["total_bytes"] }' >"$tmp/levels"
while read -r level; do
    checks=$((checks + 1))
    grep -qx "$level" "$tmp/levels" || complain "no level $level in memory.csv"
done <"$tmp/next"

# ---- questions of debugging: closed forms ----------------------------------------------------------

# A checkpointed block keeps its output in bf16: 8192 tokens x 4096. Others keep more.
equal "recomputed blocks" "$(value "$tmp/fsdp-checkpoint.json" checkpointing recomputed_blocks)" $layers
equal "kept by a block" "$(value "$tmp/fsdp-checkpoint.json" checkpointing smallest_block_bytes)" \
    $((8192 * 4096 * 2))
equal "no recomputation" "$(value "$tmp/fsdp.json" checkpointing recomputed_blocks)" 0
equal "left after backward" \
    "$(value "$tmp/fsdp.json" checkpointing activation_bytes_after_backward)" 0
works explain "$flagship" --strategy fsdp --set checkpoint=2 --no-what-if --format json
equal "every second block" "$(value "$out" checkpointing recomputed_blocks)" $((layers / 2))
# With the root alone unsharded at the loss: embedding, final norm and head in bf16.
equal "unsharded" "$(value "$tmp/fsdp.json" unsharded unsharded_param_bytes)" \
    $((2 * (2 * 128256 * 4096 + 4096)))
equal "unsharded unit" "$(value "$tmp/fsdp.json" unsharded unit)" "(root)"
# One group: its peak is where it reduces; all parameters are in it.
equal "one group" "$(sed -n '/"at_peak"/,/\]/p' "$tmp/fsdp-one-group.json" | grep -c '"unit"')" 1

# Twice the ranks change four keys where the mesh names one copy and the cluster is full: each has its value.
printf 'model: llama-3.2-1b\ncluster: dgx-h100-1\nseq: 128\nmesh: {replicate: 1, shard: 8}\n' >"$tmp/copies.yaml"
works explain "$tmp/copies.yaml"
has "$out" "world=16 mesh.replicate=null mesh.shard=16 cluster=null"

# ---- what a run does besides its steps ------------------------------------------------------------

set -- --set 'phases=[init,load,step1,step2,eval,save]' --set save=full_device
works compare "$flagship" --only fsdp "$@" --format csv --out "$tmp/run" --pictures none
works explain "$flagship" --strategy fsdp "$@" --no-what-if --format json
cp "$out" "$tmp/run.json"
equal "parts" "$(sed -n '/^  "sections"/,/^  \]/s/.*"section": "\(.*\)",/\1/p' "$out" | tr '\n' ' ')" \
    "init load step1 step2 eval save "
for key in allocated reserved; do
    sed -n '/^  "sections"/,/^  \]/s/.*"'$key'_bytes": \([0-9]*\).*/\1/p' "$tmp/run.json" >"$tmp/parts"
    grep -v '^#' "$tmp/run/fsdp/run-peaks.csv" | awk -F, -v name="peak_${key}_bytes" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } { print $at[name] }' >"$tmp/run-peaks"
    same "$tmp/parts" "$tmp/run-peaks"
done
equal "peak of a run" "$(value "$tmp/run.json" peak phase)" save
equal "checkpointing is that of the step" \
    "$(value "$tmp/run.json" checkpointing activation_bytes_after_forward)" \
    "$(value "$tmp/fsdp.json" checkpointing activation_bytes_after_forward)"
works explain "$whole" --strategy fsdp "$@" --no-what-if --notes
has "$out" "when: save, lm_head" "Peak of each part of the run" "backward, earlier iteration" \
    "does NOT fit" "most in this part of the run"
grep -q "save iteration" "$out" && complain "saving is no iteration"
set --

# ---- what-ifs ------------------------------------------------------------------------------------

works explain "$flagship" --strategy fsdp --deep --format json
cp "$out" "$tmp/what-if.json"
equal "base" "$(value "$out" what_if allocated_bytes)" \
    "$(column "$tmp/compare.csv" fsdp peak_allocated_bytes)"
# One line a row: changes | already set | allocated | reserved. The first line is the base.
rows() {
    awk '/"set": \[\]/ { print "base" } /"set": \[$/ { on = 1; line = ""; next }
        on && /^ *\],?$/ { on = 0; printf "%s", line }
        on { gsub(/^ *"|",?$/, ""); line = line (line ? " " : "") $0 }
        /"already_set"/ { set = $0 ~ /true/ ? "set" : "new" }
        /"allocated_bytes": / { a = $2; sub(/,/, "", a) }
        /"reserved_bytes": / { r = $2; sub(/,/, "", r) }
        /"step_s"/ { print "|" set "|" a "|" r }' "$1"
}
sed -n '/^  "what_if"/,$p' "$tmp/what-if.json" >"$tmp/what-if.part"
rows "$tmp/what-if.part" | grep '=' >"$tmp/rows"
sed -n '/^    "rows"/,/^    \]/p' "$tmp/what-if.part" >"$tmp/singles.part"
rows "$tmp/singles.part" >"$tmp/singles"

# Ordered by what they save; what is set already is the base; every dimension of the table is there.
cut -d'|' -f3 "$tmp/singles" | grep -v null >"$tmp/order"
sort -n "$tmp/order" >"$tmp/sorted"
same "$tmp/order" "$tmp/sorted"
base=$(column "$tmp/compare.csv" fsdp peak_allocated_bytes)
checks=$((checks + 1))
grep '|set|' "$tmp/singles" | grep -vqF "|set|$base|" && complain "a value that is set changes the peak"
for change in wrap=block_embed_head reshard_after_forward=true reshard_after_forward=4 wrap=root \
    forward_prefetch=2 backward_prefetch=2 checkpoint.every=full checkpoint.every=2 \
    checkpoint.every=selective_op loss.chunks=8 optimizer.state=bf16 \
    precision.reduce=bf16 precision.param=none precision.master=bf16 'mesh.shape=[2, 4]' optimizer.variant=loop optimizer.name=sgd \
    offload=cpu_pinned attention=math gqa_repeat=true allocator.expandable_segments=true \
    'world=16 cluster=null'; do
    has "$tmp/singles" "$change|new|"
done

# with CHANGES ARGUMENT...: runs tessera with all changes ("wrap=root mesh.shape=[2, 4]") of fsdp.
with() {
    echo "$1" | sed 's/ \([a-z_.]*=\)/\n\1/g' >"$tmp/changes"
    shift
    while read -r change; do
        set -- "$@" --set "strategies.fsdp.$change"
    done <"$tmp/changes"
    works "$@"
}
# steady FILE KEY: of the steady iteration, which may be lower than the report's peak.
steady() {
    sed -n '/^  "iterations"/,/^  \]/p' "$1" | awk -v key="\"$2\":" '/"iteration": "steady"/ { on = 1 }
        on && index($0, key) { gsub(/[^0-9]/, ""); print; exit }'
}
# Each row, pair and triple is what a real run with --set gives; the short form tries every sixth of them.
every 6 2 <"$tmp/rows" >"$tmp/tried"
while IFS='|' read -r changes _ allocated reserved; do
    with "$changes" explain "$flagship" --strategy fsdp --no-what-if --format json
    equal "$changes: allocated" "$allocated" "$(steady "$out" allocated_bytes)"
    equal "$changes: reserved" "$reserved" "$(steady "$out" reserved_bytes)"
done <"$tmp/tried"
equal "pairs and triples among the rows" "$(grep -c '=.* .*=.*|new' "$tmp/rows")" 5

# The same against compare, for a single change and for the best pair.
for key in pairs triples; do
    sed -n "/^    \"$key\"/,/^    }/p" "$tmp/what-if.part" >"$tmp/best.part"
    rows "$tmp/best.part" | head -n 1 >"$tmp/best"
    IFS='|' read -r changes _ allocated reserved <"$tmp/best"
    with "$changes" compare "$flagship" --only fsdp --format csv
    equal "best of $key" "$allocated" "$(column "$out" fsdp peak_allocated_bytes)"
    equal "best of $key, reserved" "$reserved" "$(column "$out" fsdp peak_reserved_bytes)"
    equal "best of $key, needed" "$(sed -n 's/.*"needed_bytes": \([0-9]*\).*/\1/p' "$tmp/best.part" |
        head -n 1)" "$(column "$out" fsdp needed_bytes)"
    equal "all $key" "$(sed -n 's/.*"possible": //p' "$tmp/best.part")" \
        "$(sed -n 's/.*"emitted": //p' "$tmp/best.part")"
done

# The number of processes changes nothing.
own=$TSR_SOURCE_DIR/experiments/own-model/compare.yaml
works explain "$own" --strategy own-groups --set batch=2 --deep --jobs 1 --notes
cp "$out" "$tmp/one.txt"
if thorough; then
    works explain "$own" --strategy own-groups --set batch=2 --deep --jobs 5 --notes
else
    works explain "$own" --strategy own-groups --set batch=2 --jobs 1 --notes
    cp "$out" "$tmp/shallow.txt"
    works explain "$own" --strategy own-groups --set batch=2 --jobs 5 --notes
fi
same "$out" "$tmp/$(thorough && echo one || echo shallow).txt"

# Micro-batches: the same tokens in smaller parts; a mesh in the words that the strategy uses.
works explain "$flagship" --strategy hsdp-2x4 --set batch=2 --format json
has "$out" '"batch=1"' '"accumulation.steps=2"' '"mesh.replicate=null"' '"mesh.shard=8"'
grep -q '"failure": "' "$out" && complain "a what-if cannot be set"

# --time: the step time is that of compare.
works explain "$flagship" --strategy fsdp --time --format json
step() {
    awk "BEGIN { printf \"%.6f\", $1 }"
}
equal "step time" "$(step "$(value "$out" what_if step_s)")" \
    "$(step "$(column "$tmp/compare.csv" fsdp step_time_s)")"
equal "step time of a what-if" \
    "$(step "$(sed -n '/"checkpoint.every=full"$/,/"step_s"/s/.*"step_s": //p' "$out" | head -n 1)")" \
    "$(step "$(column "$tmp/compare.csv" fsdp-checkpoint step_time_s)")"
# Steps are compared by the token: what a change gives or takes is told for the tokens of the strategy's own step.
checks=$((checks + 1))
cp "$out" "$tmp/timed.json"
python3 - "$tmp/timed.json" <<'END' || complain "what-ifs are not compared by the token"
import json, sys
what_if = json.load(open(sys.argv[1]))["what_if"]
timed = [r for r in what_if["rows"] if r["step_s"] is not None]
assert len(timed) > 20 and what_if["base"]["tokens_per_gpu_and_step"] == 8192
assert all(r["tokens_per_gpu_and_step"] == 8192 for r in timed)
END

# ---- text ----------------------------------------------------------------------------------------

works explain "$flagship" --strategy fsdp --time --top 2 --notes
grep -Eq "Best (found )?(pair|triple)" "$out" && complain "pairs or triples without --deep"
works explain "$flagship" --strategy fsdp --time --deep --top 2 --notes
[ -s "$err" ] && complain "explain: something on stderr"
gib() {
    awk "BEGIN { printf \"%.2f GiB\", $1 / 1073741824 }"
}
has "$out" "Peak: $(gib "$base") allocated" \
    "steady iteration, $(column "$tmp/compare.csv" fsdp peak_phase), " ", for " \
    "model.layers.*" " $layers x " "more" "Units with unsharded parameters at the peak: 1" \
    "Checkpointing: 0 of $layers" "Peak of each phase" "Next-highest peaks" "inactive split" \
    "stream's pool" "already set: " "Best pair, of" "Best triple, of" "(other numbers)" \
    "(more GPUs)" " ms  checkpoint.every=full" "the card has 79.20 GiB: fits" "libraries ?" \
    "  larger, and does not fit: "
has "$out" "  no effect: " "  host: 0 B pageable, 128.00 KiB pinned" "offload=cpu_pinned  (+"
grep -q "(does not fit)" "$out" && complain "what is larger, and does not fit, has a row of its own"
grep -A2 "^  larger, and does not fit: " "$out" | grep "attention=math" >/dev/null ||
    complain "what is larger, and does not fit, is not named"
grep -q "^  no effect: .*checkpoint" "$out" && complain "checkpointing is called without effect"
grep -Eq "^ +0 +0 .* \\+0\.0 ms" "$out" && complain "a row without any effect"
grep -Eq "(^| )[0-9]{4,}(\.[0-9]+)? [KMGT]?i?B" "$out" && complain "four digits before the point"
grep -q "checkpoint.every=full .*(does not fit)" "$out" && complain "less memory, and it does not fit"
# Parameters and states are most of it.
works explain "$flagship" --strategy ddp --set seq=256 --set model.layers=$((layers / 4)) --deep --notes
has "$out" "with the same training" "api=fully_shard"
works explain "$flagship" --strategy fsdp --no-what-if --notes
grep -q "What if" "$out" && complain "--no-what-if shows what-ifs"
has "$tmp/one.txt" "What if" "Best pair, of" "layers.*"
# Many triples of many micro-batches: a part of them, and it is said.
grep -q "Best found triple, of [0-9]* emitted ([0-9]* possible)" "$tmp/one.txt" || complain "no number of triples"
works explain "$TSR_SOURCE_DIR/experiments/gpt2-xl-a100/compare.yaml" --strategy fsdp --no-what-if --notes
has "$out" "transformer.h.*"

# The first screen answers: where, of what, what lowers it, on what knowledge, what is next. Details come with --notes.
COLUMNS=80 works explain "$whole" --strategy fsdp
has "$out" "Peak: 66.20 GiB allocated" "68.1 %  Activation " "checkpoint.every=full" "loss.chunks=8  (needs other software)" "Predicted, nothing ran" "Not known: " \
    "--only fsdp" "--set checkpoint.every=full" "More: --notes"
checks=$((checks + 2))
[ "$(wc -l <"$out")" -le 36 ] || complain "explain has $(wc -l <"$out") lines at 80 columns"
grep -q "Next-highest peaks" "$out" && complain "details without --notes"

# ---- out of memory, and mistakes -----------------------------------------------------------------

fails 3 "out of memory: rank 0" "do not fit" "the card less its context and NCCL 77.92 GiB" -- \
    explain "$whole" --strategy ddp --set allocator.limit=card
works explain "$flagship" --strategy fsdp --set allocator.limit=card --notes
has "$out" "out of memory: attention=math" "not possible: world=16"
fails 2 "explain: no file given" "FILE --strategy NAME" -- explain
fails 2 "second file, b" "allowed: one" -- explain a b
fails 2 "nowhere.yaml" -- explain nowhere.yaml
fails 2 "--strategy: none given" "fsdp-one-group" -- explain "$flagship"
fails 2 "found \"fsdb\"" "nearest strategy: \"fsdp\"" -- explain "$flagship" --strategy fsdb
fails 2 "--format" "found csv" "text or json" -- explain "$flagship" --strategy fsdp --format csv
fails 2 "--top: found 0" "1 to 1000" -- explain "$flagship" --strategy fsdp --top 0
fails 2 "--top: found many" -- explain "$flagship" --strategy fsdp --top many
fails 2 "unknown option --what-if" "nearest: --no-what-if" -- explain "$flagship" --what-if
fails 2 "unknown option --out" -- explain "$flagship" --out x
fails 2 "bacth" "batch" -- explain "$flagship" --strategy fsdp --set bacth=2
fails 2 "batch" "found 0" -- explain "$flagship" --strategy fsdp --set batch=0
printf 'model: llama-3.1-8b\nworld: 8\nseq: 128\n' >"$tmp/no-cluster.yaml"
fails 2 "cluster" "allowed" -- explain "$tmp/no-cluster.yaml" --time
fails 2 "slow_rank" "found 99" -- \
    explain "$flagship" --strategy fsdp --time --set sim.slow_rank=99 --set sim.slow_factor=2
works explain "$tmp/no-cluster.yaml" --notes
has "$out" "the card has ?" "world=16"
printf 'model: [\n' >"$tmp/bad.yaml"
fails 2 "bad.yaml" -- explain "$tmp/bad.yaml"
checks=$((checks + 1))
"$TESSERA" explain "$flagship" --strategy fsdp --no-what-if >/dev/full 2>"$err"
if [ $? != 1 ] || [ "$(wc -l <"$err")" != 1 ]; then
    complain "a full disk is no failure of the machine"
fi
finish
