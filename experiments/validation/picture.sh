#!/bin/sh
# Makes llm_foundry.png, the picture of validation.md, with the program as it is: predicts the table, and keeps what is drawn in
# predicted/. --check draws nothing: it predicts some rows again, sums the others up anew, and compares with predicted/, with
# errors.json and with the checksums of the picture and of its script.
#
# Usage: experiments/validation/picture.sh [--check]
# Environment: TESSERA, the program (build/tessera). Exit status: 0, 1 out of date, 2 it cannot be made.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=${TESSERA:-$here/../../build/tessera}
case $program in /*) ;; *) program=$PWD/$program ;; esac
cd "$here" || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
sums() {
    cksum llm_foundry.csv predicted/validate.csv predicted/validate-frame.csv llm_foundry.png ../../plots/validate.gp |
        awk '{ print $3 ": " $1 }'
}

if [ "${1-}" != --check ]; then
    "$program" validate llm_foundry.csv --out "$work/out" >/dev/null || exit 2
    [ -s "$work/out/validate.png" ] || {
        echo "picture.sh: there is no picture: gnuplot is missing" >&2
        exit 2
    }
    cp "$work/out/validate.csv" "$work/out/validate-frame.csv" predicted/
    cp "$work/out/validate.png" llm_foundry.png
    sums >predicted/picture.txt
    exit 0
fi

sums >"$work/sums"
bad=0
diff -u predicted/picture.txt "$work/sums" || bad=1
# Every 23rd row, of those that one node runs, is predicted by the program of today.
awk '/^#/ || !NF { next } !head { head = 1; print; next } n++ % 23 == 5' llm_foundry.csv >"$work/llm_foundry.csv"
"$program" validate "$work/llm_foundry.csv" --format json >"$work/some.json" || exit 2
python3 - "$work/some.json" <<'PY' || bad=1
import csv, json, sys
sys.path.insert(0, ".")
sys.dont_write_bytecode = True
from errors import quantile
bad = []
rows = list(csv.DictReader(open("predicted/validate.csv", encoding="utf-8")))
drawn = [r for r in rows if r["quantity"] == "tokens_per_s_per_gpu" and r["status"] == "predicted" and r["duplicate"] == "0"]
known = {(r["row_id"], r["quantity"]): r for r in rows}
some = [r for r in json.load(open(sys.argv[1], encoding="utf-8"))["rows"] if r["predicted"] is not None]
if len(some) < 8:
    bad.append(f"only {len(some)} rows were predicted again")
for row in some:
    was = float(known[row["row_id"], row["quantity"]]["predicted"])
    if abs(row["predicted"] / was - 1) > 1e-4:
        bad.append(f"{row['row_id']}: predicted {row['predicted']:.6g}, kept {was:.6g}")
def summary(chosen):
    errors = sorted(float(r["error"]) for r in chosen)
    return [len(errors)] + [round(x, 5) for x in (quantile(errors, 0.5), quantile(errors, 0.9), errors[-1])]
frame = next(csv.DictReader(open("predicted/validate-frame.csv", encoding="utf-8")))
said = [int(frame["figures"])] + [round(float(frame[k]), 5) for k in ("median", "p90", "max")]
if said != summary(drawn):
    bad.append(f"validate-frame.csv: {said}, of validate.csv {summary(drawn)}")
# The classes of errors.json whose rows are of this table alone: by card, and one node or more.
classes = [c for c in json.load(open("errors.json", encoding="utf-8"))["classes"] if c["source"] == "llm_foundry.csv"]
if sum(c["rows"] for c in classes) != len(drawn):
    bad.append("errors.json has another number of rows")
for gpu, nodes in sorted({(c["gpu"], c["nodes"]) for c in classes}):
    mine = [c for c in classes if (c["gpu"], c["nodes"]) == (gpu, nodes)]
    rows = [r for r in drawn if r["gpu"] == gpu and (int(r["n_gpus"]) > 8) == (nodes == "many")]
    largest = max(c["max"] for c in mine)
    if len(mine) == 1 and [mine[0][k] for k in ("rows", "median", "p90", "max")] != summary(rows) or largest != summary(rows)[3]:
        bad.append(f"errors.json: {gpu}, {nodes}: {mine}, of validate.csv {summary(rows)}")
for line in bad:
    print("FAILED:", line)
sys.exit(bool(bad))
PY
[ $bad = 0 ] || echo "out of date: run experiments/validation/picture.sh and errors.py --write, and commit what they write"
exit $bad
