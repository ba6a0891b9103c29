#!/usr/bin/env bash
# tessera plan: the search finds what brute force finds; the largest sizes are boundaries; mistakes.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

small=$tmp/small.yaml
cat >"$small" <<'Y'
title: small
model: qwen2.5-0.5b
cluster: dgx-h100-1
world: 4
batch: 1
seq: 512
model.layers: 2
strategies:
  ddp: {api: ddp}
  fsdp: {}
  own: {batch: 2, checkpoint: full, precision: {param: bf16}}
plan:
  space:
    batch: [1, 4]
    checkpoint: [none, full]
    reshard_after_forward: [null, false]
    mesh: [null, [2, 2]]
    precision: {reduce: [f32, bf16]}
Y

# field COLUMN FILE: a column of a CSV without quoted fields before it, and without the head.
field() {
    sed -e 1d -e 's/"[^"]*"/quoted/g' "$2" | cut -d, -f"$1"
}
count() { # count WORD FILE: the number before a word of the summary
    sed -n "s/.*[^0-9]\([0-9][0-9]*\) $1.*/\1/p;s/^\([0-9][0-9]*\) $1.*/\1/p" "$2" | head -n 1
}

# ---- the search finds what brute force finds ------------------------------------------------
# Twice: against --exhaustive, which simulates everything, and (below) against compare's sweeps.
emitted_less=0
simulated_less=0
agrees() {
    works plan "$small" --format csv "$@"
    cp "$out" "$tmp/search.csv"
    cp "$err" "$tmp/search.note"
    works plan "$small" --format csv --exhaustive "$@"
    same "$tmp/search.csv" "$out"
    [ "$(wc -l <"$out")" -ge 2 ] || complain "plan $*: no row"
    all=$(count configurations: "$err")
    [ "$(count emitted "$err")" -ge $((all - 2)) ] || complain "--exhaustive did not emit all of $all"
    [ "$(count emitted "$tmp/search.note")" -lt "$all" ] && emitted_less=$((emitted_less + 1))
    [ "$(count simulated "$tmp/search.note")" -lt "$(count simulated "$err")" ] &&
        simulated_less=$((simulated_less + 1))
}
agrees
agrees --top 1
# Slower and larger ones must be shown, too, when they are among the N fastest.
for top in $(printf '%s\n' 3 14 100 | every 2); do
    agrees --top $top --set seq=2048 --set 'plan.space={attention: [flash, math], batch: [1, 2, 4], reshard_after_forward: [null, false], precision.reduce: [f32, bf16]}'
done
agrees --top 3 --set plan.budget_gib=9
agrees --top 2 --set plan.budget_gib=6.5 --set 'plan.space={batch: [4, 1, 2], seq: [256, 4096, 1024], checkpoint: [none, full, 2]}'
agrees --strategy own --top 4 --set 'plan.space={batch: [2, 1], wrap: [block, root, block_embed_head], optimizer.variant: [foreach, fused]}'
agrees --strategy ddp --top 2 --set 'plan.space={batch: [1, 2, 4], ddp.bucket_cap_mb: [0, 5], checkpoint.every: [none, full]}'
agrees --top 2 --set cluster=dgx-h100-2 --set world=16 \
    --set 'plan.space={mesh: [null, [2, 8], [4, 4], [8, 2]], batch: [1, 4], reshard_after_forward: [null, false, 4]}'
# What needs another stack is ranked behind, and takes no place from what needs none.
agrees --top 1 --set model=llama-3.1-8b --set model.layers=1 --set 'plan.allow=[]' \
    --set 'plan.space={batch: [1, 4], checkpoint: [none, full], loss.chunks: [1, 8], dialect: [eager, compile]}'
agrees --set cluster=pcie-l40s-8 --set 'sim.host_scale=8' --top 1 \
    --set 'plan.space={batch: [1, 2, 16], backward_prefetch: [0, 2], forward_prefetch: [0, 1]}'
[ $emitted_less -ge 1 ] || complain "nothing was ever left out of the emission"
[ $simulated_less -ge 4 ] || complain "hardly anything was ever left out of the simulation"

