#!/bin/sh
# Finds a rule of engine/SEMANTICS.md: its text, the functions that implement it, the tests that prove it.
#
# Usage: tests/rules/where.sh R57
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
case ${1-} in
-h | --help)
    cat <<'END'
tests/rules/where.sh RULE

Prints what a rule of engine/SEMANTICS.md (R1 to R256) says, where the code implements it, and which
tests prove it: FILE:LINE and the function. tests/rules/rules.tsv is the table behind it, and
tests/rules/check.sh sees that the table holds. Exit status: 0, or 2 for anything but a rule.
END
    exit 0
    ;;
esac
line=$(awk -F '\t' -v rule="${1-}" '$1 == rule && rule ~ /^R/' tests/rules/rules.tsv)
if [ $# -ne 1 ] || [ -z "$line" ]; then
    printf 'where.sh: found %s; allowed: one rule, R1 to R256\n' "'$(printf '%s' "$*" | tr '\n' ' ')'" >&2
    exit 2
fi
field() {
    printf '%s\n' "$line" | cut -f "$1"
}

# FILE:LINE FUNCTION, after a title that stands once.
show() {
    at=$(awk -f tests/rules/_definitions.awk "$2" 2>/dev/null | awk -F '\t' -v name="$2:$3" '$1 == name { print $2 }')
    printf '%-7s%s%s %s\n' "$1" "$2" "${at:+:$at}" "$3"
}

grep -n "^$1\\. " engine/SEMANTICS.md | sed 's/^\([0-9]*\):\([^ ]*\)\. \(.*\)/\2 \3 (engine\/SEMANTICS.md:\1)/'
[ "$(field 4)" = not-applicable ] && printf '%-7s%s\n' 'code:' "not applicable: $(field 5)"
title="code:"
for entry in $(field 6); do
    [ "$entry" = - ] || show "$title" "${entry%:*}" "${entry##*:}"
    title=
done
title='tests:'
for entry in $(field 3); do
    case $entry in
    -) continue ;;
    golden:*) printf '%-7s%s\n' "$title" "tests/golden/scenarios/${entry#golden:}.json" ;;
    *) # FOLDER_test_FILE:FUNCTION
        program=${entry%:*}
        show "$title" "tests/${program%%_test_*}/test_${program#*_test_}.c" "${entry##*:}"
        ;;
    esac
    title=
done
