#!/bin/sh
# Makes the findings anew: simulates NAME.yaml of each, writes NAME.csv (what its picture shows), NAME.png, and the answer with its
# figures into README.md. --check writes nothing: it compares with what the program says today, and the checksums of the
# pictures and of what drew them; a difference means that the finding has to be made and read again.
#
# Usage: experiments/findings/make.sh [--check] [NAME...]     (all of them)
# Environment: TESSERA, the program (build/tessera). Exit status: 0, 1 out of date or no longer true, 2 it cannot be made.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=${TESSERA:-$here/../../build/tessera}
case $program in /*) ;; *) program=$PWD/$program ;; esac
cd "$here/../.." || exit 2
folder=experiments/findings
check=false
if [ "${1-}" = --check ]; then
    check=true
    shift
fi
[ $# -gt 0 ] || set -- reshard hsdp prefetch embedding reduction recompute
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
command -v python3 >/dev/null || {
    echo "make.sh: there is no python3" >&2
    exit 2
}

python3 $folder/findings.py "$program" "$work" "$@" || exit 1
# The answers, put between their marks in README.md.
python3 - "$folder/README.md" "$work" "$@" <<'PY' || exit 2
import re, sys
path, work, *names = sys.argv[1:]
text = open(path, encoding="utf-8").read()
for name in names:
    answer = open(f"{work}/{name}.md", encoding="utf-8").read()
    text, n = re.subn(f"(<!-- {name}, by make.sh -->\n).*?(?=<!-- end -->)", lambda m: m[1] + answer, text, flags=re.S)
    if n != 1:
        sys.exit(f"make.sh: {path} has {n} places for {name}")
open(f"{work}/README.md", "w", encoding="utf-8").write(text)
PY
sums() { # of the pictures, and of what drew them
    for name in reshard hsdp prefetch embedding reduction recompute; do
        cksum $folder/"$name".csv $folder/"$name".png
    done | awk '{ print $3 ": " $1 }'
    cksum plots/finding.gp | awk '{ print $3 ": " $1 }'
}

if $check; then
    bad=0
    diff -u $folder/README.md "$work/README.md" || bad=1
    for name; do
        diff -u $folder/"$name".csv "$work/$name.csv" || bad=1
    done
    sums >"$work/today"
    diff -u $folder/pictures.txt "$work/today" || bad=1
    [ $bad = 0 ] || echo "out of date: run experiments/findings/make.sh, read what it writes, and commit it"
    exit $bad
fi
for name; do
    cp "$work/$name.csv" $folder/
    gnuplot -e "dir='$folder'; rows='$name'; out='$name'; formats='png'" plots/finding.gp || exit 2
done
cp "$work/README.md" $folder/README.md
sums >$folder/pictures.txt