# The same space through compare: the fastest that fits, and the front, found by awk.
budget=9
works plan "$small" --format csv --set plan.budget_gib=$budget --top 1
cp "$out" "$tmp/plan.csv"
works compare "$small" --only fsdp --jobs 2 --format csv --set 'sweeps={batch: [1, 4],
    checkpoint: [none, full], reshard_after_forward: [null, false], mesh: [null, [2, 2]],
    precision.reduce: [f32, bf16]}'
awk -F, -v budget=$budget '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    {
        gsub(/"[^"]*"/, "quoted")
        need = $at["needed_bytes"] + 0
        if (need > budget * 1073741824) next
        n++; mem[n] = need; time[n] = sprintf("%.6e", $at["step_time_s"] / $at["tokens_per_gpu_and_step"]) + 0
    }
    END {
        for (i = 1; i <= n; i++) {
            beaten = 0
            for (k = 1; k <= n; k++)
                if (time[k] <= time[i] && mem[k] <= mem[i] && (time[k] < time[i] || mem[k] < mem[i])) beaten = 1
            if (!beaten) printf "%.0f\n", mem[i]
        }
    }' "$out" | sort -rn | uniq >"$tmp/front.awk"
sed 's/"[^"]*"/quoted/g' "$tmp/plan.csv" | awk -F, 'NR > 1 && $11 == "yes" { print $8 }' |
    sort -rn >"$tmp/front.plan"
same "$tmp/front.awk" "$tmp/front.plan"
[ "$(wc -l <"$tmp/front.plan")" -ge 3 ] || complain "the front has fewer than 3 members"

# Each row's command repeats its step time and its memory.
works plan "$small" --format json --top 3
python=$(command -v python3 || true)
if [ -n "$python" ]; then
    "$python" - "$out" >"$tmp/commands" <<'P'
import json, sys
plan = json.load(open(sys.argv[1]))
assert plan["schema"] == "tessera.plan" and plan["configurations"]["space"] == 32
for row in plan["rows"]:
    print("%.9g\t%d\t%s" % (row["step_time_s"], row["peak_allocated_bytes"], row["command"]))
