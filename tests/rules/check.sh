#!/bin/sh
# The table of rules has no hole: R1 to R256, each once, proved by a test function or a recorded
# scenario that exists, or not applicable with a reason (12 at most). Rules of PyTorch 2.15 have a
# test of their own, since only 2.11 was recorded.
#
# Usage: tests/rules/check.sh [TABLE]
set -u
here=$(cd "$(dirname "$0")" && pwd)
tests=$(cd "$here/.." && pwd)
table=${1:-$here/rules.tsv}
known=$(mktemp) || exit 2
trap 'rm -f "$known"' EXIT

# What exists: FOLDER_FILE:FUNCTION of every test that a program runs, golden:SCENARIO.
for source in "$tests"/*/test_*.c; do
    folder=$(basename "$(dirname "$source")")
    file=$(basename "$source" .c)
    tr -d ' \n' <"$source" | grep -o 'cmocka_unit_test([a-z0-9_]*)' |
        sed "s/.*(\\(.*\\))/${folder}_$file:\\1/" >>"$known"
done
for scenario in "$tests"/golden/scenarios/*.json; do
    echo "golden:$(basename "$scenario" .json)" >>"$known"
done

awk -F '\t' '
function complain(text) {
    print "rules: " text >"/dev/stderr"
    bad++
}
NR == FNR { known[$1] = 1; next }
/^#/ { next }
{
    if ($1 !~ /^R[1-9][0-9]*$/ || NF != 5)
        complain("line " FNR ": not rule, family, proof, status, description: " $0)
    if (seen[$1]++)
        complain($1 " stands there twice")
    count[$4]++
    if ($4 == "not-applicable") {
        if ($3 != "-" || $5 !~ /\(.+\)$/)
            complain($1 ": not applicable needs a reason in brackets, and no proof")
        next
    }
    if ($4 != "tested" && $4 != "2.15")
        complain($1 ": status " $4 " is none of tested, 2.15, not-applicable")
    n = split($3, proofs, " ")
    own = 0
    for (i = 1; i <= n; i++) {
        if (!known[proofs[i]])
            complain($1 ": " proofs[i] " does not exist")
        own += proofs[i] !~ /^golden:/
    }
    if (n == 0 || ($4 == "2.15" && !own))
        complain($1 ": no test of its own")
}
END {
    for (r = 1; r <= 256; r++)
        if (!seen["R" r])
            complain("R" r " is missing")
    for (r in seen)
        if (substr(r, 2) + 0 > 256)
            complain(r " is no rule")
    if (count["not-applicable"] > 12)
        complain(count["not-applicable"] " rules do not apply; 12 are allowed")
    if (bad)
        exit 1
    printf "256 rules: %d tested, %d of 2.15, %d not applicable\n", count["tested"],
        count["2.15"], count["not-applicable"]
}' "$known" "$table"
