#!/bin/sh
# sites.tsv has every place that waits, releases or frees, and no other; who is named there exists.
command -v python3 >/dev/null || exit 77
here=$TSR_SOURCE_DIR/tests/plant
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
python3 "$here/sites.py" list "$TSR_SOURCE_DIR" | cut -f4,5 | sort >"$tmp/is"
grep -v '^#' "$here/sites.tsv" | cut -f2,3 | sort >"$tmp/said"
failed=0
if ! diff "$tmp/said" "$tmp/is" >"$tmp/diff"; then
    echo "sites.tsv (<) is not what the engine has (>):"
    cat "$tmp/diff"
    failed=1
fi
[ "$(wc -l <"$tmp/is")" -gt 500 ] || failed=1
grep -v '^#' "$here/sites.tsv" | cut -f4 | sort -u >"$tmp/who"
while IFS= read -r who; do
    case $who in
    "check "*.yaml\ *)
        file=${who#check } name=${who##* }
        grep -q "^  $name:" "$TSR_SOURCE_DIR/${file% *}" || { echo "$who: no such strategy"; failed=1; }
        ;;
    "recorded "*) [ -f "$TSR_SOURCE_DIR/${who#recorded }" ] || { echo "$who: no such file"; failed=1; } ;;
    "check "*) [ -f "$TSR_SOURCE_DIR/${who#check }" ] || { echo "$who: no such file"; failed=1; } ;;
    same:\ ?* | kept:\ ?* | error:\ ?*) ;;
    *_test_*) [ -f "$TSR_SOURCE_DIR/tests/${who%%_test_*}/test_${who#*_test_}.c" ] || { echo "$who: no such test"; failed=1; } ;;
    *) echo "$who: not a way to notice"; failed=1 ;;
    esac
done <"$tmp/who"
exit $failed
