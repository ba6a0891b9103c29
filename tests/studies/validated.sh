#!/usr/bin/env bash
# The error of a class of configurations, under the table of a comparison and in its files.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
no_pictures

mkdir -p "$tmp/study/validation" "$tmp/out"
cat >"$tmp/study/two.yaml" <<'EOF'
model: {name: llama-3.2-1b, layers: 2}
cluster: dgx-h100-2
seq: 1024
strategies:
  one: {world: 8}
  many: {}
  old: {api: fsdp1, world: 8}
  old-too: {api: fsdp1, world: 8, checkpoint: full}
EOF
errors=$tmp/study/validation/errors.json

# entry API GPU NODES ROWS STACK GPUS VARIED
entry() {
    printf '{"class": "x", "api": "%s", "gpu": "%s", "nodes": "%s", "rows": %s,' "$1" "$2" "$3" "$4"
    printf ' "stack": %s, "models": ["llama"], "gpus": %s, "varied": [%s],' "${5-null}" "${6-[8, 8]}" "${7-}"
    printf ' "parameters": [300000000, 500000000],'
    printf ' "median": 0.0213, "p90": 0.05, "max": 0.083, "source": "made-up.csv"}'
}
{
    printf '{"classes": [\n'
    entry fully_shard h100-sxm5-80g one 10
    printf ',\n'
    entry fully_shard h100-sxm5-80g many 6 null '[16, 64]'
    printf ',\n'
    entry fsdp1 a100-sxm4-80g one 40 '"llm-foundry-2023-10"' # another card, another stack
    printf ',\n'
    entry fsdp1 h100-sxm5-96g-500w one 4 null '[8, 8]' '"checkpoint.every"'
    printf ']}\n'
} >"$errors"

# A class that is claimed, one with too few rows, one that was not measured: of that no error is known,
# and --notes alone names what is nearest. Each once.
works compare "$tmp/study/two.yaml" --out "$tmp/out" --pictures none --notes
has "$out" "Validated error of time, fully_shard on h100-sxm5-80g, one node: measured: fully_shard on h100-sxm5-80g, 8 GPUs, llama, no stack: median 2.1 %, 90 % within 5.0 %, largest 8.3 % (10 rows of made-up.csv)." \
    "Validated error of time, fully_shard on h100-sxm5-80g, more than one node: measured: fully_shard on h100-sxm5-80g, 16 to 64 GPUs" \
    "(6 rows of made-up.csv: too few to claim an error)" \
    "Error of time, fsdp1 on h100-sxm5-80g, one node: extrapolated, no error known: beyond what was measured in card." \
    "gpu-h100-sxm5-80g.json" "Times come from kernels: tables sm90 of h100-sxm5-80g" "collectives: NCCL's tuner"
checks=$((checks + 1))
[ "$(grep '^[VE].*rror of time' "$out" | sort -u | wc -l)" = 3 ] || complain "not one line for each of three classes"
checks=$((checks + 1))
python3 - "$tmp/out/summary.json" <<'EOF' || complain "summary.json"
import json, sys
study = json.load(open(sys.argv[1]))
one, many, old = study["validated_error"]
error = {"rows": 10, "median": 0.0213, "p90": 0.05, "max": 0.083, "source": "made-up.csv", "claimed": True}
assert one["api"] == "fully_shard" and one["gpu"] == "h100-sxm5-80g" and one["nodes"] == "one"
assert one["error"] == error and one["differs"] == [] and one["some_differ"] == []
assert many["nodes"] == "many" and many["error"]["claimed"] is False
assert old["api"] == "fsdp1" and old["error"] is None and old["differs"] == ["card"] == old["beyond"]
assert old["nearest"] is None and old["time_error"] == "extrapolated, no error known"
assert many["nearest"]["gpus"] == [16, 64] and many["nearest"]["stack"] is None
assert "sm90" in study["time_sources"]
rows = {row["strategy"]: row for row in study["rows"]}
assert rows["one"]["time_error"] == "measured" and rows["one"]["time_error_median"] == 0.0213
assert rows["old"]["time_error"] == old["time_error"] and rows["old"]["time_error_median"] is None
EOF
works compare "$tmp/study/two.yaml" --notes
has "$out" "Nearest to fsdp1 on h100-sxm5-80g, one node: measured: fsdp1 on h100-sxm5-96g-500w, 8 GPUs, llama, no stack: median 2.1 %" "; yours differs in card."
works compare "$tmp/study/two.yaml" --format csv
has "$out" ',measured,10,0.0213,0.05' ',"extrapolated, no error known",,,'

