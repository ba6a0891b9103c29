#!/usr/bin/env bash
# run.sh [FOLDER]: simulates the runs of published.csv and writes peaks.md, the predicted figures
# beside the published ones, into FOLDER (default: this one). The program is build/tessera, or
# TESSERA. Needs python3 for the table.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tessera=${TESSERA:-$root/build/tessera}
to=$(cd "${1:-$here}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$root" # so that messages and files name experiments/published-peaks/...
study=experiments/published-peaks
for name in torchtitan torchtitan-selective llmc; do
    traces=--no-traces
    [ $name != llmc ] || traces=--traces # its rows are of single owners, which snapshots tell
    if "$tessera" compare "$study/$name.yaml" --out "$work/$name" --pictures none $traces >/dev/null 2>"$work/$name.said"; then
        echo "simulated: $name"
    else
        cat "$work/$name.said" >&2
        exit 1
    fi
done
python3 "$study/table.py" "$study/published.csv" "$work" >"$work/peaks.md"
mv "$work/peaks.md" "$to/peaks.md"
cat "$to/peaks.md"