P
    tab=$(printf '\t')
    n=0
    while IFS="$tab" read -r step peak command; do
        n=$((n + 1))
        eval "set -- ${command#tessera}"
        works "$@" --format csv
        [ "$(sed -e 's/"[^"]*"/quoted/g' "$out" | awk -F, '
            NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
            { a = $at["peak_allocated_bytes"]; b = $at["first_peak_allocated_bytes"]
              print $at["step_time_s"] "/" (a + 0 > b + 0 ? a : b) }')" = "$step/$peak" ] ||
            complain "$command: not the $step s and $peak bytes of the plan"
    done <"$tmp/commands"
    [ $n -ge 3 ] || complain "fewer than 3 commands were tried"
fi

# The result and the counts do not depend on how many run at a time.
works plan "$small" --jobs 1 --notes
cp "$out" "$tmp/one.md"
works plan "$small" --jobs 7 --notes
same "$tmp/one.md" "$out"
has "$out" "32 configurations of plan.space" "strategy fsdp" "tessera sim $small --strategy fsdp"

# The default report is one screen at 80 columns: rows, who wins, what to do next; no notes, and no command of each row.
COLUMNS=80 works plan "$small" --top 2
[ "$(wc -l <"$out")" -le 45 ] || complain "the default report has $(wc -l <"$out") lines"
[ "$(awk 'length > 80' "$out" | wc -l)" = 0 ] || complain "the default report is wider than 80 columns"
has "$out" "#1 wins: " " tokens/s/GPU" "A token takes" "All times are simulated" "--emit torch out/code" "--write N FILE"
grep -q "configurations of plan.space\|on sim\|on cuda" "$out" && complain "notes, or a run that nothing is there for, in the default report"
[ "$(grep -c 'tessera sim' "$out")" = 1 ] || complain "not one command in the default report"
works plan "$small" --top 2 --commands
[ "$(grep -c '^    tessera sim' "$out")" -ge 3 ] || complain "--commands: no command for each row"

# A row that was written is what compare takes, with the figures of the plan, beside the strategy of the file.
works plan "$small" --format csv --write 2 "$tmp/second.yaml"
step=$(sed -e 's/"[^"]*"/quoted/g' "$out" | awk -F, '$2 == 2 { print $4 }')
works compare "$tmp/second.yaml" --format csv
[ "$(sed -e 's/"[^"]*"/quoted/g' "$out" | awk -F, '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } { print $at["strategy"] "=" $at["step_time_s"] }' | tail -n 1)" = "fsdp-2=$step" ] ||
    complain "--write 2: compare has not the $step s of the plan"
fails 2 "--write: found 0" "the number of a row" -- plan "$small" --write 0 "$tmp/none.yaml"
fails 2 "--write" "--max" -- plan "$small" --max batch --write 1 "$tmp/none.yaml"

# Values of the strategy itself are set where they stand; sweeps are left out.
works plan "$small" --strategy own --set 'plan.space={batch: [4], precision.reduce: [bf16]}' --format csv
has "$out" strategies.own.batch=4 strategies.own.precision.reduce=bf16
works plan "$small" --set 'sweeps={batch: [1, 2]}' --set 'plan.space={seq: [64, 128]}' --format csv
has "$out" "sweeps=null" "seq=64"

# Rows that need more than the strategy does are marked and last, unless that was asked for.
works plan "$small" --set 'plan.space={dialect: [eager, compile], loss.chunks: [1, 8]}' --set 'plan.allow=[]' --format csv
[ "$(sed -E 's/,("[^"]*"|[a-z_]*),[^,]*$//; s/.*,([a-z]*)$/\1/' "$out" | tr '\n' ' ')" = "marked no yes yes yes " ] || complain "plan.allow=[]: not one row before three marked ones"
has "$out" ',compile,yes' '"compile, loss.chunks",yes' ',loss.chunks,yes'
works plan "$small" --set 'plan.space={dialect: [eager, compile], loss.chunks: [1, 8]}' --allow loss.chunks --format json
has "$out" '"marked": true' '"needs": [' '"compile"'
[ "$(grep -c '"marked": false' "$out")" = 2 ] || complain "--allow loss.chunks: not two rows without a mark"
works plan "$small" --set 'plan.space={dialect: [eager, compile], loss.chunks: [1, 8]}'
grep -q '^| *1 | dialect=compile ' "$out" || complain "dialect is named in plan.space, but compile is not first"
works plan "$small" --set 'plan.space={dialect: [eager, compile], loss.chunks: [1, 8]}' --set 'plan.allow=[]'
has "$out" "+2 needs compile, which strategy fsdp does not have" "faster than #1; --allow all ranks such rows"
fails 2 'plan.allow: found compil;' "allowed: all, or a list of api, compile" -- plan "$small" --allow compil

# Combinations that are refused are counted and left out; a value that is never possible is a mistake.
works plan "$small" --set 'plan.space={mesh: [[4], [2, 2]], reshard_after_forward: [null, 4]}' --notes
has "$out" "1 are not possible" "reshard_after_forward"
fails 2 "plan.space.reshard_after_forward" "3 is refused" "--set plan.space" -- \
    plan "$small" --set 'plan.space={reshard_after_forward: [null, 3]}'

# The default space, for each api.
# That of fsdp is below, beside tensor parallelism, in the short form.
for strategy in $(printf '%s\n' ddp fsdp | every 2); do
    works plan "$small" --strategy $strategy --set plan.space=null --set plan.budget_gib=6 --top 2 --notes
    has "$out" "the default space"
done

# ---- files ----------------------------------------------------------------------------------
works plan "$small" --out "$tmp/out/plan"
for name in plan.csv plan-front.csv plan-frame.csv summary.json; do
    [ -s "$tmp/out/plan/$name" ] || complain "$name is missing"
done
[ "$(grep -c "^[0-9]" "$tmp/out/plan/plan.csv")" = 32 ] || complain "plan.csv has not 32 rows"
if command -v gnuplot >/dev/null; then
    for name in plan.svg plan.png; do
        [ -s "$tmp/out/plan/$name" ] || complain "$name is missing"
    done
    has "$tmp/out/plan/plan.svg" "budget of the card"
fi
for left in "$tmp/out/plan"/.[!.]*; do
    [ -e "$left" ] && complain "$left is left in the folder"
done

# ---- the largest that fits ------------------------------------------------------------------
# Every value from 1 to the one after the boundary, measured by `sim`: all fit but the last.
boundary() { # boundary WHAT KEY LEAST ARGUMENT...
    what=$1 key=$2 least=$3
    shift 3
    works plan "$small" --strategy fsdp --max "$what" --format csv "$@"
    largest=$(field 3 "$out" | head -n 1)
    verdict=$(field 4 "$out" | tr '\n' ' ')
    case $verdict in
    "yes no " | "retries no ") ;;
    *) complain "--max $what: not a boundary: $verdict" ;;
    esac
    [ "$(field 3 "$out" | tail -n 1)" = $((largest + 1)) ] || complain "--max $what: the next is not"
    [ "$largest" -ge "$least" ] || complain "--max $what: $largest is less than $least"
    limit=$(field 11 "$out" | head -n 1)
    cp "$out" "$tmp/max.csv"
    for value in "$largest" $((largest + 1)); do
        "$TESSERA" sim "$small" --strategy fsdp --set "$key=$value" "$@" --format csv >"$out" 2>"$err"
        need=$(sed -e 's/"[^"]*"/quoted/g' "$out" | awk -F, '
            NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
            { print $at["needed_bytes"] }')
        said=$(field 6 "$tmp/max.csv" | sed -n $((value - largest + 1))p)
        fit=no
        [ "$need" -le "$limit" ] && fit=yes
        case $verdict$value in
        "retries no $largest") # it would like more, and does with what there is
            [ "$fit" = no ] || complain "--max $what: retries at $value, which needs $need of $limit"
            [ "$said" -le "$limit" ] || complain "--max $what: $value takes $said of $limit"
            continue
            ;;
        *" $largest") want=yes ;;
        *) want=no ;;
        esac
        [ "$said" = "$need" ] || complain "--max $what: sim says that $value needs $need"
        [ "$fit" = $want ] || complain "--max $what: fits at $value: $fit"
    done
}
boundary batch batch 10
boundary seq seq 100 --set plan.budget_gib=8
# The default budget is the verdict of `sim`: certain at the boundary, not so behind it.
works plan "$small" --strategy fsdp --max seq --format csv
largest=$(field 3 "$out" | head -n 1)
for value in "$largest" $((largest + 1)); do
    "$TESSERA" sim "$small" --strategy fsdp --set "seq=$value" --format csv >"$out" 2>"$err"
    fit=$(sed -e 's/"[^"]*"/quoted/g' "$out" | awk -F, '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        { print $at["fits"] }')
    if [ "$value" = "$largest" ]; then # with retries or without
        [ "$fit" = yes ] || complain "--max seq: fits at $value, but sim says \"$fit\""
    else
        [ "$fit" != yes ] || complain "--max seq: does not fit at $value, but sim says yes"
    fi
