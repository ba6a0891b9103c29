#!/bin/sh
# The error of a class of configurations, under the table of a comparison and in its files.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

mkdir -p "$tmp/study/validation" "$tmp/out"
cat >"$tmp/study/two.yaml" <<'EOF'
model: {name: llama-3.2-1b, layers: 2}
cluster: dgx-h100-2
seq: 1024
strategies:
  one: {world: 8}
  many: {}
  old: {api: fsdp1, world: 8}
  old-too: {api: fsdp1, world: 8, checkpoint: full}
EOF
errors=$tmp/study/validation/errors.json

# entry API GPU NODES ROWS
entry() {
    printf '{"class": "x", "api": "%s", "gpu": "%s", "nodes": "%s", "rows": %s,' "$@"
    printf ' "median": 0.0213, "p90": 0.05, "max": 0.083, "source": "made-up.csv"}'
}
{
    printf '{"classes": [\n'
    entry fully_shard h100-sxm5-80g one 10
    printf ',\n'
    entry fully_shard h100-sxm5-80g many 6
    printf ',\n'
    entry fsdp1 a100-sxm4-80g one 40 # another card
    printf ']}\n'
} >"$errors"

# A class that is claimed, one with too few rows, one that nobody has measured; each once.
works compare "$tmp/study/two.yaml" --out "$tmp/out"
has "$out" "h100-sxm5-80g, one node: median 2.1 %, 90 % within 5.0 %, largest 8.3 % (10 rows of made-up.csv)." \
    "h100-sxm5-80g, more than one node: median 2.1 %" "(6 rows of made-up.csv: too few to claim an error)" \
    "fsdp1 on h100-sxm5-80g, one node: this class of configuration was not validated" \
    "gpu-h100-sxm5-80g.json" "Times come from kernels: tables sm90 of h100-sxm5-80g" "collectives: NCCL's tuner"
checks=$((checks + 1))
[ "$(grep -c '^Validated error of time' "$out")" = 3 ] || complain "not one line for each of three classes"
checks=$((checks + 1))
python3 - "$tmp/out/summary.json" <<'EOF' || complain "summary.json"
import json, sys
study = json.load(open(sys.argv[1]))
one, many, old = study["validated_error"]
assert one == {"api": "fully_shard", "gpu": "h100-sxm5-80g", "nodes": "one", "error": {
    "rows": 10, "median": 0.0213, "p90": 0.05, "max": 0.083, "source": "made-up.csv", "claimed": True}}
assert many["nodes"] == "many" and many["error"]["claimed"] is False
assert old["api"] == "fsdp1" and old["error"] is None
assert "sm90" in study["time_sources"]
EOF

# Without a file of its own a study has the one that is shipped: made by errors.py, a class of which
# has as many rows as its table.
rm "$errors"
works compare "$tmp/study/two.yaml" --only old
has "$out" "Validated error of time, fsdp1 on h100-sxm5-80g, one node: median" "llm_foundry.csv"
validation=$TSR_SOURCE_DIR/experiments/validation
checks=$((checks + 1))
"$validation/errors.py" "$validation/torchtitan.csv" >"$tmp/again.json" 2>"$err" || complain "errors.py"
python3 - "$tmp/again.json" "$validation/errors.json" <<'EOF' || complain "errors.json is not of these tables: run errors.py --write"
import json, sys
again, shipped = ({c["class"]: c for c in json.load(open(p))["classes"]} for p in sys.argv[1:])
assert again and all(shipped[name]["rows"] == c["rows"] for name, c in again.items())
for c in shipped.values():
    assert 0 <= c["median"] <= c["p90"] <= c["max"], c
EOF

# Mistakes in the file
wrong() {
    want=$1
    shift
    printf '{"classes": [\n%s]}\n' "$*" >"$errors"
    fails 2 "errors.json:2" "$want" "allowed" -- compare "$tmp/study/two.yaml"
}
wrong "nodes: found some" "$(entry fsdp1 a100-sxm4-80g some 4)"
wrong "rows: found -3" "$(entry fsdp1 a100-sxm4-80g one -3)"
wrong "median: found much" "$(entry fsdp1 a100-sxm4-80g one 4 | sed 's/0.0213/"much"/')"
wrong "p91" "$(entry fsdp1 a100-sxm4-80g one 4 | sed 's/p90/p91/')"
printf '{"rows": []}\n' >"$errors"
fails 2 "errors.json:1" "classes: found nothing" -- compare "$tmp/study/two.yaml"
finish