# Keys count, not names: a study that writes down what a stack has is of its class, one that changes it
# is not. What some strategies do is said apart; more GPUs than any row are no class of their own.
cat >"$tmp/study/keys.yaml" <<'EOF'
model: {name: llama-3.2-1b, layers: 2, norm: hand, names: torchtitan}
cluster: dgx-h100-2
world: 8
seq: 1024
clip: true
gqa_repeat: true
reshard_after_forward: true
EOF
printf '{"classes": [\n%s]}\n' "$(entry fully_shard h100-sxm5-80g one 12 '"torchtitan-2024-12"')" >"$errors"
line() { # WANT OPTION...
    want=$1
    shift
    works compare "$tmp/study/keys.yaml" "$@" --notes
    has "$out" "$want"
}
line "Validated error of time, fully_shard on h100-sxm5-80g, one node: measured: fully_shard on h100-sxm5-80g, 8 GPUs, llama, torchtitan-2024-12: median"
line "; yours differs in clip, gqa_repeat." --set clip=false --set gqa_repeat=false
line "; some strategies differ in checkpoint.every, offload." \
    --set 'strategies={a: {}, b: {checkpoint: full, offload: cpu}}'
line "; yours differs in number of GPUs." --set world=4
line "; some strategies differ in mesh." --set 'strategies={a: {}, b: {mesh: [2, 4]}}'
line "; yours differs in number of parameters." --set 'model={name: llama-3.2-1b, layers: 14, norm: hand, names: torchtitan}'
# Beyond a class no figure stands: another API, card or family, more nodes, four times the size. What is assumed there does.
beyond() { # DIFFERENCES OPTION...
    line ": extrapolated, no error known: beyond what was measured in $1." "${@:2}"
    checks=$((checks + 1))
    ! sed '/^Notes$/,$d' "$out" | grep -q ' rows of' || complain "$1: an error is printed"
}
only() { printf '{"classes": [\n%s]}\n' "$1" >"$errors"; }
beyond nodes --set world=16
has "$out" "Assumed there, not measured: the slowest of 2 nodes takes 1.0 % longer" \
    "(sim.calibration.straggler_share 0.01, a constant per doubling of the nodes)"
beyond "API, card, model" --set cluster=dgx-a100-16 --set model=gpt2 --set api=ddp
many=$(entry fully_shard h100-sxm5-80g many 6 '"torchtitan-2024-12"' '[16, 16]')
only "$(printf '%s' "$many" | sed 's/\[16, 16\]/[2, 3]/')"
beyond "number of GPUs (more than 4 times)" --set world=16
only "$(printf '%s' "$many" | sed 's/"parameters": \[[^]]*\]/"parameters": [1000, 2000]/')"
beyond "number of parameters (more than 4 times)" --set world=16
only "$(printf '%s' "$many" | sed 's/"parameters": \[[^]]*\]/"parameters": [8000000000, 9000000000]/')"
beyond "number of parameters (less than a quarter)" --set world=16
only "$(entry fully_shard h100-sxm5-80g one 12 '"torchtitan-2024-12"')"
line "yours differs in model.norm, optimizer.variant, gqa_repeat, wrap, sim.attention_kernel" \
    --set 'model={name: llama-3.2-1b, layers: 2}' --set gqa_repeat=false --set stack=torchtitan-2026
# Every output that has a time says the same sentence: plan, overlap, goodput, jobs and report.html.
sentence=$(sed -n '/^Error of time, /,/\.$/p' "$out" | tr '\n' ' ' | sed 's/ *$//')
every() { # FILE WHAT: the sentence, also where lines are broken elsewhere
    checks=$((checks + 1))
    tr -s ' \n' ' ' <"$1" | grep -cF -e "${sentence%%; yours*}" >/dev/null || complain "$2 does not state the error: $sentence"
}
set -- --set 'model={name: llama-3.2-1b, layers: 2}' --set gqa_repeat=false --set stack=torchtitan-2026
for command in plan overlap goodput explain; do
    space=()
    [ $command != plan ] || space=(--set 'plan.space={batch: [1]}')
    [ $command != explain ] || space=(--time)
    works $command "$tmp/study/keys.yaml" "$@" --format json "${space[@]}"
    has "$out" '"validated_error": ['
    [ $command = explain ] || space+=(--out "$tmp/error-$command")
    works $command "$tmp/study/keys.yaml" "$@" "${space[@]}"
    every "$out" $command
    [ $command != explain ] || continue # it has neither a page nor CSV
    every "$tmp/error-$command/report.html" "report.html of $command"
    works $command "$tmp/study/keys.yaml" "$@" "${space[@]}" --set cluster=dgx-a100-16 --format csv
    has "$out" 'extrapolated, no error known'
