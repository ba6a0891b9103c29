#!/bin/sh
# Leaves out every site (README.md), one at a time: tests/plant/run.sh BUILD [--jobs N]
# A quarter of an hour of two cores. Looks for somebody who notices among the first 60 of those that reach the site, then asks who
# stands in sites.tsv. Prints the sites that nobody notices now, though sites.tsv says so. Status 1: there is one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?tests/plant/run.sh BUILD}
shift
out=$(mktemp)
trap 'rm -f "$out" "$out.left"' EXIT
python3 "$here/plant.py" "$build" --tries 60 "$@" >"$out"
grep -P '\t(NOBODY|NEVER)$' "$out" | cut -f2,3 | while IFS= read -r site; do
    grep -F "	$site	" "$here/sites.tsv" | grep -Pv '\t(same|kept|error): ' || true
done >"$out.left"
echo "$(wc -l <"$out") sites; nobody new for $(wc -l <"$out.left") of them, of which sites.tsv names somebody" >&2
[ ! -s "$out.left" ] || python3 "$here/plant.py" "$build" --named --only "$out.left" "$@"
