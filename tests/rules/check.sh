#!/bin/sh
# The table of rules has no hole: R1 to R256, each once, proved by a test function or a recorded
# scenario that exists, and implemented by functions that are defined where it says; or not
# applicable with a reason (12 at most). Rules of PyTorch 2.15 have a test of their own, since only
# 2.11 was recorded. One line for each entry that does not hold.
#
# Usage: tests/rules/check.sh [TABLE]
set -u
here=$(cd "$(dirname "$0")" && pwd)
tests=$(cd "$here/.." && pwd)
table=${1:-$here/rules.tsv}
case $table in
/*) ;;
*) table=$PWD/$table ;;
esac
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# What exists: FOLDER_FILE:FUNCTION of every test that a program runs, golden:SCENARIO.
for source in "$tests"/*/test_*.c; do
    folder=${source%/*} file=${source##*/}
    tr -d ' \n' <"$source" | grep -o 'cmocka_unit_test([a-z0-9_]*)' |
        sed "s/.*(\\(.*\\))/${folder##*/}_${file%.c}:\\1/"
done >"$work/tests"
for scenario in "$tests"/golden/scenarios/*.json; do
    scenario=${scenario##*/}
    echo "golden:${scenario%.json}"
done >>"$work/tests"

# FILE:FUNCTION of every definition in the files that the table names.
cd "$tests/.." || exit 2
cut -f 6 "$table" | grep -v '^#' | tr ' ' '\n' | sed -n 's/:[^:]*$//p' | sort -u |
    while read -r file; do
        if [ -f "$file" ]; then
            awk -f "$here/_definitions.awk" "$file"
        fi
    done >"$work/functions"

awk -F '\t' '
function complain(text) {
    print "rules: " text >"/dev/stderr"
    bad++
}
FILENAME == ARGV[1] { known[$1] = 1; next }
FILENAME == ARGV[2] {
    defined[$1] = 1
    sub(/:[^:]*$/, "", $1)
    exists[$1] = 1
    next
}
/^#/ { next }
{
    if ($1 !~ /^R[1-9][0-9]*$/ || NF != 6)
        complain("line " FNR ": not rule, family, proof, status, description, functions: " $0)
    if (seen[$1]++)
        complain($1 " stands there twice")
    count[$4]++
    if ($4 == "not-applicable") {
        if ($3 != "-" || $6 != "-" || $5 !~ /\(.+\)$/)
            complain($1 ": not applicable needs a reason in brackets, no proof and no function")
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
    n = split($6, functions, " ")
    if (n == 0)
        complain($1 ": no function")
    for (i = 1; i <= n; i++) {
        file = functions[i]
        sub(/:[^:]*$/, "", file)
        if (!exists[file])
            complain($1 ": " functions[i] ": there is no such file, or it defines no function")
        else if (!defined[functions[i]])
            complain($1 ": " functions[i] ": the file does not define it")
    }
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
}' "$work/tests" "$work/functions" "$table"