done
works compare "$tmp/study/keys.yaml" "$@" --out "$tmp/error-compare" --pictures none
every "$tmp/error-compare/report.html" "report.html of compare"
works jobs "$TSR_SOURCE_DIR/experiments/topologies/two-jobs.yaml"
has "$out" "rror of time, "
works jobs "$TSR_SOURCE_DIR/experiments/topologies/two-jobs.yaml" --format csv
has "$out" ',"extrapolated, no error known"'
# The title of a file is not said of another model or cluster, which --set names.
{ echo "title: Two layers on one DGX" && cat "$tmp/study/keys.yaml"; } >"$tmp/study/titled.yaml"
titled() { # TITLE OPTION...
    works compare "$tmp/study/titled.yaml" "${@:2}"
    has "$out" "## $1"
    checks=$((checks + 1))
    [ "$(grep -c "Two layers" "$out")" = "$(printf '%s' "$1" | grep -c "Two layers")" ] || complain "the title of another study"
}
titled "Two layers on one DGX" --set batch=2
titled "titled.yaml with cluster=dgx-a100-16, model=gpt2" --set cluster=dgx-a100-16 --set batch=2 --set model=gpt2 --set api=ddp
titled "Mine" --set cluster=dgx-a100-16 --set title=Mine
works compare "$tmp/study/titled.yaml" --set world=4 --out "$tmp/titled" --pictures none
works compare "$tmp/titled/experiment.yaml"
has "$out" "## titled.yaml with world=4"
# No class at all is said, too.
printf '{"classes": []}\n' >"$errors"
line "Error of time, fully_shard on h100-sxm5-80g, one node: extrapolated, no error known."

validation=$TSR_SOURCE_DIR/experiments/validation
# Without a file of its own a study has the one that is shipped: made by errors.py, a class of which
# has as many rows as its table.
rm "$errors"
works compare "$tmp/study/two.yaml" --only old
has "$out" "Error of time, fsdp1 on h100-sxm5-80g, one node: extrapolated, no error known"
works compare "$validation/rows/lf033.yaml"
has "$out" "Validated error of time, fsdp1 on h100-sxm5-80g, one node: measured: fsdp1 on h100-sxm5-80g, 8 GPUs, mpt, llm-foundry-2023-10: median" \
    "rows of llm_foundry.csv)."
checks=$((checks + 1))
"$validation/errors.py" "$validation/torchtitan.csv" >"$tmp/again.json" 2>"$err" || complain "errors.py"
python3 - "$tmp/again.json" "$validation/errors.json" <<'EOF' || complain "errors.json is not of these tables: run errors.py --write"
import json, sys
again, shipped = ({c["class"]: c for c in json.load(open(p))["classes"]} for p in sys.argv[1:])
assert again and all(shipped[name]["rows"] == c["rows"] for name, c in again.items())
for c in shipped.values():
    assert 0 <= c["median"] <= c["p90"] <= c["max"], c
EOF

# Mistakes in the file
wrong() {
    want=$1
    shift
    printf '{"classes": [\n%s]}\n' "$*" >"$errors"
    fails 2 "errors.json:2" "$want" "allowed" -- compare "$tmp/study/two.yaml"
}
wrong "nodes: found some" "$(entry fsdp1 a100-sxm4-80g some 4)"
wrong "rows: found -3" "$(entry fsdp1 a100-sxm4-80g one -3)"
wrong "median: found much" "$(entry fsdp1 a100-sxm4-80g one 4 | sed 's/0.0213/"much"/')"
wrong "gpus: found [9, 8]" "$(entry fsdp1 a100-sxm4-80g one 4 null '[9, 8]')"
wrong "parameters: found nothing" "$(entry fsdp1 a100-sxm4-80g one 4 | sed 's/"parameters": [^]]*\], *//')"
wrong "models: found nothing" "$(entry fsdp1 a100-sxm4-80g one 4 | sed 's/"models": \["llama"\], //')"
wrong "stack: found torchtitan-2024;" "$(entry fsdp1 a100-sxm4-80g one 4 '"torchtitan-2024"')"
wrong "stack: found [" "$(entry fsdp1 a100-sxm4-80g one 4 '["a"]')"
wrong "median: found [" "$(entry fsdp1 a100-sxm4-80g one 4 | sed 's/0.0213/[0.02]/')"
wrong "p91" "$(entry fsdp1 a100-sxm4-80g one 4 | sed 's/p90/p91/')"
printf '{"rows": []}\n' >"$errors"
fails 2 "errors.json:1" "classes: found nothing" -- compare "$tmp/study/two.yaml"
finish