done
boundary layers model.layers 4 --set plan.budget_gib=6
# By a linear search too, at a budget below which all numbers of layers fit.
works plan "$small" --strategy fsdp --max layers --set plan.budget_gib=4.3 --format csv
largest=$(field 3 "$out" | head -n 1)
value=1
while "$TESSERA" plan "$small" --strategy fsdp --set model.layers=$value --set plan.budget_gib=4.3 \
    --set 'plan.space={batch: [1]}' >/dev/null 2>&1; do
    value=$((value + 1))
done
[ "$value" = $((largest + 1)) ] || complain "--max layers: $largest, but $value is the first that does not fit"
works plan "$small" --strategy own --max batch
has "$out" "Largest batch that fits into 77.71 GiB" strategies.own.batch= "| yes" "| NO "
largest=$(sed -n 's/^| *\([0-9]*\) | yes[, ].*/\1/p' "$out")
has "$out" "it fits at $largest, not at $((largest + 1)); larger values may fit by chance"
[ "$(grep '^|' "$out" | sed 's/|[^|]*|$//' | awk '{ print length }' | sort -u | wc -l)" = 1 ] ||
    complain "--max: the columns are not aligned"
works plan "$small" --max layers --format json --set plan.budget_gib=5 --out "$tmp/out/max"
has "$out" '"key": "model.layers"' '"largest"' '"at_next"'
[ -s "$tmp/out/max/max.csv" ] || complain "max.csv is missing"
# Beside the exact limit a multiple of 128, which fits and which the command names.
works plan "$small" --strategy fsdp --max seq --set plan.budget_gib=8
even=$(sed -n 's/.*largest multiple of 128: \([0-9]*\)$/\1/p' "$out")
largest=$(sed -n 's/^Largest seq that fits into [0-9.]* GiB: \([0-9]*\).*/\1/p' "$out")
[ $((even % 128)) = 0 ] && [ "$even" -gt $((largest - 128)) ] && [ "$even" -le "$largest" ] ||
    complain "--max seq: $even is no multiple of 128 below $largest"
