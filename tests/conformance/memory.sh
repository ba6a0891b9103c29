#!/bin/sh
# Recorded memory, predicted: every figure of every scenario of tests/golden-memory, and of those of
# tests/golden-bridge, whose models come as traces, and the time lines event by event, must come out
# exactly. Exit 77: skipped, there is no python3.
command -v python3 >/dev/null || exit 77
against=$TSR_SOURCE_DIR/tests/oracle/mem/against.py
golden=$TSR_SOURCE_DIR/tests/golden-memory
failed=0
stride=1 half=1 # the short form takes every sixth random scenario, and every second of the others
[ -n "${TSR_THOROUGH:-}" ] || stride=6 half=2
for folder in "$golden" "$golden/random" "$golden/mpt" "$golden/compile" "$TSR_SOURCE_DIR/tests/golden-bridge"; do
    every=$half
    [ "$folder" != "$golden/random" ] || every=$stride
    python3 "$against" --tessera "$TESSERA" --recorded "$folder" --every $every --jobs 2 --list || failed=1
done

# The comparison can fail: a result of another scenario is noticed.
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cp "$golden/tiny-base.timeline.json.gz" "$scratch"
sed 's/"seq": 128/"seq": 136/' "$golden/tiny-base.json" >"$scratch/tiny-base.json"
if python3 "$against" --tessera "$TESSERA" --recorded "$scratch" >"$scratch/said"; then
    echo "a longer sequence was not noticed"
    failed=1
fi
grep -q 'timeline: 0/1' "$scratch/said" || failed=1
exit $failed
