#!/usr/bin/env bash
# Reports for people have no line of more than 100 columns, or than COLUMNS says, whatever the names in
# them; --wide breaks none and has all columns. What is for programs stays as it is. Notes come with
# --notes, and without it the report says that there are some.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
cd "$TSR_SOURCE_DIR" || exit 1

# narrow ARGUMENT...: works, and every line fits.
narrow() {
    works "$@"
    checks=$((checks + 1))
    awk -v most="${COLUMNS:-100}" 'length($0) > most { print FILENAME ": " $0; n++ } END { exit n > 0 }' "$out" ||
        complain "tessera $*: lines of more than ${COLUMNS:-100} columns"
}

flagship=experiments/flagship/dgx-h100-8.yaml
small=experiments/small/llama.yaml
long=fsdp-with-a-name-that-is-longer-than-any-other@and-has-no-blank-to-break-it-at-0123456789
for study in experiments/flagship/*.yaml experiments/small/*.yaml experiments/own-model/compare.yaml \
    experiments/topologies/*.yaml experiments/findings/rankings/*.yaml experiments/gpt2-xl-a100/*.yaml; do
    narrow inspect "$study"
done
for cluster in $(printf '%s\n' experiments/clusters/cluster-*.json | every 4 2); do
    narrow inspect "$cluster"
done
narrow compare experiments/own-model/one-file.yaml
cp "$out" "$tmp/one-file"
sed "s/^  fsdp:/  $long:/" $small >"$tmp/long.yaml"
cp experiments/small/llama-tiny.json "$tmp"
narrow compare "$tmp/long.yaml" --only "$long"
has "$out" "| fsdp-with-a-"
cp "$out" "$tmp/long"
export COLUMNS=80
narrow compare $small --only fsdp --notes
has "$out" "Notes" "communication while no kernel runs"
checks=$((checks + 1))
awk 'length($0) > 70 { n++ } END { exit n == 0 }' "$out" || complain "COLUMNS=80 is not made use of"
narrow compare $small --only fsdp
has "$out" "More: --notes"
checks=$((checks + 1))
grep -q "communication while no kernel runs" "$out" && complain "notes without --notes"
# One screen answers: what was simulated, the winner and why, what to do next, what is not known.
narrow compare $flagship --only ddp,fsdp,fsdp-embed-head,fsdp-checkpoint
has "$out" "3 of 4 fit. Fastest that fits (marked \"*\"): fsdp-embed-head. The next, fsdp," "exposed communication" \
    "--only fsdp-embed-head --emit torch out/code" "Simulated, not run: " "rror of time" "Not known: " "More: --notes"
checks=$((checks + 3))
[ "$(wc -l <"$out")" -le 32 ] || complain "compare of 4 strategies has $(wc -l <"$out") lines at 80 columns"
grep -q -e '--on sim' "$out" && complain "compare advises to simulate again"
[ "$(grep -c '^|:' "$out")" = 1 ] || complain "compare has more than one table"
unset COLUMNS
works compare "$tmp/long.yaml" --only "$long" --format csv --notes
checks=$((checks + 1))
grep -q "otes" "$out" && complain "notes in CSV"
narrow sim $flagship --strategy fsdp
narrow explain $flagship --strategy fsdp
narrow overlap $flagship --strategy fsdp
narrow diff $flagship:fsdp $flagship:fsdp-checkpoint
narrow check $small --strategy fsdp
narrow jobs experiments/topologies/two-jobs.yaml
narrow collectives dgx-h100-2 --sizes 1024,17179869184
narrow kernels experiments/validation/kernels/gemm.csv
narrow goodput $small --strategy fsdp
narrow plan $small --strategy fsdp --max seq
narrow plan $small --strategy fsdp --set 'plan.space={batch: [1, 2], reshard_after_forward: [true, false], wrap: [block, root], checkpoint.every: [selective_op]}'
# A command that goes on in the next line is still one.
command=$(sed -n '/^    tessera sim /,/[^\\]$/p' "$out" | sed '/[^\\]$/q' | sed "1s/tessera/works/; s|out/code|$tmp/code|")
eval "$command"
has "$out" "| fsdp *"
has "$tmp/code/fsdp.py" "def apply(model, mesh)"
narrow validate experiments/validation/llmc.csv
has "$out" "NOT MODELLED"

for command in $("$TESSERA" help all | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p' | grep -v -x -e help -e tessera); do
    narrow help "$command"
done

# Names are whole, in the rows below.
grep -A 20 '^| fsdp-with-a-' "$tmp/long" | sed '/^$/q' | cut -d'|' -f2 | tr -d ' \n' >"$tmp/name"
has "$tmp/name" "$long"

works compare experiments/own-model/one-file.yaml --wide
has "$out" "| reserved |" "| exposed ms |" "| in node GiB |" "| between GiB |" "| first ms |" "| host |"
checks=$((checks + 1))
grep -q "first ms" "$tmp/one-file" && complain "a column of --wide without it"
works overlap $small --strategy fsdp --wide --no-what-if
has "$out" "same communicator" "issue"
works plan $small --strategy fsdp --wide --set 'plan.space={batch: [1, 2]}'
has "$out" "| exposed ms |" "| alike |" "| MFU % |"
fails 2 "--wide" "--on host" "--on sim" -- run $small --strategy fsdp --on host --wide
fails 2 "--notes" "--on host" "--on sim" -- run $small --strategy fsdp --on host --notes
works run --help
checks=$((checks + 1))
grep -q -e --trace "$out" && complain "run --help has an option of memory"
finish