has "$out" "| $even | yes" "seq=$even"
# A learned table of positions ends a sequence before the card does.
works plan "$small" --set model=gpt2 --set model.layers=2 --strategy fsdp --max seq
has "$out" "fits into 77.71 GiB: 1024" "largest value of seq that is allowed"
# Sequence parallelism cuts the sequence: only multiples are tried.
works plan "$small" --set model=llama-3.1-8b --set model.layers=2 --set tp=2 --set plan.budget_gib=20 --strategy fsdp --max seq --format csv
[ $(($(field 3 "$out" | head -n 1) % 2)) = 0 ] || complain "--max seq with tp: an odd length"

# ---- tensor parallelism and compiled blocks ---------------------------------------------------
printf 'model: {name: llama-3.1-8b, layers: 1}\ncluster: dgx-h100-1\nworld: 4\nseq: 512\nwrap: [{modules: [""]}]\ncheckpoint.every: none\n' >"$tmp/default.yaml"
works plan "$tmp/default.yaml" --top 1 --notes
has "$out" "the default space" "not possible; the first: tp beside loss.chunks"

# ---- what does not fit ----------------------------------------------------------------------
fails 3 "nothing fits into 0.50 GiB" "the smallest that was found needs" fsdp -- plan "$small" --set plan.budget_gib=0.5
fails 3 "no batch fits into 0.50 GiB" "1 needs" fsdp -- plan "$small" --max batch --set plan.budget_gib=0.5
fails 3 "no number of layers fits" -- plan "$small" --max layers --set plan.budget_gib=0.01
works plan "$small" --max batch --strategy fsdp --set allocator.limit=card --format csv
[ "$(field 4 "$out" | tr '\n' ' ')" = "yes no " ] || complain "--max with allocator.limit: not a boundary"

# ---- mistakes -------------------------------------------------------------------------------
fails 2 "no file given" -- plan
fails 2 "--max" tokens "batch, seq or layers" -- plan "$small" --max tokens
fails 2 "--exhaustive" "--max" -- plan "$small" --max batch --exhaustive
fails 2 "--top" 0 "1 to 1000" -- plan "$small" --top 0
fails 2 "--format" xml -- plan "$small" --format xml
fails 2 "--strategy" fsdq fsdp -- plan "$small" --strategy fsdq
fails 2 "--out" -- plan "$small" --out "$small/x"
for value in 0 -1 many '[1]' .inf 9999999999; do
    fails 2 "plan.budget_gib" "a number above 0" -- plan "$small" --set "plan.budget_gib=$value"
