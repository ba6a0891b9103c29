#!/usr/bin/env bash
# Every target of the fuzzer over its seeds and over all that was ever found (found/TARGET/*), without a
# fuzzer: a second of the processor (five here) and 256 MB for each.
#
# Environment: TESSERA, TSR_SOURCE_DIR, FUZZ_REPLAY.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fuzz=$TSR_SOURCE_DIR/tests/fuzz
if ! "$fuzz/corpus.py" "$tmp/seeds" "$TESSERA" 2>"$tmp/log"; then
    cat "$tmp/log"
    exit 1
fi
targets=0 inputs=0 failures=0
while read -r target words; do
    files=("$tmp/seeds/$target"/*)
    [ -e "${files[0]}" ] || {
        echo "$target: no seed"
        failures=$((failures + 1))
    }
    [ -e "$fuzz/dictionary/$words" ] || {
        echo "$target: no dictionary/$words"
        failures=$((failures + 1))
    }
    [ -d "$fuzz/found/$target" ] && files+=("$fuzz/found/$target"/*)
    targets=$((targets + 1)) inputs=$((inputs + ${#files[@]}))
    # what another library forgets is in leaks.txt
    TSR_FUZZ_DIR=$tmp LSAN_OPTIONS=suppressions=$fuzz/leaks.txt:print_suppressions=0 \
        "$FUZZ_REPLAY" "$target" "${files[@]}" 2>"$tmp/log" || {
        echo "$target: status $?"
        tail -n 20 "$tmp/log"
        failures=$((failures + 1))
    }
done < <("$FUZZ_REPLAY" --list)
shopt -s nullglob
for folder in "$fuzz"/found/*/; do
    [ -d "$tmp/seeds/$(basename "$folder")" ] || {
        echo "found/$(basename "$folder"): no such target"
        failures=$((failures + 1))
    }
done
echo "$targets targets, $inputs inputs, $failures failures"
[ "$targets" -gt 0 ] && [ $failures -eq 0 ]
