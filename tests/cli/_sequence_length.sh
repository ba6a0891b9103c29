#!/usr/bin/env bash
# The example of libtsr_study prints what `tessera compare` prints: peak and step time by sequence length.
# Usage: _sequence_length.sh EXAMPLE
set -euo pipefail
example=$1
file=$TSR_SOURCE_DIR/experiments/h200/tiny-gpt2.yaml
strategy=fsdp
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$example" "$file" "$strategy" 16 32 64 >"$work/example.csv"
echo seq,peak_allocated_bytes,step_time_s,fits >"$work/program.csv"
for seq in 16 32 64; do
    "$TESSERA" compare "$file" --only "$strategy" --set seq=$seq --format csv |
        python3 -c '
import csv, sys
(row,) = csv.DictReader(sys.stdin)
print(sys.argv[1], row["peak_allocated_bytes"], row["step_time_s"], row["fits"], sep=",")
' $seq >>"$work/program.csv"
done
diff "$work/example.csv" "$work/program.csv"

# A mistake is one line, with its place.
status=0
"$example" "$file" nobody 16 >"$work/out" 2>"$work/err" || status=$?
[ $status = 1 ]
grep -q 'strategy: found "nobody"' "$work/err"
[ "$(wc -l <"$work/err")" = 1 ]
echo "the example and the program agree"