done
fails 2 "plan: found 3" "a mapping" -- plan "$small" --set plan=3
fails 2 'plan: unknown key "budget"; nearest: "budget_gib"' "budget_gib, space or allow" -- plan "$small" --set plan.budget=3
fails 2 "plan.space: found 3" "a mapping" -- plan "$small" --set plan.space=3
fails 2 "plan.space: found an empty" -- plan "$small" --set 'plan.space={}'
fails 2 "plan.space.batch: found 4" "a list" -- plan "$small" --set 'plan.space={batch: 4}'
fails 2 "plan.space.batch: found an empty list" -- plan "$small" --set 'plan.space={batch: []}'
fails 2 "plan.space.batch: found 2 twice" -- plan "$small" --set 'plan.space={batch: [2, 2]}'
fails 2 '"bacth"' 'nearest: batch' -- plan "$small" --set 'plan.space={bacth: [1]}'
fails 2 "batch: found 0" "an integer from 1" -- plan "$small" --set 'plan.space={batch: [1, 0]}'
fails 2 "precision.reduce: found fp9" -- plan "$small" --set 'plan.space={precision: {reduce: [fp9]}}'
fails 2 "plan.space.mesh.shape" "beside mesh" -- plan "$small" --set 'plan.space={mesh: [[4]], mesh.shape: [[2, 2]]}'
fails 2 "more than 262144 combinations" -- \
    plan "$small" --set "plan.space={batch: [$(seq -s, 1 600)], seq: [$(seq -s, 1 600)]}"
sed 's/batch: \[1, 4\]/batch: [1, none]/' "$small" >"$tmp/place.yaml"
fails 2 "place.yaml:14" "batch: found none" -- plan "$tmp/place.yaml"
cp "$TSR_SOURCE_DIR"/experiments/clusters/*.json "$tmp/"
sed 's/"visible_bytes": [0-9]*/"visible_bytes": null/' \
    "$TSR_SOURCE_DIR/experiments/clusters/gpu-h100-sxm5-80g.json" >"$tmp/gpu-h100-sxm5-80g.json"
fails 2 "plan.budget_gib" "does not say how many bytes" -- \
    plan "$small" --set "cluster=$tmp/cluster-dgx-h100-1.json" --strategy fsdp
fails 2 "model.layers" "found 0" -- plan "$small" --set model.layers=0
fails 2 "model.layers" "Llama family, GPT-2 or MPT" -- \
    compare "$TSR_SOURCE_DIR/experiments/own-model/compare.yaml" --set model.layers=2
if [ -c /dev/full ]; then
    checks=$((checks + 1))
    "$TESSERA" plan "$small" --set 'plan.space={batch: [1]}' >/dev/full 2>"$err"
    got=$?
    [ "$got" = 1 ] || complain "plan to a full disk: exit status $got, not 1"
fi

# ---- a traced model with kernels that the cost model does not know ---------------------------
python3 - "$TSR_SOURCE_DIR/tests/golden-bridge/dlrm-tiny-4ranks-sgd.trace" "$tmp/own.trace" <<'PY'
import gzip, hashlib, json, sys
trace = json.loads(gzip.open(sys.argv[1]).read())
for op in trace["ops"]:   # an operator of one's own
    op[0] = op[0].replace("aten._embedding_bag", "mine.bag")
said = {key: value for key, value in trace.items() if key not in ("made_by", "sha256")}
trace["sha256"] = hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
gzip.open(sys.argv[2], "wt").write(json.dumps(trace))
PY
cat >"$tmp/traced.yaml" <<Y
model: {trace: $tmp/own.trace}
cluster: dgx-h100-1
world: 4
strategies: {fsdp: {wrap: block}}
Y
works plan "$tmp/traced.yaml"
grep -q "% of #1's step, and at most 0\.[1-9] % of a row's, is in kernels of the trace" "$out" ||
    complain "the share of unknown kernels is said"
works plan "$tmp/traced.yaml" --format csv
cut -d, -f17 "$out" >"$tmp/shares"
[ "$(head -n 1 "$tmp/shares")" = unknown_kernels_share ] || complain "unknown kernels have a column"
finish
