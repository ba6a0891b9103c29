#!/bin/sh
# Leaves out every site (README.md), one at a time: tests/plant/run.sh BUILD [--jobs N]
# An hour of one core. Prints the sites of which sites.tsv says that somebody notices, and nobody does now. Status
# 1: there is one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?tests/plant/run.sh BUILD}
shift
out=$(mktemp)
trap 'rm -f "$out"' EXIT
python3 "$here/plant.py" "$build" --tries 60 "$@" >"$out"
bad=$(grep -P '\t(NOBODY|NEVER)$' "$out" | cut -f2,3 | while IFS= read -r site; do
    grep -F "	$site	" "$here/sites.tsv" | grep -Pv '\t(same|kept|error): ' || true
done)
[ -z "$bad" ] || printf '%s\n' "$bad"
[ -z "$bad" ]
