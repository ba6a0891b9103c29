#!/bin/sh
# where.sh finds rules (every fifth, in the short form every 15th, and those that do not apply; check.sh looks at all entries): the text, a function
# of the code or the reason why there is none, and the tests, at lines where the named function really stands. What is
# no rule is one line and exit status 2.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
out=$(mktemp) || exit 2
trap 'rm -f "$out" "$out.err"' EXIT
bad=0

complain() {
    bad=$((bad + 1))
    printf 'FAILED: %s\n' "$*"
    sed 's/^/  /' "$out"
}

every=15
[ -z "${TSR_THOROUGH:-}" ] || every=5
for r in $(awk -F '\t' -v every=$every '/^R/ { n = substr($1, 2) } /^R/ && (n % every == 1 || $4 == "not-applicable") { print n }' \
    tests/rules/rules.tsv); do
    tests/rules/where.sh "R$r" >"$out" 2>&1 || complain "R$r: exit status $?"
    head -n 1 "$out" | grep -q "^R$r .* (engine/SEMANTICS.md:[0-9]*)$" || complain "R$r: no text"
    grep -Eq '^code: +([^ ]+\.c:[0-9]+ [a-z_0-9]+|not applicable: .+)$' "$out" || complain "R$r: no code"
    grep -q '^code: *not applicable' "$out" ||
        grep -Eq '^tests: +tests/([^ ]+\.c:[0-9]+ [a-z_0-9]+|golden/.*\.json ?)$' "$out" || complain "R$r: no tests"
    # a source without a line is a function that was not found
    grep -E '\.c [a-z_0-9]+$' "$out" && complain "R$r: not found"
    sed -n 's/^.......\([^ ]*\.c\):\([0-9]*\) \(.*\)$/\1 \2 \3/p' "$out" | while read -r file line name; do
        sed -n "${line}p" "$file" | grep -q "$name(" || echo "$file:$line is not $name"
    done >"$out.err"
    [ -s "$out.err" ] && complain "$(cat "$out.err")"
done
for no in '' R0 R257 57 r5 R1x 'R1 R2' '.*'; do
    tests/rules/where.sh "$no" >"$out" 2>"$out.err"
    status=$?
    [ $status = 2 ] || complain "'$no': exit status $status, not 2"
    [ ! -s "$out" ] && [ "$(wc -l <"$out.err")" = 1 ] || complain "'$no': not one line on stderr"
done
tests/rules/where.sh R1 R2 >"$out" 2>&1
[ $? = 2 ] || complain "two rules are taken"
tests/rules/where.sh --help | grep -q 'R1 to R256' || complain "no help"

# And check.sh notices a function that is not there, a call in its place, and a missing one.
sed 's/^\(R57\t.*\)tsr__ensure_unsharded/\1tsr__ensure_something/
     s/^\(R58\t.*\)init_dtypes/\1memset/
     s/^\(R59\t.*\t\)[^\t]*$/\1-/' tests/rules/rules.tsv >"$out.err"
tests/rules/check.sh "$out.err" >"$out" 2>&1 && complain "check.sh takes a table that does not hold"
for rule in R57 R58 R59; do
    [ "$(grep -c "^rules: $rule: " "$out")" = 1 ] || complain "check.sh: not one line for $rule"
done
[ $bad = 0 ] || exit 1
echo "where.sh finds what it is asked for"
