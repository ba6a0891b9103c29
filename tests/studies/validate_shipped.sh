#!/usr/bin/env bash
# validate on every table that is shipped: its first, middle and last row, which under the sanitizers shows what a whole
# table does to memory. Stacks of calls that have returned are watched, too (gcc does not do it by itself).
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_stack_use_after_return=1"
tables=0
for table in "$TSR_SOURCE_DIR"/experiments/validation/*.csv; do
    name=$(basename "$table")
    awk '!/^#/ && NF' "$table" | awk '{ rows[NR] = $0 } END {
        print rows[1]
        print rows[2]
        if (NR > 3)
            print rows[int(NR / 2) + 1]
        print rows[NR]
    }' >"$tmp/$name"
    case $name in
    outliers.csv) fails 2 "$name" -- validate "$tmp/$name" ;; # what the tables of errors leave out
    *)
        works validate "$tmp/$name" --format csv
        [ "$(wc -l <"$out")" -gt 1 ] || complain "$name: no row"
        ! grep -q 'ended by' "$out" || complain "$name: a row dies" # it counts as one that is not modelled
        tables=$((tables + 1))
        ;;
    esac
done
[ "$tables" -ge 5 ] || complain "$tables tables"
finish
